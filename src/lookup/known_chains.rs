//! What is known of the chains that a request may belong to: from entries of the cache, or from what the store found, which is
//! added to them. Decides nothing: that is `memory::alignment`. Called by [`super`], under the lock of the cache.

use std::sync::Arc;

use super::origin_index::SeenOrigins;
use super::outcome::LookupParams;
use super::state::{CacheState, anchors};
use crate::history::align::MessageOrigin;
use crate::history::{History, Link, PathMessage, Role, Scope, ScopedHash};
use crate::memory::alignment::{
    Alignment, BaseChain, KnownChains, Origin, PathEntry, SummaryCandidate, Witness,
};
use crate::store::Candidates;

/// The alignment of a request that may have been sent before.
#[derive(Clone, Debug)]
pub(super) enum SentAlignment {
    /// It was sent on its own chain.
    OwnChain,
    /// It was sent with this alignment.
    Aligned {
        alignment: Box<Alignment>,
        /// Whether an equal history was also sent on its own chain.
        or_own_chain: bool,
    },
    /// It was not sent, so its alignment is still to be decided.
    Undecided,
}

impl SentAlignment {
    /// Not the alignment, if a summary in leading system messages proves it that this request does not have: then it was
    /// an equal history of another conversation.
    pub(super) fn require_summary(self, is_in_front: impl FnOnce(ScopedHash) -> bool) -> Self {
        match self {
            Self::Aligned {
                alignment,
                or_own_chain,
            } if alignment
                .summary_in_front
                .is_some_and(|hash| !is_in_front(hash)) =>
            {
                if or_own_chain {
                    Self::OwnChain
                } else {
                    Self::Undecided
                }
            }
            sent => sent,
        }
    }

    /// Not its own chain, if an equal request was sent with the summary that this one has in front, too: then an equal history
    /// on its own chain is another conversation's.
    pub(super) fn unless_behind_summary(self, client: &History, known: &KnownChains) -> Self {
        match self {
            Self::OwnChain if known.repeats_summary_in_front(client) => Self::Undecided,
            sent => sent,
        }
    }

    /// The alignment of the request, if it has one. `align` decides it if the request was not sent before.
    pub(super) fn or_align(self, align: impl FnOnce() -> Option<Alignment>) -> Option<Alignment> {
        match self {
            Self::OwnChain => None,
            Self::Aligned { alignment, .. } => Some(*alignment),
            Self::Undecided => align(),
        }
    }
}

/// Adds the upstream's answer to the end of `path`, if the request continues with it. The end of `path` is the
/// message at `place` of `client`. An answer is recorded only when a request has carried it back.
fn add_answer(
    path: &mut Vec<PathEntry>,
    client: &History,
    place: usize,
    seen_origins: SeenOrigins<'_>,
) {
    let (Some(end), Some(next)) = (path.last().copied(), client.messages().get(place + 1)) else {
        return;
    };
    let item = client.message_key(place + 1);
    let tip = end.message.link;
    let Some(origin) = seen_origins.answer_origin(tip, item.ids.unwrap_or(item.content)) else {
        return;
    };
    let entry = PathEntry {
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
    path.push(check_uniqueness(entry, seen_origins));
}

/// So many messages behind a path are looked at for answers that are not recorded. Each takes a hash while the cache is
/// locked, and a request may have 50,000; the recorder is never so far behind in one conversation.
const MAX_UNRECORDED: usize = 256;

/// How many messages of `client` there are up to the newest answer that this process has seen the upstream give behind
/// `path`, which ends with the message at `place`; 0 if there is none. Such answers are not recorded if memory was off, the
/// client has stopped them, or the recorder is behind.
fn seen_count(
    path: &[PathEntry],
    client: &History,
    place: usize,
    seen_origins: SeenOrigins<'_>,
) -> usize {
    let Some(mut origin) = path.last().map(|end| end.origin) else {
        return 0;
    };
    if origin == Origin::default() {
        return 0;
    }
    let mut seen_count = 0;
    let behind = client.messages().iter().enumerate().skip(place + 1);
    for (at, chained) in behind.take(MAX_UNRECORDED) {
        origin = origin.next(&chained.message.fingerprint, &chained.link);
        if chained.message.role == Role::Assistant && seen_origins.is_from_upstream(origin) {
            seen_count = at + 1;
        }
    }
    seen_count
}

/// Updates whether the message is unique to its conversation, by what this process has seen since it was
/// read.
fn check_uniqueness(mut entry: PathEntry, seen_origins: SeenOrigins<'_>) -> PathEntry {
    let witness = entry.witness().map(|mark| Witness {
        hash: mark,
        origin: entry.origin,
    });
    let has_origin = entry.origin != Origin::default();
    entry.message_origin.unshared &=
        has_origin && witness.is_some_and(|witness| !seen_origins.is_contested(&witness));
    entry
}

impl CacheState {
    /// The alignment of `client`, if it was sent before, recorded or not.
    pub(super) fn sent_alignment(
        &self,
        scope: &Scope,
        client: &History,
        params: &LookupParams<'_>,
        seen_origins: SeenOrigins<'_>,
    ) -> SentAlignment {
        let Some(tip) = client.tip() else {
            return SentAlignment::Undecided;
        };
        let key = (scope.tenant, tip);
        let is_own_chain_sent = self.sent_requests.contains(&key);
        let was_sent = |alignment: &&Arc<Alignment>| {
            let tip = alignment.history.tip();
            tip.is_some_and(|tip| self.sent_requests.contains(&(scope.tenant, tip)))
        };
        let is_proven =
            |alignment: &&Arc<Alignment>| self.still_proven(scope, alignment, params, seen_origins);
        match self
            .held_alignments
            .get(&key)
            .filter(was_sent)
            .filter(is_proven)
        {
            Some(held) if !is_own_chain_sent || held.summary_in_front.is_some() => {
                SentAlignment::Aligned {
                    alignment: Box::new(Alignment::clone(held)),
                    or_own_chain: is_own_chain_sent,
                }
            }
            _ if is_own_chain_sent => SentAlignment::OwnChain,
            _ => SentAlignment::Undecided,
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
        let known = KnownChains {
            key: params.thread_key.map(str::to_owned),
            level: params.level,
            ..KnownChains::default()
        };
        let is_contested = |witness: &Witness| seen_origins.is_contested(witness);
        alignment.proof.is_empty()
            || (known.allows_restoring_lineage(name.as_ref())
                && !alignment.proof.iter().any(is_contested))
    }

    /// What this process knows of chains that `client` may be aligned with; and whether the cache is complete
    /// for `client` if it is aligned with none.
    pub(super) fn known_chains(
        &mut self,
        scope: &Scope,
        client: &History,
        params: &LookupParams<'_>,
        seen_origins: SeenOrigins<'_>,
    ) -> (KnownChains, bool) {
        let mut known = KnownChains {
            key: params.thread_key.map(str::to_owned),
            level: params.level,
            ..KnownChains::default()
        };
        // The newest message first: what is looked for usually stands at the end, and a look at each message of a long
        // conversation would take a large part of a warm request's time.
        let messages = || client.messages().iter().enumerate().rev();
        let key = |link: &Link| (scope.tenant, *link);
        let recorded = messages().find_map(|(index, chained)| {
            let entry = self.path_entries.get(&key(&chained.link))?;
            Some((index + 1, entry))
        });
        if let Some((count, entry)) = recorded {
            (known.recorded_count, known.recorded_lineage) = (count, Some(entry.lineage));
            known.recorded_origin = entry.origin;
        }
        let newest_alignment =
            messages().find_map(|(_, chained)| self.alignments.get(&key(&chained.link)));
        let complete = self.has_complete_link(scope, client);
        if let Some(view) = newest_alignment.cloned() {
            // Only of the newest one: a conversation that was aligned once has one for each request.
            let base = self.base_chain(scope, view.base);
            known.stored_holds = view.proof.iter().all(|w| !seen_origins.is_contested(w));
            known.stored = Some((view, base));
        }
        let aligned_count = known.stored.as_ref().map_or(0, |(view, _)| view.count);
        let hit = anchors(client, aligned_count.max(known.recorded_count))
            .find_map(|(mark, place)| Some((*self.anchors.get(&(scope.tenant, mark))?, place)));
        if let Some((link, place)) = hit {
            known.path = self.path(scope, link, seen_origins);
            known.seen_count = seen_count(&known.path, client, place, seen_origins);
            add_answer(&mut known.path, client, place, seen_origins);
        }
        let base = known.stored.iter().filter_map(|(_, base)| base.lineage());
        let ends = base.chain(known.path.last().map(|end| end.lineage));
        let names = ends.filter_map(|lineage| Some((lineage, self.lineage_name(scope, lineage)?)));
        known.lineage_names = names.collect();
        // An anchor or alignment that leads to another chain may be proven by entries only the store has.
        let is_complete = complete && hit.is_none() && aligned_count <= known.recorded_count;
        (known, is_complete)
    }

    /// The chain that a request was aligned to, up to `end`; empty unless all its messages are cached.
    fn base_chain(&mut self, scope: &Scope, end: Link) -> Arc<BaseChain> {
        let Some((chain, added)) = self.base_chains.chain(&self.path_entries, scope, end) else {
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
            let Some(entry) = self.path_entries.get(&key) else {
                return Vec::new();
            };
            let entry = PathEntry {
                range_end: entry.range_end || self.range_ends.contains(&key),
                text_kept: self.kept_messages.contains(&key),
                ..*entry
            };
            path.push(check_uniqueness(entry, seen_origins));
            at = entry.parent;
        }
        path.reverse();
        path
    }

    /// Adds what the store found, and returns what is known now of chains that `client` may be aligned with. Takes the other
    /// chains out of `candidates`.
    pub(super) fn add_candidates(
        &mut self,
        scope: &Scope,
        client: &History,
        candidates: &mut Candidates,
        params: &LookupParams<'_>,
        seen_origins: SeenOrigins<'_>,
    ) -> KnownChains {
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
        for entry in path
            .iter()
            .chain(&candidates.base_chain)
            .chain(answered.unwrap_or_default())
        {
            self.add_path_entry(scope, entry);
            if entry.range_end {
                self.range_ends.insert((scope.tenant, entry.message.link));
            }
            if entry.text_kept {
                self.add_kept_message((scope.tenant, entry.message.link));
            }
        }
        for (lineage, name) in &candidates.lineage_names {
            self.add_lineage_name(scope, *lineage, name);
        }
        let aligned_count = candidates.alignment.as_ref().map_or(0, |view| view.count);
        let checked_path = |path: Vec<PathEntry>| -> Vec<PathEntry> {
            path.into_iter()
                .map(|entry| check_uniqueness(entry, seen_origins))
                .collect()
        };
        // A request that continues a stored alignment is found by that.
        let mut path = if hit >= aligned_count {
            checked_path(path)
        } else {
            Vec::new()
        };
        let seen_count = seen_count(&path, client, hit, seen_origins);
        add_answer(&mut path, client, hit, seen_origins);
        let proof = candidates.alignment.iter().flat_map(|view| &view.proof);
        let alignment_holds =
            candidates.alignment_holds && !proof.into_iter().any(|w| seen_origins.is_contested(w));
        KnownChains {
            recorded_count: candidates.depth,
            recorded_origin: candidates.depth_origin,
            recorded_lineage: candidates.lineage,
            stored: candidates.alignment.take().map(|stored| {
                let base = std::mem::take(&mut candidates.base_chain);
                (stored, Arc::new(base.iter().collect()))
            }),
            stored_holds: alignment_holds,
            stored_summary_in_front: None,
            path,
            seen_count,
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
}
