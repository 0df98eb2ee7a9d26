//! A chain as `advance` looks at it: what is observed, what is sent, how large a request would be.
//! Derived from a [`ChainState`]. It decides nothing.

use std::collections::HashMap;

use super::chain_state::ChainState;
use crate::history::Role;
use crate::memory::{Node, PartId, PartKind, PartMeta, Policy, SnapshotMeta, render, select};

/// The chain with what follows from it.
pub(super) struct ChainView<'a> {
    pub(super) chain: ChainState<'a>,
    /// The chunks that observe the chain without a gap from its first message.
    pub(super) chunks: Vec<&'a PartMeta>,
    /// The reflection that a log would begin with.
    pub(super) reflection: Option<&'a PartMeta>,
    /// The snapshot that the next request on this chain will use.
    pub(super) current: Option<&'a SnapshotMeta>,
    pub(super) confirmed_count: usize,
}

impl<'a> ChainView<'a> {
    pub(super) fn new(chain: &ChainState<'a>) -> Self {
        let reflection = reflections(chain.parts, usize::MAX).first().copied();
        let next_length = chain.nodes.len() + 1;
        let current = chain
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.eligible_from <= next_length)
            .filter(|snapshot| is_usable(chain, snapshot))
            .max_by_key(|snapshot| select::rank(snapshot));
        // Continue from what is sent. Chunks with other boundaries may reach further, but
        // sending those would rewrite what is cached (INV-PREFIX).
        let sent = current.map_or(0, |snapshot| snapshot.to_count);
        let mut chunks = longest_run(chain.parts, 0, sent);
        if end_of_run(&chunks, 0) == sent {
            chunks.extend(longest_run(chain.parts, sent, usize::MAX));
        } else {
            chunks = longest_run(chain.parts, 0, usize::MAX);
        }
        let confirmed_count = chain.nodes.iter().take_while(|node| node.confirmed).count();
        Self {
            chain: *chain,
            chunks,
            reflection,
            current,
            confirmed_count,
        }
    }

    pub(super) fn observed_count(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk.span.to_count)
    }

    pub(super) fn covered_count(&self) -> usize {
        self.current.map_or(0, |snapshot| snapshot.to_count)
    }

    /// Tokens of the observations in the current snapshot.
    pub(super) fn sent_log_tokens(&self) -> u32 {
        self.current.map_or(0, |snapshot| snapshot.tokens)
    }

    /// Tokens of the raw history that the next request would carry, without its newest turn.
    pub(super) fn pending_tokens(&self) -> u32 {
        node_tokens(&self.chain.nodes[self.covered_count().min(self.chain.nodes.len())..])
    }

    /// Chunks that are observed, but not in the current snapshot.
    pub(super) fn fresh_chunks(&self) -> Vec<&'a PartMeta> {
        let covered = self.covered_count();
        self.chunks
            .iter()
            .copied()
            .filter(|chunk| chunk.span.to_count > covered)
            .collect()
    }

    /// All chunks that reach beyond `to_count`, in order, whatever their boundaries and whether or
    /// not there are gaps.
    pub(super) fn later_chunks(&self, to_count: usize) -> Vec<PartId> {
        let parts = self.chain.parts.iter();
        let mut chunks: Vec<&PartMeta> = parts
            .filter(|part| part.kind == PartKind::Chunk && part.span.to_count > to_count)
            .collect();
        chunks.sort_by_key(|part| (part.span.to_count, part.span.from_count, part.id));
        chunks.iter().map(|part| part.id).collect()
    }

    /// The preferred log up to `to_count`: a reflection and the chunks that lead from it to
    /// `to_count`.
    pub(super) fn log(&self, to_count: usize) -> Option<Vec<&'a PartMeta>> {
        self.logs(to_count).next()
    }

    /// The log up to `to_count` as it is sent. If the Reflector's reflection and the chunks after
    /// it are too long together, and a code-written reflection of both is not, the code-written one
    /// stays. Code would only have to leave out more otherwise.
    pub(super) fn log_within(&self, to_count: usize, limit: u32) -> Option<Vec<&'a PartMeta>> {
        let mut logs = self.logs(to_count);
        let first = logs.next()?;
        let sent = self
            .current
            .is_some_and(|now| now.parts.contains(&first[0].id));
        // A log that is sent already is not replaced by an older one.
        if sent || part_tokens(&first) < limit {
            return Some(first);
        }
        let short = logs.find(|log| log[0].code_reflection && part_tokens(log) < limit);
        Some(short.unwrap_or(first))
    }

    /// Every log up to `to_count` without a gap, the preferred one first.
    fn logs(&self, to_count: usize) -> impl Iterator<Item = Vec<&'a PartMeta>> {
        let parts = self.chain.parts;
        let starts = reflections(parts, to_count).into_iter().map(Some);
        starts
            .chain([None])
            .map(move |start| {
                let from = start.map_or(0, |reflection| reflection.span.to_count);
                let rest = longest_run(parts, from, to_count);
                start.into_iter().chain(rest).collect::<Vec<_>>()
            })
            .filter(move |log| end_of_run(log, 0) == to_count && !log.is_empty())
    }

    /// The parts of the current snapshot, followed by the chunks behind it up to `to_count`.
    pub(super) fn appended_log(&self, to_count: usize) -> Option<Vec<&'a PartMeta>> {
        let Some(current) = self.current else {
            return self.log(to_count);
        };
        let mut log = Vec::with_capacity(current.parts.len() + 1);
        for id in &current.parts {
            log.push(self.chain.parts.iter().find(|part| part.id == *id)?);
        }
        log.extend(
            self.fresh_chunks()
                .into_iter()
                .filter(|c| c.span.to_count <= to_count),
        );
        let gapless = log
            .windows(2)
            .all(|pair| pair[0].span.to_count == pair[1].span.from_count);
        gapless.then_some(log)
    }

    /// The user message that must stay raw if everything up to `to_count` is covered.
    pub(super) fn pin(&self, to_count: usize) -> Option<usize> {
        let newest = self
            .chain
            .nodes
            .iter()
            .rposition(|node| node.role == Role::User)?;
        (newest < to_count).then_some(newest)
    }

    /// Tokens of a request that covers `to_count` messages with a log of `log_tokens`.
    pub(super) fn request_tokens(
        &self,
        policy: &Policy,
        to_count: usize,
        pin: Option<usize>,
        log_tokens: u32,
    ) -> u32 {
        let block = if to_count == 0 {
            0
        } else {
            policy.block_overhead + log_tokens
        };
        let needs_reminder = to_count > 0 && pin.is_none() && self.begins_with_answer(to_count);
        let reminder = if needs_reminder {
            render::reminder_tokens()
        } else {
            0
        };
        block
            + reminder
            + pin.map_or(0, |index| self.chain.nodes[index].tokens)
            + node_tokens(&self.chain.nodes[to_count..])
    }

    /// Whether a tail from `to_count` on begins with an answer or a tool result. Then a reminder is
    /// sent before it.
    fn begins_with_answer(&self, to_count: usize) -> bool {
        self.chain.nodes[to_count..]
            .iter()
            .find(|node| node.role != Role::System)
            .is_some_and(|node| node.role != Role::User)
    }

    /// Tokens of `log` at most when it is sent. The beginning that is sent already is written as
    /// before, so only the rest can still grow to its maximum.
    pub(super) fn max_log_tokens(&self, log: &[&PartMeta]) -> u32 {
        let sent = self.current.and_then(|now| {
            let (before, rest) = log.split_at_checked(now.parts.len())?;
            let same = before
                .iter()
                .map(|part| part.id)
                .eq(now.parts.iter().copied());
            same.then(|| now.tokens.saturating_add(part_tokens(rest)))
        });
        sent.unwrap_or_else(|| part_tokens(log))
    }
}

/// Whether the messages behind the cut let `snapshot` be sent on this chain. Snapshots with text of
/// other conversations are left out: each has a twin with the same parts and without that text.
pub(super) fn is_usable(chain: &ChainState<'_>, snapshot: &SnapshotMeta) -> bool {
    let tail = chain.nodes.get(snapshot.to_count..).unwrap_or_default();
    snapshot.peer_memory.is_none()
        && select::alternates(snapshot, tail.iter().map(|node| node.role))
}

/// The chunks that follow each other without a gap from `from` and reach furthest, but not beyond `to`.
/// Chunks overlap if a process with another `buffer_tokens` cut the same chain.
fn longest_run(parts: &[PartMeta], from: usize, to: usize) -> Vec<&PartMeta> {
    let mut chunks: Vec<&PartMeta> = parts
        .iter()
        .filter(|part| part.kind == PartKind::Chunk)
        .filter(|part| part.span.from_count >= from && part.span.to_count <= to)
        .collect();
    chunks.sort_by_key(|part| std::cmp::Reverse(part.span.from_count));
    // For each start, the chunk that leads furthest. Later starts are computed first.
    let mut best: HashMap<usize, (usize, &PartMeta)> = HashMap::new();
    for chunk in chunks {
        let span = &chunk.span;
        let end = best
            .get(&span.to_count)
            .map_or(span.to_count, |(end, _)| *end);
        let rank =
            |end: usize, chunk: &PartMeta| (end, chunk.span.to_count, std::cmp::Reverse(chunk.id));
        match best.get(&span.from_count) {
            Some((other, known_chunk)) if rank(*other, known_chunk) >= rank(end, chunk) => {}
            _ => drop(best.insert(span.from_count, (end, chunk))),
        }
    }
    let mut at = from;
    let mut chain = Vec::new();
    while let Some((_, next)) = best.get(&at) {
        at = next.span.to_count;
        chain.push(*next);
    }
    chain
}

/// Where a run of parts ends; `from` if it is empty.
fn end_of_run(parts: &[&PartMeta], from: usize) -> usize {
    parts.last().map_or(from, |part| part.span.to_count)
}

/// The reflections up to `to_count`, in the order in which a log prefers to begin with them: those that
/// reach further first, then newer ones. The Reflector's reflection that reaches furthest comes before
/// older code-written ones, even if they reach further: it was made from the text that they left
/// something out of.
fn reflections(parts: &[PartMeta], to_count: usize) -> Vec<&PartMeta> {
    let mut sorted: Vec<&PartMeta> = parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection && part.span.to_count <= to_count)
        .collect();
    let reach = |part: &&PartMeta| (part.span.to_count, part.id);
    let by_model = sorted.iter().copied().filter(|part| !part.code_reflection);
    if let Some(best) = by_model.max_by_key(reach) {
        let older = sorted
            .iter()
            .filter(|part| part.code_reflection && part.id < best.id);
        let ends = older.chain([&best]).map(|part| part.span.to_count);
        let model_rank = ends.max().unwrap_or(0);
        sorted.sort_by_key(|part| {
            let own_rank = reach(part);
            std::cmp::Reverse((
                if part.id == best.id {
                    model_rank
                } else {
                    own_rank.0
                },
                own_rank.1,
            ))
        });
    } else {
        sorted.sort_by_key(|part| std::cmp::Reverse(reach(part)));
    }
    sorted
}

pub(super) fn node_tokens(nodes: &[Node]) -> u32 {
    nodes
        .iter()
        .fold(0, |sum, node| sum.saturating_add(node.tokens))
}

pub(super) fn part_tokens(parts: &[&PartMeta]) -> u32 {
    parts
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.tokens))
}
