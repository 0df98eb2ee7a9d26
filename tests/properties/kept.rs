//! How much of a prompt's beginning was sent before: prompts in a tree of message prefixes.

use std::collections::HashMap;

#[derive(Debug, Default)]
struct Node {
    text: String,
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
        let mut at = 0;
        for segment in prompt {
            let key = (at, *blake3::hash(segment.as_bytes()).as_bytes());
            let next = *self.index.entry(key).or_insert_with(|| {
                self.nodes.push(Node {
                    text: segment.clone(),
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
        let (mut at, mut kept) = (0, Kept::default());
        for segment in prompt {
            let key = (at, *blake3::hash(segment.as_bytes()).as_bytes());
            let Some(next) = self.index.get(&key) else {
                let common = |child: &usize| common(&self.nodes[*child].text, segment);
                kept.bytes += self.nodes[at]
                    .children
                    .iter()
                    .map(common)
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
