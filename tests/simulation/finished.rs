//! Tasks that are finished, and the law about their hints.
//!
//! Some chunks say first that what was under way before them is done. No snapshot is prepared with a hint of
//! that by a process which has heard of such a chunk.

use std::collections::HashSet;

use diarist::history::{Link, Scope};
use diarist::memory::{PartKind, Snapshot, Span};

use super::ledger::Ledger;
use super::range::Range;
use super::rules::Rule;
use crate::properties::conversation::Run;

/// Chunks that each process has heard of, by their ends.
pub type EndedJobs = HashSet<(usize, Scope, Link)>;

/// What is under way at the end of `run`, in words that no other has.
pub fn task(run: Run) -> String {
    let [first, second] = [run.hash % 10_000, run.hash / 10_000 % 10_000];
    format!("x{first:04} y{second:04}")
}

/// The line that one in four chunks begins with.
pub fn line(range: &Range) -> Option<String> {
    let before = Run::from_digests(&range.chain[..range.from]);
    let reports_end = range.from > 0 && range.whole().hash.is_multiple_of(4);
    reports_end.then(|| format!("* ✅ {} {}", task(before), before.hash))
}

impl Ledger {
    /// `process` was told that the job of `span` has ended.
    pub fn job_ended(&mut self, process: usize, scope: &Scope, span: &Span) {
        self.finished.insert((process, scope.clone(), span.to));
    }

    /// `process` prepared `snapshot` for the chain that ends in `tip`; what a fork of it says is done is not
    /// done there.
    pub fn hinted(&mut self, process: usize, scope: &Scope, tip: Link, snapshot: &Snapshot) {
        if !self.is_new(snapshot) {
            return;
        }
        let chain: HashSet<Link> = self.chain(tip).into_iter().collect();
        let hint = snapshot
            .segments
            .last()
            .filter(|last| last.contains("[[T "));
        let task = task(Run::from_digests(&self.digests(snapshot.meta.to)));
        let done = self.chunks_after(scope, snapshot.meta.to);
        let done = done.filter(|(_, text)| text.contains(&format!("✅ {task}")));
        let ended = |to: &Link| self.finished.contains(&(process, scope.clone(), *to));
        let done = done.filter(|(to, _)| ended(to) && chain.contains(to));
        let done = done.count();
        self.counts.finished += usize::from(done > 0);
        if done > 0 && hint.is_some_and(|hint| hint.contains(&task)) {
            self.breach(
                Rule::Hints,
                format!("{task} is a hint, and known to be done"),
            );
        }
    }

    /// Chunks that begin at `from`: where they end, and what they say.
    fn chunks_after<'a>(
        &'a self,
        scope: &'a Scope,
        from: Link,
    ) -> impl Iterator<Item = (Link, &'a str)> {
        let parts = self.scope_parts(scope);
        let chunks = parts.filter(move |part| part.kind == PartKind::Chunk);
        let after = chunks.filter(move |part| part.span.from == from);
        after.map(|part| (part.span.to, &*part.text))
    }
}
