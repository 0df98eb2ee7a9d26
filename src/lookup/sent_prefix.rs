//! The longest prefix of a request that was sent before: what it was sent with, and whether it may belong to
//! another conversation that begins alike. Used by [`super::query`]; `proxy` decides with
//! [`Lookup::own_sent_prefix`].

use std::collections::hash_map::Entry;

use super::SnapshotCache;
use super::outcome::{Lookup, PrefixMatch};
use super::sent_requests::Key;
use super::sizes::ENTRY_BYTES;
use super::state::CacheState;
use crate::history::{History, Link, Scope};
use crate::memory::peer_memory::MAX_CHANCE_PREFIX;
use crate::memory::{SnapshotId, SnapshotMeta};
use crate::store::SentPrefix;

impl SnapshotCache {
    /// Adds the peer intros that the request may be sent with.
    pub(super) fn add_peer_intro(
        &self,
        lookup: &mut Lookup,
        scope: &Scope,
        client: &History,
        prefix_match: PrefixMatch,
    ) {
        let state = self.state();
        let snapshot_id = lookup.sent_prefix.as_ref().and_then(|sent| sent.snapshot);
        lookup.sent_peer_intro =
            snapshot_id.and_then(|id| state.peer_intros.get(&(scope.tenant, id)).cloned());
        if prefix_match.may_be_new() {
            lookup.peer_intro = state.newest_peer_intro(scope, client).cloned();
        }
        lookup.prefix_match = prefix_match;
    }
}

impl CacheState {
    /// The longest prefix of `history` that was sent as a request; of several sends the one for `model`.
    pub(super) fn sent_prefix(
        &self,
        scope: &Scope,
        history: &History,
        model: &str,
    ) -> Option<SentPrefix> {
        // Only peer memory needs this, and only owners with a resource have peer memory.
        scope.resource?;
        let mut messages = history.messages().iter().enumerate().rev();
        messages.find_map(|(index, chained)| {
            let key = (scope.tenant, chained.link);
            let sent_requests = self.sent_requests.by_label(&key);
            let sent =
                sent_requests.map(|(used, other, name)| (other != model, used.snapshot, name));
            let sent = sent.min_by_key(|(other, snapshot, _)| (*other, *snapshot));
            // Some clients change their newest message when they continue. So the message before it is
            // compared too.
            let previous = self
                .sent_prefixes
                .get(&key)
                .filter(|_| index >= MAX_CHANCE_PREFIX);
            let (snapshot, name) = match (sent, previous) {
                (Some((_, snapshot, name)), _) => (snapshot, name),
                (None, Some(snapshot)) => (*snapshot, None),
                (None, None) => return None,
            };
            Some(SentPrefix {
                shared_messages: index + 1,
                snapshot,
                thread_key: name.map(str::to_owned),
            })
        })
    }

    /// Adds a request that ends at `tip` and was recorded with `snapshot`.
    pub(super) fn add_sent_prefix(
        &mut self,
        scope: &Scope,
        tip: Link,
        snapshot: Option<SnapshotId>,
    ) {
        let entry = self.path_entries.get(&(scope.tenant, tip));
        let parent = entry.map(|entry| (scope.tenant, entry.parent));
        if let Some(parent) = parent.filter(|_| scope.resource.is_some()) {
            match self.sent_prefixes.entry(parent) {
                Entry::Occupied(mut known) => {
                    let least = snapshot.min(*known.get());
                    known.insert(least);
                }
                Entry::Vacant(new) => {
                    // `mark_complete` has made room for it.
                    self.bytes += ENTRY_BYTES;
                    new.insert(snapshot);
                }
            }
        }
    }

    /// How much of `client` is recorded: `depth` messages.
    pub(super) fn prefix_match(
        &self,
        scope: &Scope,
        client: &History,
        aligned: bool,
        depth: usize,
    ) -> PrefixMatch {
        let last = depth
            .checked_sub(1)
            .map(|last| client.messages()[last].link);
        let continued_elsewhere =
            last.is_some_and(|last| self.continued.contains(&(scope.tenant, last)));
        PrefixMatch {
            aligned,
            depth,
            continued_elsewhere,
        }
    }

    /// Whether conversations may share everything up to `link` by chance.
    pub(super) fn may_be_chance(&self, scope: &Scope, link: Link) -> bool {
        let root = Link::root(scope);
        let mut at = link;
        for _ in 0..MAX_CHANCE_PREFIX {
            match self.path_entries.get(&(scope.tenant, at)) {
                Some(entry) if entry.parent == root => return true,
                Some(entry) => at = entry.parent,
                None => return false,
            }
        }
        false
    }

    /// The latest peer intro of the owner.
    pub(super) fn newest_peer_intro(
        &self,
        scope: &Scope,
        history: &History,
    ) -> Option<&SnapshotMeta> {
        let root: Key = (scope.tenant, history.root());
        let newest = self.newest_peer_intro.get(&root)?;
        self.peer_intros.get(&(scope.tenant, *newest))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::SentLabel;
    use super::super::sizes;
    use super::super::state::MAX_BYTES;
    use super::*;
    use crate::history::{PathMessage, Role};
    use crate::memory::SnapshotCause;
    use crate::memory::alignment::PathEntry;
    use crate::store::{SentWith, SqliteStore};

    /// There is no room for the sent prefix, so the cache drops everything while it adds the request.
    #[tokio::test]
    async fn a_request_marked_complete_keeps_its_snapshots_in_a_full_cache() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let scope = Scope::new(b"tenant", Some(b"user"));
        let tip = Link::from_slice(&[7; 32]).expect("32");
        let key = (scope.tenant, tip);
        let meta = SnapshotMeta {
            id: SnapshotId(1),
            to: tip,
            to_count: 1,
            eligible_from: 1,
            pin: None,
            parts: Vec::new(),
            tokens: 1,
            cause: SnapshotCause::Threshold,
            placement: String::new(),
            peer_memory: None,
        };
        let entry = PathEntry {
            message: PathMessage {
                link: tip,
                role: Role::User,
            },
            parent: Link::root(&scope),
            message_key: None,
            anchor: None,
            range_end: false,
            live: true,
            text_kept: false,
            lineage: 1,
            origin: crate::memory::alignment::Origin::default(),
            message_origin: crate::history::align::MessageOrigin::default(),
            summary_start: None,
            pending: false,
        };
        let label = SentLabel {
            model: "m",
            thread_key: None,
        };
        let needed = 2 * ENTRY_BYTES
            + sizes::of_sent_request(label.model, label.thread_key)
            + sizes::of_snapshot_meta(&meta);
        for (room, drops) in [(needed, false), (needed - 1, true)] {
            cache.clear();
            let mut state = cache.state();
            state.path_entries.insert(key, entry);
            state.bytes = MAX_BYTES - room;
            drop(state);
            let metas = std::slice::from_ref(&meta);
            cache.mark_complete(&scope, tip, label, SentWith::default(), metas);
            let state = cache.state();
            assert!(
                state.complete_links.contains(&key),
                "nobody asks the store again"
            );
            assert_eq!(
                state.snapshots_by_end.get(&key),
                Some(&vec![meta.clone()]),
                "{room}"
            );
            assert_eq!(state.path_entries.is_empty(), drops);
        }
    }

    #[tokio::test]
    async fn the_cache_size_ignores_repeated_and_removed_entries() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let scope = Scope::new(b"tenant", None);
        let tip = Link::from_slice(&[1; 32]).expect("32");
        let label = SentLabel {
            model: "m",
            thread_key: None,
        };
        let bytes = || {
            let state = cache.state();
            (state.bytes, state.sent_requests.bytes())
        };
        for _ in 0..3 {
            cache.begin_send(&scope, tip, label, SentWith::default(), false);
            cache.end_send(&scope, tip, "m", false);
        }
        assert_eq!(bytes(), (0, 0), "no upstream accepted it");
        let request = sizes::of_sent_request(label.model, label.thread_key);
        for _ in 0..3 {
            cache.begin_send(&scope, tip, label, SentWith::default(), false);
            cache.mark_complete(&scope, tip, label, SentWith::default(), &[]);
            cache.add_repetition(&scope, tip, label, SentWith::default());
            cache.end_send(&scope, tip, "m", true);
            assert_eq!(bytes(), (ENTRY_BYTES, request));
            cache.mark_range_end(&scope, tip);
            cache.pause_observation(&scope, tip);
            assert_eq!(bytes().0, 3 * ENTRY_BYTES);
            cache.resume_observation(&scope, tip);
            let mut state = cache.state();
            state.range_ends.clear();
            state.bytes -= ENTRY_BYTES;
        }
    }

    #[tokio::test]
    async fn a_request_in_flight_is_kept_when_the_cache_is_full() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let scope = Scope::new(b"tenant", None);
        let [running, answered] = [1, 2].map(|byte| Link::from_slice(&[byte; 32]).expect("32"));
        let sent = |id| SentWith {
            snapshot: Some(SnapshotId(id)),
            ..SentWith::default()
        };
        let label = SentLabel {
            model: "m",
            thread_key: None,
        };
        for clear in [true, false] {
            cache.begin_send(&scope, running, label, sent(1), false);
            cache.begin_send(&scope, answered, label, sent(2), false);
            cache.end_send(&scope, answered, "m", true);
            if clear {
                cache.clear();
            } else {
                cache.state().bytes = MAX_BYTES;
                cache.mark_range_end(&scope, answered);
            }
            // An equal request is sent alike, whatever it would be sent with now.
            let again = cache.begin_send(&scope, running, label, sent(3), false);
            assert_eq!(again, sent(1));
            assert_eq!(cache.sent_with(&scope, answered, "m"), None);
            let others = if clear { 0 } else { ENTRY_BYTES };
            assert_eq!(cache.state().bytes, others);
            let request = sizes::of_sent_request(label.model, label.thread_key);
            assert_eq!(cache.state().sent_requests.bytes(), request);
            for _ in 0..2 {
                cache.end_send(&scope, running, "m", false);
            }
        }
    }
}
