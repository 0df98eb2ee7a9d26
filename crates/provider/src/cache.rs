//! Simulates a provider's prompt cache: how much of a prompt an earlier prompt has already paid for.
//!
//! The rules are those that providers document: an exact prefix, a least size, hits in steps, a lifetime; see
//! [`CacheKind`]. What a prompt cost is told with its reason ([`Lost`]). Time passes only if a test says so
//! ([`PromptCache::skip_time`]). Called by `chat` for accepted requests; pure, no clock. Anthropic's cache is in
//! `marked`.
//!
//! A conversation of 1,600 messages is measured on every turn. So prompts are stored in a tree of
//! message prefixes. A turn costs one hash and one lookup for each message, and only new messages
//! behind a prefix are counted.

mod blocks;
mod digest;
mod kind;
mod marked;
mod simulated;

use std::collections::HashMap;
use std::time::Duration;

use super::prompt::{CountTokens, Prompt, pieces};
use digest::{Digest, link};

pub use kind::{CacheKind, Lost, MINIMUM_TOKENS, PromptUsage, STEP_TOKENS, UNIT_TOKENS};
pub use simulated::{SimulatedCache, StoredPrompt};

/// A prefix of messages that was sent, and the cache blocks that its last segment completed.
struct Node {
    tokens: u32,
    chain: Digest,
    /// Chain digests at the ends of pieces that completed a unit, with the tokens up to there.
    blocks: Vec<(u32, Digest)>,
    /// The same at the ends of all its pieces. Only for a cache with breakpoints, which may stand inside a segment.
    pieces: Vec<(u32, Digest)>,
    /// When it was stored last, if it is.
    stored: Option<Duration>,
}

/// Something that was stored.
#[derive(Clone, Copy, Debug)]
struct Entry {
    used: Duration,
    is_forgotten: bool,
}

/// The cache of one provider. Customers and models never share entries.
pub struct PromptCache {
    count_tokens: CountTokens,
    nodes: HashMap<Digest, Node>,
    stored_blocks: HashMap<Digest, Entry>,
    /// Chain digests at the ends of stored prompts.
    breakpoints: HashMap<Digest, Entry>,
    kind: CacheKind,
    now: Duration,
}

impl std::fmt::Debug for PromptCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptCache")
            .field("prefixes", &self.nodes.len())
            .field("blocks", &self.stored_blocks.len())
            .finish_non_exhaustive()
    }
}

/// The nodes of one measured prompt, for [`PromptCache::store`] after the request was accepted. A
/// refused request warms nothing.
#[derive(Debug)]
pub struct PromptPath {
    /// One for each segment of the prompt.
    nodes: Vec<Digest>,
    /// Those of them that end with a breakpoint of the client.
    breakpoints: Vec<Digest>,
}

impl PromptCache {
    /// An empty cache that counts with `count`.
    pub fn new(count: CountTokens) -> Self {
        Self {
            count_tokens: count,
            nodes: HashMap::new(),
            stored_blocks: HashMap::new(),
            breakpoints: HashMap::new(),
            kind: CacheKind::default(),
            now: Duration::ZERO,
        }
    }

    /// From now on it reads by the rules of `kind`. What is stored is the same.
    pub fn set_kind(&mut self, kind: CacheKind) {
        self.kind = kind;
    }

    /// Measures and stores, as for an accepted request.
    pub fn read_and_write(&mut self, owner: &str, model: &str, prompt: &Prompt) -> PromptUsage {
        let (usage, path) = self.read(owner, model, prompt);
        self.store(&path);
        usage
    }

    /// Measures `prompt` for this `owner` (a credential) and `model` without storing it.
    pub fn read(&mut self, owner: &str, model: &str, prompt: &Prompt) -> (PromptUsage, PromptPath) {
        let mut chain = link(&[owner.as_bytes(), model.as_bytes()]);
        let mut tokens = 0;
        let mut path = Vec::with_capacity(prompt.segments().len());
        for segment in prompt.segments() {
            let id = link(&[&chain, segment.as_bytes()]);
            let node = self.nodes.entry(id).or_insert_with(|| {
                Node::append_segment(chain, tokens, segment, &self.count_tokens, self.kind)
            });
            (chain, tokens) = (node.chain, node.tokens);
            path.push(id);
        }
        let breakpoints = prompt.breakpoints().iter();
        let breakpoints = breakpoints
            .filter_map(|at| path.get(*at).copied())
            .collect();
        let path = PromptPath {
            nodes: path,
            breakpoints,
        };
        let kind = self.kind;
        let (held, lost) = self.deepest(&path);
        let usable = |tokens: u32| {
            let whole = tokens - tokens % kind.step_tokens();
            let is_long = whole >= kind.minimum_tokens(model);
            if is_long { whole } else { 0 }
        };
        let usage = PromptUsage {
            prompt_tokens: tokens,
            cached_tokens: usable(held),
            stored_tokens: usable(match kind {
                CacheKind::Breakpoints => tokens,
                _ => self.last_block(&path),
            }),
            lost: lost
                .filter(|(tokens, _)| usable(*tokens) > usable(held))
                .map(|(_, reason)| reason),
            kind,
            ..PromptUsage::default()
        };
        (usage, path)
    }

    /// Makes every full block of a measured prompt available to later prompts.
    pub fn store(&mut self, path: &PromptPath) {
        let entry = Entry {
            used: self.now,
            is_forgotten: false,
        };
        // The end of the newest message is one too.
        let ends = path.breakpoints.iter().chain(path.nodes.last());
        let ends = ends.filter_map(|id| self.nodes.get(id));
        let ends: Vec<Digest> = ends.map(|node| node.chain).collect();
        let ends = ends.into_iter().map(|chain| (chain, entry));
        self.breakpoints.extend(ends);
        // From the end: if a prefix was stored now, everything before it was too.
        for id in path.nodes.iter().rev() {
            let Some(node) = self.nodes.get_mut(id) else {
                continue;
            };
            if node.stored == Some(self.now) {
                break;
            }
            node.stored = Some(self.now);
            let blocks = node.blocks.iter().map(|(_, digest)| (*digest, entry));
            self.stored_blocks.extend(blocks);
        }
    }

    /// Forgets all prompts, as a provider does after a while.
    pub fn forget(&mut self) {
        let entries = self.stored_blocks.values_mut();
        for entry in entries.chain(self.breakpoints.values_mut()) {
            entry.is_forgotten = true;
        }
        self.nodes.values_mut().for_each(|node| node.stored = None);
    }

    /// Lets this much time pass.
    pub fn skip_time(&mut self, duration: Duration) {
        self.now += duration;
    }

    /// Up to where the prompt can be read, and up to where it could be read once, and why no longer.
    fn deepest(&self, path: &PromptPath) -> (u32, Option<(u32, Lost)>) {
        let nodes = path.nodes.iter().rev().filter_map(|id| self.nodes.get(id));
        let places: Box<dyn Iterator<Item = (u32, Option<&Entry>)>> = match self.kind {
            CacheKind::Breakpoints => {
                let ends = nodes.flat_map(|node| {
                    let end = (node.tokens, node.chain);
                    std::iter::once(end).chain(node.pieces.iter().rev().copied())
                });
                Box::new(ends.map(|(tokens, chain)| (tokens, self.breakpoints.get(&chain))))
            }
            _ => Box::new(nodes.flat_map(|node| {
                let blocks = node.blocks.iter().rev();
                blocks.map(|(tokens, digest)| (*tokens, self.stored_blocks.get(digest)))
            })),
        };
        let mut lost = None;
        for (tokens, entry) in places {
            let Some(entry) = entry else { continue };
            match self.loss(entry) {
                Some(reason) => lost = lost.or(Some((tokens, reason))),
                None => return (tokens, lost),
            }
        }
        (0, lost)
    }

    fn loss(&self, entry: &Entry) -> Option<Lost> {
        if self.now.saturating_sub(entry.used) > self.kind.lifetime() {
            Some(Lost::Expired)
        } else if entry.is_forgotten {
            Some(Lost::Forgotten)
        } else {
            None
        }
    }

    /// The end of the last block.
    fn last_block(&self, path: &PromptPath) -> u32 {
        let nodes = path.nodes.iter().rev().filter_map(|id| self.nodes.get(id));
        let mut blocks = nodes.filter_map(|node| node.blocks.last());
        blocks.next().map_or(0, |(tokens, _)| *tokens)
    }
}

impl Node {
    fn append_segment(
        mut chain: Digest,
        mut tokens: u32,
        segment: &str,
        count: &CountTokens,
        kind: CacheKind,
    ) -> Self {
        let (mut blocks, mut ends) = (Vec::new(), Vec::new());
        for piece in pieces(segment) {
            let before = tokens / UNIT_TOKENS;
            tokens += count(piece);
            chain = link(&[&chain, piece.as_bytes()]);
            if tokens / UNIT_TOKENS > before {
                blocks.push((tokens, chain));
            }
            if kind == CacheKind::Breakpoints {
                ends.push((tokens, chain));
            }
        }
        Self {
            tokens,
            chain,
            blocks,
            pieces: ends,
            stored: None,
        }
    }
}

#[cfg(test)]
mod tests;
