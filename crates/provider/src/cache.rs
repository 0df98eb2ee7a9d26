//! Simulates a provider's prompt cache: how much of a prompt an earlier prompt has already paid for.
//!
//! The rules are those that providers document: an exact prefix, a least size, hits in steps; see [`CacheKind`].
//! Nothing is evicted, so the cause of a miss is always in the request. Called by `chat` for accepted requests; pure,
//! no clock.
//!
//! A conversation of 1,600 messages is measured on every turn. So prompts are stored in a tree of
//! message prefixes. A turn costs one hash and one lookup for each message, and only new messages
//! behind a prefix are counted.

use std::collections::{HashMap, HashSet};

use super::prompt::{CountTokens, Prompt, pieces};

/// Prompts shorter than this are never served from the cache (OpenAI's prompt caching guide).
pub const MINIMUM_TOKENS: u32 = 1024;
/// Hits come in multiples of this (same source).
pub const STEP_TOKENS: u32 = 128;
/// DeepSeek's unit, which is its least size too (context caching, 2026-10). Every other step is a multiple of it.
pub const UNIT_TOKENS: u32 = 64;

/// Which provider's cache it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// OpenAI up to GPT-5.5: from 1,024 tokens on, in steps of 128.
    #[default]
    Steps,
    /// DeepSeek: whole units of 64 tokens. Usage has a hit and a miss.
    Units,
    /// GPT-5.6 and later: a prefix is stored up to a breakpoint only, and only all of it can be read. Without marks of
    /// the client the breakpoint is the end of the newest message. Usage has what was written.
    Breakpoints,
}

impl CacheKind {
    /// The least size and the step of a hit.
    fn sizes(self) -> (u32, u32) {
        match self {
            Self::Steps | Self::Breakpoints => (MINIMUM_TOKENS, STEP_TOKENS),
            Self::Units => (UNIT_TOKENS, UNIT_TOKENS),
        }
    }
}

/// The result for one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptUsage {
    /// The size of the whole prompt.
    pub prompt_tokens: u32,
    /// How much of its beginning was read from the cache: 0, or at least the least size and a multiple of the step of
    /// its [`CacheKind`]. This is part of `prompt_tokens`, not in addition.
    pub cached_tokens: u32,
    /// Which provider's words the usage is reported in.
    pub kind: CacheKind,
}

impl PromptUsage {
    /// The tokens that had to be computed, at the full price.
    pub fn uncached_tokens(self) -> u32 {
        self.prompt_tokens - self.cached_tokens
    }

    /// The tokens that were written to the cache, if its kind reports that: what was not read, where the prompt is long
    /// enough.
    pub fn written_tokens(self) -> Option<u32> {
        let is_stored = self.prompt_tokens >= MINIMUM_TOKENS;
        let written = if is_stored { self.uncached_tokens() } else { 0 };
        (self.kind == CacheKind::Breakpoints).then_some(written)
    }
}

type Digest = [u8; 16];

/// A prefix of messages that was sent, and the cache blocks that its last segment completed.
struct Node {
    tokens: u32,
    chain: Digest,
    /// Chain digests at the ends of pieces that completed a unit, with the tokens up to there.
    blocks: Vec<(u32, Digest)>,
    stored: bool,
}

/// The cache of one provider. Customers and models never share entries.
pub struct PromptCache {
    count_tokens: CountTokens,
    nodes: HashMap<Digest, Node>,
    stored_blocks: HashSet<Digest>,
    /// Chain digests at the ends of stored prompts.
    breakpoints: HashSet<Digest>,
    kind: CacheKind,
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
pub struct PromptPath(Vec<Digest>);

impl PromptCache {
    /// An empty cache that counts with `count`.
    pub fn new(count: CountTokens) -> Self {
        Self {
            count_tokens: count,
            nodes: HashMap::new(),
            stored_blocks: HashSet::new(),
            breakpoints: HashSet::new(),
            kind: CacheKind::default(),
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
                Node::append_segment(chain, tokens, segment, &self.count_tokens)
            });
            (chain, tokens) = (node.chain, node.tokens);
            path.push(id);
        }
        let path = PromptPath(path);
        let kind = self.kind;
        let (minimum, step) = kind.sizes();
        let stored = match kind {
            CacheKind::Steps | CacheKind::Units => self.deepest_block(&path),
            CacheKind::Breakpoints => self.deepest_breakpoint(&path),
        };
        let hit = stored - stored % step;
        let usage = PromptUsage {
            prompt_tokens: tokens,
            cached_tokens: if hit >= minimum { hit } else { 0 },
            kind,
        };
        (usage, path)
    }

    /// Makes every full block of a measured prompt available to later prompts.
    pub fn store(&mut self, path: &PromptPath) {
        let end = path.0.last().and_then(|id| self.nodes.get(id));
        self.breakpoints.extend(end.map(|node| node.chain));
        // From the end: if a prefix is stored, everything before it is stored too.
        for id in path.0.iter().rev() {
            let Some(node) = self.nodes.get_mut(id) else {
                continue;
            };
            if node.stored {
                break;
            }
            node.stored = true;
            self.stored_blocks
                .extend(node.blocks.iter().map(|(_, digest)| *digest));
        }
    }

    /// Forgets all prompts, as a provider does after a while.
    pub fn forget(&mut self) {
        self.stored_blocks.clear();
        self.breakpoints.clear();
        self.nodes.values_mut().for_each(|node| node.stored = false);
    }

    fn deepest_block(&self, path: &PromptPath) -> u32 {
        path.0
            .iter()
            .rev()
            .filter_map(|id| self.nodes.get(id))
            .flat_map(|node| node.blocks.iter().rev())
            .find(|(_, digest)| self.stored_blocks.contains(digest))
            .map_or(0, |(tokens, _)| *tokens)
    }

    fn deepest_breakpoint(&self, path: &PromptPath) -> u32 {
        let nodes = path.0.iter().rev().filter_map(|id| self.nodes.get(id));
        let mut stored = nodes.filter(|node| self.breakpoints.contains(&node.chain));
        stored.next().map_or(0, |node| node.tokens)
    }
}

impl Node {
    fn append_segment(
        mut chain: Digest,
        mut tokens: u32,
        segment: &str,
        count: &CountTokens,
    ) -> Self {
        let mut blocks = Vec::new();
        for piece in pieces(segment) {
            let before = tokens / UNIT_TOKENS;
            tokens += count(piece);
            chain = link(&[&chain, piece.as_bytes()]);
            if tokens / UNIT_TOKENS > before {
                blocks.push((tokens, chain));
            }
        }
        Self {
            tokens,
            chain,
            blocks,
            stored: false,
        }
    }
}

/// Half a BLAKE3 digest over length-prefixed fields, so `("ab", "c")` differs from `("a", "bc")`.
fn link(fields: &[&[u8]]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for field in fields {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

#[cfg(test)]
mod tests;
