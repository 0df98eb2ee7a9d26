//! The store in memory, by the rules `diarist::store` documents. No SQL, no clock, no process.

use std::collections::{HashMap, HashSet};

use diarist::history::{Link, Scope};
use diarist::memory::advance::{ChainJob, JobState};
use diarist::memory::record::{ContentKey, MessageContent};
use diarist::memory::{
    NewPart, Node, Part, PartId, PartKind, PartMeta, Rendering, Snapshot, SnapshotId, SnapshotMeta,
    Span,
};

use super::conversation::Digest;
use super::exchange::Used;

/// What the store knows of one chain.
#[derive(Debug, Default)]
pub struct Known {
    pub nodes: Vec<Node>,
    pub parts: Vec<PartMeta>,
    pub snapshots: Vec<SnapshotMeta>,
    pub work: Vec<ChainJob>,
}

/// A job in the queue.
#[derive(Clone, Debug)]
pub struct Job {
    pub scope: Scope,
    /// Who sent the request that made it due.
    pub owner: String,
    pub kind: PartKind,
    pub span: Span,
    pub message_tokens: u32,
    /// What the Observer is shown.
    pub shown: Vec<Digest>,
    /// What the Reflector condenses.
    pub sources: Vec<PartId>,
    pub due: usize,
    pub empty: u32,
    pub state: JobState,
}

/// A snapshot before it has an id.
#[derive(Debug)]
pub struct NewSnapshot {
    pub meta: SnapshotMeta,
    pub segments: Vec<String>,
    pub tip: Link,
    pub at_once: bool,
}

/// What the Observer was shown of an owner's conversations, against what was confirmed of them.
#[derive(Debug, Default)]
struct Account {
    contents: HashSet<ContentKey>,
    confirmed: u32,
    shown: u32,
    paused: bool,
}

#[derive(Debug)]
struct Row {
    scope: Scope,
    node: Node,
}

/// The store.
#[derive(Debug, Default)]
pub struct World {
    nodes: HashMap<Link, Row>,
    children: HashMap<Link, Vec<Link>>,
    parts: Vec<(Scope, Part)>,
    snapshots: Vec<(Scope, Snapshot)>,
    ends: HashMap<Link, Vec<usize>>,
    part_ends: HashMap<Link, Vec<usize>>,
    sent: HashMap<(Scope, Link), Used>,
    accounts: HashMap<Scope, Account>,
    pub jobs: Vec<Job>,
    /// Parts are looked up by their place alone (a planted bug).
    pub any_branch: bool,
    /// What is confirmed counts anew on every chain (a planted bug).
    pub any_chain: bool,
    /// Every snapshot may be used at once (a planted bug).
    pub any_length: bool,
}

impl World {
    /// What the request with this tip was sent with, if it was.
    pub fn pin(&self, scope: &Scope, tip: Link) -> Option<Used> {
        self.sent.get(&(scope.clone(), tip)).copied()
    }

    /// Forgets what requests were sent with.
    pub fn forget_sent(&mut self) {
        self.sent.clear();
    }

    /// Snapshots that end on `chain`.
    pub fn ending_on(&self, scope: &Scope, chain: &[Link]) -> Vec<SnapshotMeta> {
        chain
            .iter()
            .filter_map(|link| self.ends.get(link))
            .flatten()
            .map(|at| &self.snapshots[*at])
            .filter(|(owner, _)| owner == scope)
            .map(|(_, snapshot)| snapshot.meta.clone())
            .collect()
    }

    pub fn snapshot(&self, scope: &Scope, id: SnapshotId) -> Option<&Snapshot> {
        let (owner, snapshot) = self.snapshots.get(usize::try_from(id.0).unwrap())?;
        (owner == scope).then_some(snapshot)
    }

    pub fn known(&self, scope: &Scope, chain: &[Link]) -> Known {
        let nodes: Vec<Node> = chain
            .iter()
            .map_while(|link| self.nodes.get(link))
            .take_while(|row| row.scope == *scope)
            .map(|row| row.node)
            .collect();
        let on: HashSet<Link> = chain.iter().copied().collect();
        let meta = |part: &Part| part.body.meta(part.id);
        let mut parts: Vec<PartMeta> = if self.any_branch {
            self.parts
                .iter()
                .filter(|(owner, part)| owner == scope && part.body.span.to_count <= chain.len())
                .map(|(_, part)| meta(part))
                .collect()
        } else {
            chain
                .iter()
                .filter_map(|link| self.part_ends.get(link))
                .flatten()
                .map(|at| &self.parts[*at])
                .filter(|(owner, _)| owner == scope)
                .map(|(_, part)| meta(part))
                .collect()
        };
        parts.sort_by_key(|part| (part.span.to_count, part.id));
        let mut snapshots = self.ending_on(scope, chain);
        snapshots.sort_by_key(|snapshot| (snapshot.to_count, snapshot.id));
        let work = self
            .jobs
            .iter()
            .filter(|job| job.scope == *scope && on.contains(&job.span.to))
            .map(|job| ChainJob {
                kind: job.kind,
                span: job.span,
                state: job.state,
            })
            .collect();
        Known {
            nodes,
            parts,
            snapshots,
            work,
        }
    }

    /// Writes down what an accepted request adds. The first to say what a request was sent with
    /// has said it.
    pub fn record(
        &mut self,
        scope: &Scope,
        parent: Link,
        new: &[Node],
        confirm: &[Link],
        tip: Link,
        used: Used,
    ) {
        let mut parent = parent;
        for node in new {
            let row = Row {
                scope: scope.clone(),
                node: *node,
            };
            if self.nodes.insert(node.link, row).is_none() {
                self.children.entry(parent).or_default().push(node.link);
            }
            parent = node.link;
        }
        for link in confirm {
            if let Some(row) = self.nodes.get_mut(link) {
                row.node.confirmed = true;
            }
        }
        self.sent.entry((scope.clone(), tip)).or_insert(used);
    }

    /// What was confirmed raises what the Observer may be shown, each content once.
    pub fn credit(&mut self, scope: &Scope, contents: &[MessageContent]) {
        let account = self.accounts.entry(scope.clone()).or_default();
        account.paused &= contents.is_empty();
        for content in contents {
            if account.contents.insert(content.key) || self.any_chain {
                account.confirmed += content.tokens;
            }
        }
    }

    /// Whether the Observer was shown all it may be for what is confirmed.
    pub fn paused(&self, scope: &Scope) -> bool {
        self.accounts
            .get(scope)
            .is_some_and(|account| account.paused)
    }

    /// The Observer is shown a range once more.
    pub fn charge(&mut self, scope: &Scope, tokens: u32) {
        self.accounts.entry(scope.clone()).or_default().shown += tokens;
    }

    /// Puts a job into the queue, unless its span has one or has its part, or the Observer was shown
    /// 1.5 times what is confirmed.
    pub fn offer(&mut self, job: Job) -> bool {
        let same_span = |span: &Span| span.from == job.span.from && span.to == job.span.to;
        let queued = self.jobs.iter().any(|other| {
            other.scope == job.scope && other.kind == job.kind && same_span(&other.span)
        });
        let written = self
            .part_of(&job.scope, job.kind, &job.span, false)
            .is_some();
        let mut new = !queued && !written;
        if new && job.kind == PartKind::Chunk {
            let account = self.accounts.entry(job.scope.clone()).or_default();
            let shown = account.shown + job.message_tokens;
            // Nothing behind a range that was not taken: it would have no log to go on from.
            account.paused |= shown * 2 > account.confirmed * 3;
            new = !account.paused;
            if new {
                account.shown = shown;
            }
        }
        if new {
            self.jobs.push(job);
        }
        new
    }

    fn part_of(&self, scope: &Scope, kind: PartKind, span: &Span, stopgap: bool) -> Option<PartId> {
        let at = self.part_ends.get(&span.to)?;
        at.iter()
            .map(|at| &self.parts[*at])
            .find(|(owner, part)| {
                let body = &part.body;
                owner == scope
                    && (body.kind, body.code_reflection) == (kind, stopgap)
                    && body.span.from == span.from
            })
            .map(|(_, part)| part.id)
    }

    /// Stores the part of a job and takes the job out; a stopgap leaves it where it is.
    pub fn commit_part(&mut self, job: &Job, body: NewPart) {
        self.jobs.retain(|other| {
            body.code_reflection
                || other.scope != job.scope
                || other.kind != job.kind
                || other.span != job.span
        });
        let known = self.part_of(&job.scope, body.kind, &body.span, body.code_reflection);
        if known.is_none() {
            let at = self.parts.len();
            let id = PartId(i64::try_from(at).unwrap());
            self.part_ends.entry(body.span.to).or_default().push(at);
            let rendering = None;
            let part = Part {
                id,
                rendering,
                body,
            };
            self.parts.push((job.scope.clone(), part));
        }
    }

    pub fn part(&self, scope: &Scope, id: PartId) -> Option<&Part> {
        let (owner, part) = self.parts.get(usize::try_from(id.0).unwrap())?;
        (owner == scope).then_some(part)
    }

    /// The parts as a block is to write them: for ever as the first one did.
    pub fn freeze(
        &mut self,
        scope: &Scope,
        ids: &[PartId],
        rendering: Rendering,
    ) -> Option<Vec<Part>> {
        ids.iter()
            .map(|id| {
                let (owner, part) = self.parts.get_mut(usize::try_from(id.0).unwrap())?;
                part.rendering.get_or_insert(rendering);
                (owner == scope).then(|| part.clone())
            })
            .collect()
    }

    /// Commits a snapshot; decides from which length it may be used. Where an equal one exists, that
    /// one is returned. Whether it is new stands beside it.
    pub fn commit_snapshot(&mut self, scope: &Scope, mut new: NewSnapshot) -> (SnapshotId, bool) {
        new.meta.eligible_from = match (self.any_length, new.at_once) {
            (true, _) => 1,
            (_, true) => new.meta.eligible_from,
            _ => self.longest(new.tip) + 1,
        };
        let equal = self
            .ends
            .get(&new.meta.to)
            .into_iter()
            .flatten()
            .map(|at| &self.snapshots[*at])
            .find(|(owner, old)| {
                owner == scope
                    && old.segments == new.segments
                    && old.meta.parts == new.meta.parts
                    && old.meta.pin == new.meta.pin
                    && old.meta.eligible_from <= new.meta.eligible_from
            });
        if let Some((_, old)) = equal {
            return (old.meta.id, false);
        }
        let at = self.snapshots.len();
        new.meta.id = SnapshotId(i64::try_from(at).unwrap());
        self.ends.entry(new.meta.to).or_default().push(at);
        let snapshot = Snapshot {
            meta: new.meta,
            segments: new.segments,
        };
        self.snapshots.push((scope.clone(), snapshot));
        (SnapshotId(i64::try_from(at).unwrap()), true)
    }

    /// The length of the longest recorded chain that extends `tip`.
    fn longest(&self, tip: Link) -> usize {
        let mut longest = 0;
        let mut open = vec![tip];
        while let Some(link) = open.pop() {
            longest = longest.max(self.nodes.get(&link).map_or(0, |row| row.node.count));
            open.extend(self.children.get(&link).into_iter().flatten());
        }
        longest
    }
}
