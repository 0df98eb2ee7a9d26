//! The cached entries, and what can be read from them without the store. All of it is behind one lock;
//! nothing here waits.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::base_chains::BaseChains;
use super::held_alignments::HeldAlignments;
use super::origin_index::{SeenOrigins, Tenant};
use super::outcome::LookupParams;
use super::pins::{Key, Pins};
use super::sizes::{self, ENTRY_BYTES};
use crate::history::align::MessageOrigin;
use crate::history::{History, Link, PathMessage, Scope, ScopedHash, anchor};
use crate::memory::alignment::{
    Alignment, BaseChain, Evidence, LineageName, Origin, PathEntry, StoredAlignment,
    SummaryCandidate, Witness,
};
use crate::memory::{Snapshot, SnapshotId, SnapshotMeta};
use crate::store::Candidates;

/// The cache holds at most this many bytes of texts and index entries.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;

/// So many of them may be held alignments that no request in flight needs.
const MAX_HELD_BYTES: usize = MAX_BYTES / 4;

/// The alignment of a request that may have been sent before.
#[derive(Clone, Debug)]
pub(super) enum PinnedAlignment {
    /// It was sent on its own chain.
    OwnChain,
    /// It was sent with this alignment.
    Aligned(Box<Alignment>),
    /// It was not sent, so its alignment is still to be decided.
    Undecided,
}

impl PinnedAlignment {
    /// The alignment of the request, if it has one. `align` decides it if the request was not sent before.
    pub(super) fn or_align(self, align: impl FnOnce() -> Option<Alignment>) -> Option<Alignment> {
        match self {
            Self::OwnChain => None,
            Self::Aligned(alignment) => Some(*alignment),
            Self::Undecided => align(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct CacheState {
    pub(super) complete_links: HashSet<Key>,
    pub(super) snapshots_by_end: HashMap<Key, Vec<SnapshotMeta>>,
    /// Snapshots that are not stored yet, by the last link of the request that each was made for.
    pub(super) unstored_snapshots: HashMap<Key, Vec<SnapshotMeta>>,
    pub(super) pins: Pins,
    /// Ends of the ranges at which observation is paused.
    pub(super) paused: HashSet<Key>,
    pub(super) texts: HashMap<([u8; 32], SnapshotId), Arc<Snapshot>>,
    /// Recorded messages, with the marks by which requests find them that do not continue their chain.
    pub(super) steps: HashMap<Key, PathEntry>,
    pub(super) anchors: HashMap<([u8; 32], ScopedHash), Link>,
    pub(super) alignments: HashMap<Key, StoredAlignment>,
    /// The chains that these lead to.
    base_chains: BaseChains,
    /// Alignments of requests that were sent and are not recorded yet.
    pub(super) held_alignments: HeldAlignments,
    /// Ends of ranges that are observed or queued.
    pub(super) range_ends: HashSet<Key>,
    /// Peer intros: those that requests were sent with, and the latest of each owner.
    pub(super) peer_intros: HashMap<([u8; 32], SnapshotId), SnapshotMeta>,
    /// The latest peer intro of each owner, by the root of its chains.
    pub(super) newest_peer_intro: HashMap<Key, SnapshotId>,
    /// Messages whose text is in the message archive.
    pub(super) kept_messages: HashSet<Key>,
    /// What requests of owners with a resource were sent with, by the message before their newest one.
    pub(super) sent_prefixes: HashMap<Key, Option<SnapshotId>>,
    /// Messages with a successor that are so near to the beginning that conversations may share them by
    /// chance.
    pub(super) continued: HashSet<Key>,
    /// The names of lineages.
    pub(super) lineage_names: HashMap<([u8; 32], i64), LineageName>,
    /// Thread keys that several lineages have.
    pub(super) shared_keys: HashSet<([u8; 32], String)>,
    /// Bytes of all of these but the held alignments.
    pub(super) bytes: usize,
}

/// The anchors of this many messages are looked up, the latest first. If none of them is recorded, the
/// request has no other chain.
const MAX_ANCHORS: usize = 96;

/// Anchors of the messages of `client` from `from` on, the latest first, each with its position.
pub fn anchors(client: &History, from: usize) -> impl Iterator<Item = (ScopedHash, usize)> {
    let root = client.root();
    let from = from.max(1).max(client.len().saturating_sub(MAX_ANCHORS));
    (from..client.len()).rev().filter_map(move |place| {
        let (previous, current) = (client.message_key(place - 1), client.message_key(place));
        anchor(&root, &previous, &current).map(|mark| (mark, place))
    })
}

/// Adds the upstream's answer to the end of `path`, if the request continues with it. The end of `path` is the
/// message at `place` of `client`. An answer is recorded only when a request has carried it back.
fn add_answer(
    path: &mut Vec<PathEntry>,
    client: &History,
    place: usize,
    seen_origins: SeenOrigins<'_>,
) {
    let (Some(end), Some(next)) = (path.last().copied(), client.turns().get(place + 1)) else {
        return;
    };
    let item = client.message_key(place + 1);
    let tip = end.message.link;
    let Some(origin) = seen_origins.answer_origin(tip, item.ids.unwrap_or(item.content)) else {
        return;
    };
    let step = PathEntry {
        message: PathMessage {
            link: tip.next(&next.message.fingerprint),
            role: next.message.role,
        },
        parent: tip,
        message_key: Some(item),
        anchor: None,
        range_end: false,
        live: true,
        text_kept: false,
        lineage: end.lineage,
        origin,
        message_origin: MessageOrigin {
            from_upstream: true,
            unshared: true,
        },
        summary_start: None,
        pending: true,
    };
    path.push(check_uniqueness(step, seen_origins));
}

/// Updates whether the message is unique to its conversation, by what this process has seen since it was
/// read.
fn check_uniqueness(mut step: PathEntry, seen_origins: SeenOrigins<'_>) -> PathEntry {
    let witness = step.witness().map(|mark| Witness {
        hash: mark,
        origin: step.origin,
    });
    let has_origin = step.origin != Origin::default();
    step.message_origin.unshared &=
        has_origin && witness.is_some_and(|witness| !seen_origins.is_contested(&witness));
    step
}

impl CacheState {
    /// The alignment of `client`, if it was sent before and is pinned, recorded or not.
    pub(super) fn pinned_alignment(
        &self,
        scope: &Scope,
        client: &History,
        params: &LookupParams<'_>,
        seen_origins: SeenOrigins<'_>,
    ) -> PinnedAlignment {
        let Some(tip) = client.tip() else {
            return PinnedAlignment::Undecided;
        };
        let key = (scope.tenant, tip);
        if self.pins.contains(&key) {
            return PinnedAlignment::OwnChain;
        }
        let is_pinned = |alignment: &&Arc<Alignment>| {
            let tip = alignment.history.tip();
            tip.is_some_and(|tip| self.pins.contains(&(scope.tenant, tip)))
        };
        let is_proven =
            |alignment: &&Arc<Alignment>| self.still_proven(scope, alignment, params, seen_origins);
        match self
            .held_alignments
            .get(&key)
            .filter(is_pinned)
            .filter(is_proven)
        {
            Some(held) => PinnedAlignment::Aligned(Box::new(Alignment::clone(held))),
            None => PinnedAlignment::Undecided,
        }
    }

    /// Whether the proof of `alignment` still holds for a request with this thread key.
    fn still_proven(
        &self,
        scope: &Scope,
        alignment: &Alignment,
        params: &LookupParams<'_>,
        seen_origins: SeenOrigins<'_>,
    ) -> bool {
        let name = alignment
            .lineage
            .and_then(|lineage| self.lineage_name(scope, lineage));
        let evidence = Evidence {
            key: params.thread_key.map(str::to_owned),
            level: params.level,
            ..Evidence::default()
        };
        let is_contested = |witness: &Witness| seen_origins.is_contested(witness);
        alignment.proof.is_empty()
            || (evidence.allows_restoring_lineage(name.as_ref())
                && !alignment.proof.iter().any(is_contested))
    }

    /// Holds the alignment of a request in flight until it is recorded. If that never happens, until there are too many.
    pub(super) fn hold_alignment(&mut self, key: Key, alignment: Arc<Alignment>) {
        self.held_alignments.insert(key, alignment);
        let pins = &self.pins;
        self.held_alignments
            .shrink(MAX_HELD_BYTES, |(tenant, _), held| {
                let tip = held.history.tip();
                tip.is_some_and(|tip| pins.is_in_flight(&(*tenant, tip)))
            });
        self.make_room(0);
    }

    /// What this process knows of chains that `client` may be aligned with; and whether the cache is complete
    /// for `client` if it is aligned with none.
    pub(super) fn evidence(
        &mut self,
        scope: &Scope,
        client: &History,
        params: &LookupParams<'_>,
        seen_origins: SeenOrigins<'_>,
    ) -> (Evidence, bool) {
        let mut evidence = Evidence {
            key: params.thread_key.map(str::to_owned),
            level: params.level,
            ..Evidence::default()
        };
        // The newest message first: what is looked for usually stands at the end, and a look at each message of a long
        // conversation would take a large part of a warm request's time.
        let turns = || client.turns().iter().enumerate().rev();
        let key = |link: &Link| (scope.tenant, *link);
        let recorded = turns().find_map(|(index, turn)| {
            let step = self.steps.get(&key(&turn.link))?;
            Some((index + 1, step))
        });
        if let Some((count, step)) = recorded {
            (evidence.recorded_count, evidence.recorded_lineage) = (count, Some(step.lineage));
            evidence.recorded_origin = step.origin;
        }
        let newest_alignment = turns().find_map(|(_, turn)| self.alignments.get(&key(&turn.link)));
        let complete = self.has_complete_link(scope, client);
        if let Some(view) = newest_alignment.cloned() {
            // Only of the newest one: a conversation that was aligned once has one for each request.
            let base = self.base_chain(scope, view.base);
            evidence.stored_holds = view.proof.iter().all(|w| !seen_origins.is_contested(w));
            evidence.stored = Some((view, base));
        }
        let aligned_count = evidence.stored.as_ref().map_or(0, |(view, _)| view.count);
        let hit = anchors(client, aligned_count.max(evidence.recorded_count))
            .find_map(|(mark, place)| Some((*self.anchors.get(&(scope.tenant, mark))?, place)));
        if let Some((link, place)) = hit {
            evidence.path = self.path(scope, link, seen_origins);
            add_answer(&mut evidence.path, client, place, seen_origins);
        }
        let base = evidence
            .stored
            .iter()
            .filter_map(|(_, base)| base.lineage());
        let ends = base.chain(evidence.path.last().map(|end| end.lineage));
        let names = ends.filter_map(|lineage| Some((lineage, self.lineage_name(scope, lineage)?)));
        evidence.lineage_names = names.collect();
        // An anchor or alignment that leads to another chain may be proven by entries only the store has.
        let is_complete = complete && hit.is_none() && aligned_count <= evidence.recorded_count;
        (evidence, is_complete)
    }

    /// The chain that a request was aligned to, up to `end`; empty unless all its messages are cached.
    fn base_chain(&mut self, scope: &Scope, end: Link) -> Arc<BaseChain> {
        let Some((chain, added)) = self.base_chains.chain(&self.steps, scope, end) else {
            return Arc::default();
        };
        // No room is made for it here: that could drop what this look-up is about to read.
        self.bytes += added;
        chain
    }

    /// The recorded chain up to `link`; empty unless all its messages are cached.
    pub(super) fn path(
        &self,
        scope: &Scope,
        link: Link,
        seen_origins: SeenOrigins<'_>,
    ) -> Vec<PathEntry> {
        let root = Link::root(scope);
        let mut path = Vec::new();
        let mut at = link;
        while at != root {
            let key = (scope.tenant, at);
            let Some(step) = self.steps.get(&key) else {
                return Vec::new();
            };
            let step = PathEntry {
                range_end: step.range_end || self.range_ends.contains(&key),
                text_kept: self.kept_messages.contains(&key),
                ..*step
            };
            path.push(check_uniqueness(step, seen_origins));
            at = step.parent;
        }
        path.reverse();
        path
    }

    pub(super) fn has_complete_link(&self, scope: &Scope, history: &History) -> bool {
        // The end of the previous request is near the end of this one.
        let mut turns = history.turns().iter().rev();
        turns.any(|turn| self.complete_links.contains(&(scope.tenant, turn.link)))
    }

    pub(super) fn add_step(&mut self, scope: &Scope, step: &PathEntry) {
        let key = (scope.tenant, step.message.link);
        if let Some(existing) = self.steps.get_mut(&key) {
            existing.message_origin.unshared &= step.message_origin.unshared;
            return;
        }
        self.add_bytes(2 * ENTRY_BYTES);
        if self.may_be_chance(scope, step.parent) {
            self.continued.insert((scope.tenant, step.parent));
        }
        self.steps.insert(key, *step);
        if let Some(anchor) = step.anchor {
            self.anchors
                .insert((scope.tenant, anchor), step.message.link);
        }
    }

    /// Adds the name of a lineage. A thread key that several lineages have names none of them.
    pub(super) fn add_lineage_name(&mut self, scope: &Scope, lineage: i64, name: &LineageName) {
        if let Some(key) = name.key.as_ref().filter(|_| !name.is_unique) {
            self.shared_keys.insert((scope.tenant, key.clone()));
        }
        if self
            .lineage_names
            .insert((scope.tenant, lineage), name.clone())
            .is_none()
        {
            self.bytes += sizes::of_name(name);
        }
    }

    /// The name of a lineage, if it is cached.
    fn lineage_name(&self, scope: &Scope, lineage: i64) -> Option<LineageName> {
        let name = self.lineage_names.get(&(scope.tenant, lineage))?;
        let is_shared = |key: &String| self.shared_keys.contains(&(scope.tenant, key.clone()));
        Some(LineageName {
            is_unique: name.is_unique && !name.key.as_ref().is_some_and(is_shared),
            key: name.key.clone(),
        })
    }

    /// Adds what the store found, and returns the evidence for an alignment of `client` in it. Takes the other
    /// chains out of `candidates`.
    pub(super) fn add_candidates(
        &mut self,
        scope: &Scope,
        client: &History,
        candidates: &mut Candidates,
        params: &LookupParams<'_>,
        seen_origins: SeenOrigins<'_>,
    ) -> Evidence {
        let peer_intros = candidates
            .peer_intros
            .iter()
            .chain(&candidates.newest_peer_intro);
        for meta in candidates.snapshots.iter().chain(peer_intros) {
            self.add_snapshot(scope, meta);
        }
        let (hit, path) = candidates.path.take().unwrap_or_default();
        let answered = candidates
            .answered
            .as_ref()
            .map(|found| found.path.as_slice());
        for step in path
            .iter()
            .chain(&candidates.base_chain)
            .chain(answered.unwrap_or_default())
        {
            self.add_step(scope, step);
            if step.range_end {
                self.range_ends.insert((scope.tenant, step.message.link));
            }
            if step.text_kept {
                self.add_kept_message((scope.tenant, step.message.link));
            }
        }
        for (lineage, name) in &candidates.lineage_names {
            self.add_lineage_name(scope, *lineage, name);
        }
        let aligned_count = candidates.alignment.as_ref().map_or(0, |view| view.count);
        let checked_path = |path: Vec<PathEntry>| {
            path.into_iter()
                .map(|step| check_uniqueness(step, seen_origins))
                .collect()
        };
        let proof = candidates.alignment.iter().flat_map(|view| &view.proof);
        let alignment_holds =
            candidates.alignment_holds && !proof.into_iter().any(|w| seen_origins.is_contested(w));
        Evidence {
            recorded_count: candidates.depth,
            recorded_origin: candidates.depth_origin,
            recorded_lineage: candidates.lineage,
            stored: candidates.alignment.take().map(|stored| {
                let base = std::mem::take(&mut candidates.base_chain);
                (stored, Arc::new(base.iter().collect()))
            }),
            stored_holds: alignment_holds,
            // A request that continues a stored alignment is found by that.
            path: if hit >= aligned_count {
                let mut path = checked_path(path);
                add_answer(&mut path, client, hit, seen_origins);
                path
            } else {
                Vec::new()
            },
            summary: candidates.answered.take().map(|answered| {
                let witness = Witness {
                    hash: answered.hash,
                    origin: answered.origin(),
                };
                SummaryCandidate {
                    is_unique: answered.is_unique && !seen_origins.is_contested(&witness),
                    ..answered
                }
            }),
            key: params.thread_key.map(str::to_owned),
            lineage_names: candidates.lineage_names.drain(..).collect(),
            level: params.level,
        }
    }

    /// Marks that the text of a message is in the message archive.
    pub(super) fn add_kept_message(&mut self, message: Key) {
        if !self.kept_messages.contains(&message) {
            self.add_bytes(ENTRY_BYTES);
            self.kept_messages.insert(message);
        }
    }

    pub(super) fn add_snapshot(&mut self, scope: &Scope, meta: &SnapshotMeta) {
        if meta.is_peer_intro() {
            let new = self
                .peer_intros
                .insert((scope.tenant, meta.id), meta.clone());
            if new.is_none() {
                self.bytes += sizes::of_snapshot_meta(meta);
            }
            let newest = self.newest_peer_intro.entry((scope.tenant, meta.to));
            let newest = newest.or_insert(meta.id);
            *newest = meta.id.max(*newest);
            return;
        }
        let ends = self
            .snapshots_by_end
            .entry((scope.tenant, meta.to))
            .or_default();
        if ends.iter().all(|known| known.id != meta.id) {
            ends.push(meta.clone());
            self.bytes += sizes::of_snapshot_meta(meta);
        }
    }

    /// Adds the text of a snapshot.
    pub(super) fn add_text(&mut self, scope: &Scope, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        let key = (scope.tenant, snapshot.meta.id);
        self.texts.insert(key, Arc::clone(&snapshot));
        snapshot
    }

    /// Makes room for `bytes` more. If they do not fit, everything is dropped but what requests in flight need: a
    /// cache that lost single entries would no longer be complete for their chains.
    pub(super) fn make_room(&mut self, bytes: usize) {
        if self.bytes + self.held_alignments.bytes() + bytes > MAX_BYTES {
            self.drop_all_but_in_flight();
        }
    }

    /// Makes room for `bytes` more and counts them.
    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.make_room(bytes);
        self.bytes += bytes;
    }

    /// Drops everything but what requests in flight were sent with. Equal requests that come meanwhile are sent alike
    /// (INV-SAME): the store does not know yet what the first one was sent with.
    pub(super) fn drop_all_but_in_flight(&mut self) {
        let mut alignments = std::mem::take(&mut self.held_alignments);
        let mut unstored = std::mem::take(&mut self.unstored_snapshots);
        let mut texts = std::mem::take(&mut self.texts);
        self.drop_all_but_pins_in_flight();
        alignments.retain(|(tenant, _), alignment| {
            let tip = alignment.history.tip();
            tip.is_some_and(|tip| self.pins.contains(&(*tenant, tip)))
        });
        unstored.retain(|key, _| self.pins.contains(key));
        let needed: HashSet<([u8; 32], SnapshotId)> = unstored
            .iter()
            .flat_map(|((tenant, _), metas)| metas.iter().map(|meta| (*tenant, meta.id)))
            .collect();
        texts.retain(|key, _| needed.contains(key));
        let text_bytes = texts.values().map(|text| sizes::of_snapshot_text(text));
        self.bytes += text_bytes.sum::<usize>();
        self.held_alignments = alignments;
        self.unstored_snapshots = unstored;
        self.texts = texts;
    }

    /// Drops by what requests of these tenants are aligned, so that their next look-up asks the store.
    pub(super) fn drop_evidence_of(&mut self, tenants: &HashSet<Tenant>) {
        let mut freed = 0;
        let mut is_kept = |tenant: &Tenant, bytes: usize| {
            let is_kept = !tenants.contains(tenant);
            freed += if is_kept { 0 } else { bytes };
            is_kept
        };
        self.complete_links
            .retain(|(tenant, _)| is_kept(tenant, ENTRY_BYTES));
        // The size of a step counts its anchor.
        self.steps
            .retain(|(tenant, _), _| is_kept(tenant, 2 * ENTRY_BYTES));
        self.anchors.retain(|(tenant, _), _| is_kept(tenant, 0));
        self.alignments
            .retain(|(tenant, _), view| is_kept(tenant, sizes::of_stored_alignment(view)));
        self.held_alignments
            .retain(|(tenant, _), _| !tenants.contains(tenant));
        freed += self
            .base_chains
            .drop_tenants(|tenant| tenants.contains(tenant));
        self.bytes = self.bytes.saturating_sub(freed);
    }

    /// Like [`Self::drop_all_but_in_flight`], but drops texts and alignments too: they may be of something deleted.
    pub(super) fn drop_all_but_pins_in_flight(&mut self) {
        let pins = self.pins.take_in_flight();
        *self = Self {
            bytes: pins.bytes(),
            pins,
            ..Self::default()
        };
    }
}
