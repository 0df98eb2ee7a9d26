//! Reads a forwarded body as its receiver would: where the block is, what it covers, what is raw.
//! Knows nothing of `wire`.

use std::ops::Range;

use diarist::memory::render;

use super::aligned_chain::AlignedChain;
use super::conversation::Request;
use super::scripted_observer::Mark;

/// What our own question for usage looks like.
const USAGE: &str = r#","stream_options":{"include_usage":true}"#;

/// A forwarded body beside the one received.
#[derive(Debug)]
pub struct Reading<'a> {
    pub request: &'a Request,
    /// The chain that memory knows it by.
    pub aligned_chain: AlignedChain,
    pub sent: Vec<u8>,
    /// Where the messages stand in the body received.
    pub raw_items: Vec<Range<usize>>,
    /// Where the messages stand in the forwarded body.
    pub items: Vec<Range<usize>>,
    /// What the block says it covers; empty where there is no block.
    pub marks: Vec<Mark>,
    /// Which message holds the block.
    pub block: usize,
    /// How many messages after the leading ones the block covers.
    pub covered: usize,
    /// Where it says that messages behind those were left out: how many it says.
    pub left_out: Option<usize>,
    /// How many messages after the leading ones are not in the tail.
    pub cut: usize,
    /// Those of them that memory does not know: they stand raw in front of the block.
    pub front: Vec<usize>,
}

impl<'a> Reading<'a> {
    /// Reads a request that memory knows by its own chain.
    pub fn with_own_chain(request: &'a Request, sent: &[u8]) -> Self {
        Self::with_chain(request, sent, AlignedChain::own(request))
    }

    /// Reads the request by the chain that memory knows it by.
    pub fn with_chain(request: &'a Request, sent: &[u8], aligned_chain: AlignedChain) -> Self {
        let sent = without_usage(&request.body, sent);
        let items = messages(&sent);
        let raw_items = messages(&request.body);
        let read =
            |item: &Range<usize>| Mark::read(std::str::from_utf8(&sent[item.clone()]).unwrap());
        let (block, (marks, left_out)) = items
            .iter()
            .map(|item| (read(item), left_out(&sent[item.clone()])))
            .enumerate()
            .find(|(_, (marks, left_out))| !marks.is_empty() || left_out.is_some())
            .unwrap_or_default();
        let covered = marks.iter().map(|mark| mark.run.count).sum();
        let cut = if aligned_chain.own {
            covered
        } else {
            aligned_chain.cut(covered)
        };
        let front = if marks.is_empty() || aligned_chain.own {
            Vec::new()
        } else {
            aligned_chain.front(cut)
        };
        let mut read = Self {
            request,
            aligned_chain,
            sent,
            raw_items,
            items,
            marks,
            block,
            covered,
            left_out,
            cut,
            front,
        };
        if left_out.is_some() {
            read.cut = request.turns.len() - read.tail(cut);
            if !read.aligned_chain.own {
                read.front = read.aligned_chain.front(read.cut);
            }
        }
        read
    }

    /// How many of the newest messages stand at the end as they were received, none of them before
    /// `cut`.
    fn tail(&self, cut: usize) -> usize {
        let sent = self.items.iter().rev().map(|item| &self.sent[item.clone()]);
        let most = self.request.turns.len().saturating_sub(cut);
        let raw = (0..self.request.turns.len()).rev().take(most);
        sent.zip(raw)
            .take_while(|(sent, turn)| *sent == self.raw(*turn))
            .count()
    }

    /// How many messages of the chain are not sent as they are, a pin and a front aside.
    pub fn reach(&self) -> usize {
        if self.left_out.is_none() {
            return self.covered;
        }
        let tail = |sent: &Option<usize>| sent.is_some_and(|sent| sent >= self.cut);
        let tail = self.aligned_chain.sent.iter().position(tail);
        tail.unwrap_or(self.aligned_chain.sent.len())
    }

    /// The messages of the request that the block covers, by their places.
    pub fn covered_messages(&self) -> Vec<usize> {
        if self.aligned_chain.own {
            return (0..self.cut.min(self.request.turns.len())).collect();
        }
        let covered_messages = self.aligned_chain.sent.iter().take(self.reach()).flatten();
        covered_messages.copied().collect()
    }

    /// Forwarded messages between the leading ones and what stands behind the front: the front itself,
    /// and ours between them.
    pub fn before(&self) -> &[Range<usize>] {
        let start = self.request.leading.min(self.items.len());
        if self.front.is_empty() {
            return &[];
        }
        let end = if self.appended() {
            let mut front = self.front.iter().peekable();
            let mut end = start;
            for (at, item) in self.items.iter().enumerate().skip(start) {
                if front
                    .next_if(|turn| self.raw(**turn) == &self.sent[item.clone()])
                    .is_some()
                {
                    end = at + 1;
                }
            }
            end
        } else {
            self.block.max(start)
        };
        &self.items[start..end]
    }

    pub fn has_block(&self) -> bool {
        !self.marks.is_empty() || self.left_out.is_some()
    }

    pub fn is_raw(&self) -> bool {
        self.sent == self.request.body
    }

    /// Whether the block stands in a message of the client.
    pub fn appended(&self) -> bool {
        self.has_block() && self.block < self.request.leading
    }

    /// A message of the client after the leading ones, as received.
    pub fn raw(&self, turn: usize) -> &[u8] {
        &self.request.body[self.raw_items[self.request.leading + turn].clone()]
    }

    /// Its tokens: messages as they are counted, everything else by its bytes.
    pub fn tokens(&self) -> usize {
        let bytes = |item: &Range<usize>| words(&self.sent[item.clone()]);
        let head = &self.items[..self.request.leading.min(self.items.len())];
        let block = (self.has_block() && !self.appended()).then(|| bytes(&self.items[self.block]));
        let pin = self.pin().map_or(0, |pin| self.request.turns[pin].tokens);
        let between = self.between();
        let others = between.iter().skip(usize::from(self.pin().is_some()));
        let tail = &self.request.turns[self.cut.min(self.request.turns.len())..];
        let front = self
            .front
            .iter()
            .map(|turn| self.request.turns[*turn].tokens);
        let ours = self.before().len().saturating_sub(self.front.len()) * 8;
        head.iter().map(bytes).sum::<usize>()
            + front.sum::<usize>()
            + ours
            + block.unwrap_or(0)
            + pin
            + others.map(|item| words(item)).sum::<usize>()
            + tail.iter().map(|turn| turn.tokens).sum::<usize>()
    }

    /// The forwarded messages between the block and the tail.
    pub fn between(&self) -> Vec<&[u8]> {
        let tail = self.request.turns.len().saturating_sub(self.cut);
        if !self.has_block() {
            return Vec::new();
        }
        let start = (self.block + 1).max(self.request.leading);
        let start = if self.appended() {
            start + self.before().len()
        } else {
            start
        };
        let end = self.items.len().saturating_sub(tail).max(start);
        self.items[start.min(self.items.len())..end.min(self.items.len())]
            .iter()
            .map(|item| &self.sent[item.clone()])
            .collect()
    }

    /// The user message that stands raw between block and tail.
    pub fn pin(&self) -> Option<usize> {
        let between = self.between();
        self.covered_messages()
            .into_iter()
            .rev()
            .find(|turn| between.first().is_some_and(|item| *item == self.raw(*turn)))
    }

    /// Whether a reminder stands before the tail, for which that begins with an answer.
    pub fn reminded(&self) -> bool {
        let opening = render::REMINDER.lines().nth(1).unwrap();
        self.between()
            .iter()
            .any(|item| std::str::from_utf8(item).unwrap().contains(opening))
    }
}

/// How many messages a note in `message` says were left out.
fn left_out(message: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(message).unwrap();
    let (_, note) = text.split_once("<diarist-gap>\\nThe ")?;
    note.split(' ').next()?.parse().ok()
}

/// Tokens of what a message in JSON says, be it a string or parts.
fn words(message: &[u8]) -> usize {
    let message: serde_json::Value = serde_json::from_slice(message).unwrap();
    let parts = message["content"].as_array();
    let part = |part: &serde_json::Value| part["text"].as_str().map_or(0, str::len);
    let text = message["content"].as_str().map_or(0, str::len);
    4 + (text + parts.into_iter().flatten().map(part).sum::<usize>()).div_ceil(4)
}

/// The forwarded body without our own question, which stands at its very end.
fn without_usage(received: &[u8], sent: &[u8]) -> Vec<u8> {
    let own = |body: &[u8]| {
        let from = body.len().saturating_sub(2 * USAGE.len());
        let at = body[from..]
            .windows(USAGE.len())
            .rposition(|window| window == USAGE.as_bytes())?;
        Some(from + at)
    };
    match (own(received), own(sent)) {
        (None, Some(at)) => [&sent[..at], &sent[at + USAGE.len()..]].concat(),
        _ => sent.to_vec(),
    }
}

/// Where the members of `messages` stand in `body`.
pub fn messages(body: &[u8]) -> Vec<Range<usize>> {
    let key = b"\"messages\":";
    let start = memchr::memmem::find(body, key).unwrap() + key.len();
    let (mut items, mut depth, mut begin, mut at) = (Vec::new(), 0, 0, start);
    loop {
        match body[at] {
            b'"' => {
                at += 1;
                // Quickly over the words: these bodies are long.
                while let Some(next) = memchr::memchr2(b'"', b'\\', &body[at..]) {
                    at += next;
                    if body[at] == b'"' {
                        break;
                    }
                    at += 2;
                }
            }
            b'{' | b'[' => {
                depth += 1;
                if depth == 2 {
                    begin = at;
                }
            }
            b'}' | b']' => {
                depth -= 1;
                if depth == 1 {
                    items.push(begin..at + 1);
                }
                if depth == 0 {
                    return items;
                }
            }
            _ => {}
        }
        at += 1;
    }
}
