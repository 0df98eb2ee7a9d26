//! A chain as the decisions of `advance` see it: what is observed, what is sent, what a request would
//! weigh. Derived from a [`Path`]; decides nothing.

use std::collections::HashMap;

use super::Path;
use crate::history::Role;
use crate::memory::{Node, PartId, PartKind, PartMeta, Policy, SnapshotMeta, render, select};

/// The chain as the decisions see it.
pub(super) struct View<'a> {
    pub(super) path: Path<'a>,
    /// Observed without a gap from the first message on.
    pub(super) chunks: Vec<&'a PartMeta>,
    /// The reflection that a log begins with, if any.
    pub(super) reflection: Option<&'a PartMeta>,
    /// What the next request on this chain will be sent with.
    pub(super) current: Option<&'a SnapshotMeta>,
    pub(super) confirmed: usize,
}

impl<'a> View<'a> {
    pub(super) fn of(path: &Path<'a>) -> Self {
        let reflection = reflections(path.parts, usize::MAX).first().copied();
        let next_length = path.nodes.len() + 1;
        let current = path
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.eligible_from <= next_length)
            .filter(|snapshot| usable(path, snapshot))
            .max_by_key(|snapshot| select::rank(snapshot));
        // On from what is sent: chunks of another cut may reach further, but to send those would be to
        // write anew what is cached (INV-PREFIX).
        let sent = current.map_or(0, |snapshot| snapshot.to_count);
        let mut chunks = reaching(path.parts, 0, sent);
        if end(&chunks, 0) == sent {
            chunks.extend(reaching(path.parts, sent, usize::MAX));
        } else {
            chunks = reaching(path.parts, 0, usize::MAX);
        }
        let confirmed = path.nodes.iter().take_while(|node| node.confirmed).count();
        Self {
            path: *path,
            chunks,
            reflection,
            current,
            confirmed,
        }
    }

    pub(super) fn observed(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk.span.to_count)
    }

    pub(super) fn covered(&self) -> usize {
        self.current.map_or(0, |snapshot| snapshot.to_count)
    }

    /// Tokens of the observations that are sent.
    pub(super) fn sent_tokens(&self) -> u32 {
        self.current.map_or(0, |snapshot| snapshot.tokens)
    }

    /// Tokens of the raw history the next request would carry, without its newest turn.
    pub(super) fn pending(&self) -> u32 {
        tokens(&self.path.nodes[self.covered().min(self.path.nodes.len())..])
    }

    /// Observed, but not in what is sent.
    pub(super) fn fresh_chunks(&self) -> Vec<&'a PartMeta> {
        let covered = self.covered();
        self.chunks
            .iter()
            .copied()
            .filter(|chunk| chunk.span.to_count > covered)
            .collect()
    }

    /// Chunks that reach beyond `to_count`, in order, whichever cut they are of and whatever lies between.
    pub(super) fn later(&self, to_count: usize) -> Vec<PartId> {
        let parts = self.path.parts.iter();
        let mut later: Vec<&PartMeta> = parts
            .filter(|part| part.kind == PartKind::Chunk && part.span.to_count > to_count)
            .collect();
        later.sort_by_key(|part| (part.span.to_count, part.span.from_count, part.id));
        later.iter().map(|part| part.id).collect()
    }

    /// The log up to `to_count`: the first reflection from which chunks lead there, and they.
    pub(super) fn log(&self, to_count: usize) -> Option<Vec<&'a PartMeta>> {
        self.logs(to_count).next()
    }

    /// The same as it is sent. Where what a Reflector wrote is too long together with what came after
    /// it, and what code made of both is not, that stays: code would only have to leave out more.
    pub(super) fn log_within(&self, to_count: usize, limit: u32) -> Option<Vec<&'a PartMeta>> {
        let mut logs = self.logs(to_count);
        let first = logs.next()?;
        let sent = self
            .current
            .is_some_and(|now| now.parts.contains(&first[0].id));
        // What is sent already is not gone back from.
        if sent || text_tokens(&first) < limit {
            return Some(first);
        }
        let short = logs.find(|log| log[0].stopgap && text_tokens(log) < limit);
        Some(short.unwrap_or(first))
    }

    /// Every log up to `to_count` without a gap, the preferred one first.
    fn logs(&self, to_count: usize) -> impl Iterator<Item = Vec<&'a PartMeta>> {
        let parts = self.path.parts;
        let starts = reflections(parts, to_count).into_iter().map(Some);
        starts
            .chain([None])
            .map(move |start| {
                let from = start.map_or(0, |reflection| reflection.span.to_count);
                let rest = reaching(parts, from, to_count);
                start.into_iter().chain(rest).collect::<Vec<_>>()
            })
            .filter(move |log| end(log, 0) == to_count && !log.is_empty())
    }

    /// The parts of what is sent now, followed by the chunks after it up to `to_count`.
    pub(super) fn continued(&self, to_count: usize) -> Option<Vec<&'a PartMeta>> {
        let Some(current) = self.current else {
            return self.log(to_count);
        };
        let mut log = Vec::with_capacity(current.parts.len() + 1);
        for id in &current.parts {
            log.push(self.path.parts.iter().find(|part| part.id == *id)?);
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

    /// The user message that must stand raw when everything up to `to_count` is covered.
    pub(super) fn pin(&self, to_count: usize) -> Option<usize> {
        let newest = self
            .path
            .nodes
            .iter()
            .rposition(|node| node.role == Role::User)?;
        (newest < to_count).then_some(newest)
    }

    /// Tokens of a request that covers `to_count` messages by a log of `log_tokens`.
    pub(super) fn size(
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
        let reminded = to_count > 0 && pin.is_none() && self.begins_with_answer(to_count);
        let reminder = if reminded {
            render::reminder_tokens()
        } else {
            0
        };
        block
            + reminder
            + pin.map_or(0, |index| self.path.nodes[index].tokens)
            + tokens(&self.path.nodes[to_count..])
    }

    /// Whether a tail from `to_count` on would not begin with the user: then a reminder is sent
    /// before it.
    fn begins_with_answer(&self, to_count: usize) -> bool {
        self.path.nodes[to_count..]
            .iter()
            .find(|node| node.role != Role::System)
            .is_some_and(|node| node.role != Role::User)
    }

    /// Tokens that `log` comes to at most when it is sent. What goes on from what is sent now is written as
    /// it was, so only the rest can still come to its whole weight.
    pub(super) fn at_most(&self, log: &[&PartMeta]) -> u32 {
        let sent = self.current.and_then(|now| {
            let (before, rest) = log.split_at_checked(now.parts.len())?;
            let same = before
                .iter()
                .map(|part| part.id)
                .eq(now.parts.iter().copied());
            same.then(|| now.tokens.saturating_add(text_tokens(rest)))
        });
        sent.unwrap_or_else(|| text_tokens(log))
    }
}

/// Whether the messages behind the cut let `snapshot` be sent on this chain. What holds other
/// conversations' text decides nothing: it stands beside one of the same parts that does not.
pub(super) fn usable(path: &Path<'_>, snapshot: &SnapshotMeta) -> bool {
    let tail = path.nodes.get(snapshot.to_count..).unwrap_or_default();
    snapshot.others.is_none() && select::alternates(snapshot, tail.iter().map(|node| node.role))
}

/// Chunks that follow each other without a gap from `from` and reach as far as any do, but not
/// beyond `to`. Chunks overlap where a process with another `buffer_tokens` cut the same chain.
fn reaching(parts: &[PartMeta], from: usize, to: usize) -> Vec<&PartMeta> {
    let mut chunks: Vec<&PartMeta> = parts
        .iter()
        .filter(|part| part.kind == PartKind::Chunk)
        .filter(|part| part.span.from_count >= from && part.span.to_count <= to)
        .collect();
    chunks.sort_by_key(|part| std::cmp::Reverse(part.span.from_count));
    // For each start where its best chunk leads in the end; the later ones are known first.
    let mut best: HashMap<usize, (usize, &PartMeta)> = HashMap::new();
    for chunk in chunks {
        let span = &chunk.span;
        let end = best
            .get(&span.to_count)
            .map_or(span.to_count, |(end, _)| *end);
        let rank =
            |end: usize, chunk: &PartMeta| (end, chunk.span.to_count, std::cmp::Reverse(chunk.id));
        match best.get(&span.from_count) {
            Some((other, known)) if rank(*other, known) >= rank(end, chunk) => {}
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

/// Where a run of parts ends; `from` where there is none.
fn end(parts: &[&PartMeta], from: usize) -> usize {
    parts.last().map_or(from, |part| part.span.to_count)
}

/// The reflections up to `to_count`, in the order in which a log would rather begin with them: what
/// reaches further first, then what is newer. A Reflector's furthest stands before the stopgaps that
/// are older, though it may not reach as far: it was made of what they left something out of.
fn reflections(parts: &[PartMeta], to_count: usize) -> Vec<&PartMeta> {
    let mut found: Vec<&PartMeta> = parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection && part.span.to_count <= to_count)
        .collect();
    let reach = |part: &&PartMeta| (part.span.to_count, part.id);
    let written = found.iter().copied().filter(|part| !part.stopgap);
    if let Some(best) = written.max_by_key(reach) {
        let older = found
            .iter()
            .filter(|part| part.stopgap && part.id < best.id);
        let ends = older.chain([&best]).map(|part| part.span.to_count);
        let stands_at = ends.max().unwrap_or(0);
        found.sort_by_key(|part| {
            let own = reach(part);
            std::cmp::Reverse((if part.id == best.id { stands_at } else { own.0 }, own.1))
        });
    } else {
        found.sort_by_key(|part| std::cmp::Reverse(reach(part)));
    }
    found
}

pub(super) fn tokens(nodes: &[Node]) -> u32 {
    nodes
        .iter()
        .fold(0, |sum, node| sum.saturating_add(node.tokens))
}

pub(super) fn text_tokens(parts: &[&PartMeta]) -> u32 {
    parts
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.tokens))
}
