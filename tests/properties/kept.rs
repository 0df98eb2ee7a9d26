//! How much of a prompt's beginning was sent before: prompts in a tree of message prefixes.

use std::collections::HashMap;

#[derive(Debug, Default)]
struct Node {
    text: String,
    /// Whether it stood in what was sent.
    sent: bool,
    children: Vec<usize>,
    latest: usize,
}

/// Prompts that were sent.
#[derive(Debug)]
pub struct Prompts {
    nodes: Vec<Node>,
    index: HashMap<(usize, [u8; 32]), usize>,
}

/// How much of a prompt is in the tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept {
    /// Whole segments.
    pub segments: usize,
    /// Bytes, the common beginning of the first other segment included.
    pub bytes: usize,
    /// The number of the newest prompt that shares those whole segments.
    pub latest: usize,
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            index: HashMap::new(),
        }
    }
}

impl Prompts {
    /// Puts a prompt into the tree, under a number.
    pub fn add(&mut self, prompt: &[String], number: usize) {
        self.add_sent(prompt, prompt, number);
    }

    /// The same for a prompt that went out as `sent`. A message that the block was appended to is sent
    /// as well.
    pub fn add_sent(&mut self, prompt: &[String], sent: &[String], number: usize) {
        let stands = |segment: &str| sent.iter().any(|it| it.starts_with(segment.trim_end()));
        let mut at = 0;
        for segment in prompt {
            let key = (at, *blake3::hash(segment.as_bytes()).as_bytes());
            let next = *self.index.entry(key).or_insert_with(|| {
                self.nodes.push(Node {
                    text: segment.clone(),
                    // Under one snapshot a message is always sent or never.
                    sent: stands(segment),
                    ..Node::default()
                });
                let new = self.nodes.len() - 1;
                self.nodes[at].children.push(new);
                new
            });
            self.nodes[next].latest = number;
            at = next;
        }
    }

    /// How much of `prompt` was there before.
    pub fn kept(&self, prompt: &[String]) -> Kept {
        self.kept_among(prompt, |_| true)
    }

    /// The same, where the beginning of a message counts only if that message was sent. A client that
    /// drops its oldest messages goes on with another one in the place of one that is covered, and
    /// that both begin with the same letters keeps nothing of what went out.
    pub fn kept_of_sent(&self, prompt: &[String]) -> Kept {
        self.kept_among(prompt, |node| node.sent)
    }

    fn kept_among(&self, prompt: &[String], counts: impl Fn(&Node) -> bool) -> Kept {
        let (mut at, mut kept) = (0, Kept::default());
        for segment in prompt {
            let key = (at, *blake3::hash(segment.as_bytes()).as_bytes());
            let Some(next) = self.index.get(&key) else {
                let children = self.nodes[at]
                    .children
                    .iter()
                    .map(|child| &self.nodes[*child]);
                kept.bytes += children
                    .filter(|child| counts(child))
                    .map(|child| common(&child.text, segment))
                    .max()
                    .unwrap_or(0);
                break;
            };
            at = *next;
            kept.segments += 1;
            kept.bytes += segment.len();
        }
        kept.latest = self.nodes[at].latest;
        kept
    }
}

/// Bytes that `a` and `b` have in common at the beginning.
pub fn common(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

/// The size of a prompt in bytes.
pub fn size(prompt: &[String]) -> usize {
    prompt.iter().map(String::len).sum()
}
