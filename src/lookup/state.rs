//! The cached entries, and what can be read from them without the store. All of it is behind one lock;
//! nothing here waits.

use std::sync::Arc;

use super::aged_map::AgedMap;
use super::base_chains::BaseChains;
use super::hash_tables::{HashKeyMap, HashKeySet};
use super::origin_index::Tenant;
use super::sent_requests::{Key, SentRequests};
use super::sizes::{self, ENTRY_BYTES};
use crate::history::{History, Link, Scope, ScopedHash, anchor};
use crate::memory::alignment::{Alignment, LineageName, PathEntry, StoredAlignment};
use crate::memory::{Snapshot, SnapshotId, SnapshotMeta};

/// The cache holds at most this many bytes of texts and index entries.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;

/// So many of them may be held alignments that no request in flight needs.
const MAX_HELD_BYTES: usize = MAX_BYTES / 4;

#[derive(Debug, Default)]
pub(super) struct CacheState {
    pub(super) complete_links: HashKeySet<Key>,
    pub(super) snapshots_by_end: HashKeyMap<Key, Vec<SnapshotMeta>>,
    /// Snapshots that are not stored yet, by the last link of the request that each was made for.
    pub(super) unstored_snapshots: HashKeyMap<Key, Vec<SnapshotMeta>>,
    pub(super) sent_requests: SentRequests,
    /// Ends of the ranges at which observation is paused.
    pub(super) paused: HashKeySet<Key>,
    pub(super) texts: HashKeyMap<([u8; 32], SnapshotId), Arc<Snapshot>>,
    /// Recorded messages, with the marks by which requests find them that do not continue their chain.
    pub(super) path_entries: HashKeyMap<Key, PathEntry>,
    pub(super) anchors: HashKeyMap<([u8; 32], ScopedHash), Link>,
    pub(super) alignments: HashKeyMap<Key, StoredAlignment>,
    /// The chains that these lead to.
    pub(super) base_chains: BaseChains,
    /// Alignments of requests that were sent and are not recorded yet, by the last link of what the client sent: a
    /// repetition is aligned alike (INV-SAME). That of an exchange which the recorder dropped stays here for good, so
    /// they have a bound of their own: each holds every message of two chains, and a hundred long ones would push
    /// everything else out of the cache.
    pub(super) held_alignments: AgedMap<Key, Arc<Alignment>>,
    /// Ends of ranges that are observed or queued.
    pub(super) range_ends: HashKeySet<Key>,
    /// Peer intros: those that requests were sent with, and the latest of each owner.
    pub(super) peer_intros: HashKeyMap<([u8; 32], SnapshotId), SnapshotMeta>,
    /// The latest peer intro of each owner, by the root of its chains.
    pub(super) newest_peer_intro: HashKeyMap<Key, SnapshotId>,
    /// Messages whose text is in the message archive.
    pub(super) kept_messages: HashKeySet<Key>,
    /// What requests of owners with a resource were sent with, by the message before their newest one.
    pub(super) sent_prefixes: HashKeyMap<Key, Option<SnapshotId>>,
    /// Messages with a successor that are so near to the beginning that conversations may share them by
    /// chance.
    pub(super) continued: HashKeySet<Key>,
    /// The names of lineages.
    pub(super) lineage_names: HashKeyMap<([u8; 32], i64), LineageName>,
    /// Thread keys that several lineages have.
    pub(super) shared_keys: foldhash::HashSet<([u8; 32], String)>,
    /// Bytes of all of these but the sent requests and the held alignments, which know their own.
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

impl CacheState {
    /// Holds the alignment of a request in flight until it is recorded. If that never happens, until there are too many.
    pub(super) fn hold_alignment(&mut self, key: Key, alignment: Arc<Alignment>) {
        let bytes = sizes::of_alignment(&alignment);
        self.held_alignments.insert(key, bytes, alignment);
        let sent_requests = &self.sent_requests;
        self.held_alignments
            .shrink(MAX_HELD_BYTES, |(tenant, _), held| {
                let tip = held.history.tip();
                tip.is_some_and(|tip| sent_requests.is_in_flight(&(*tenant, tip)))
            });
        self.make_room(0);
    }

    pub(super) fn has_complete_link(&self, scope: &Scope, history: &History) -> bool {
        // The end of the previous request is near the end of this one.
        let mut messages = history.messages().iter().rev();
        messages.any(|chained| self.complete_links.contains(&(scope.tenant, chained.link)))
    }

    pub(super) fn add_path_entry(&mut self, scope: &Scope, entry: &PathEntry) {
        let key = (scope.tenant, entry.message.link);
        if let Some(existing) = self.path_entries.get_mut(&key) {
            existing.message_origin.unshared &= entry.message_origin.unshared;
            return;
        }
        self.add_bytes(2 * ENTRY_BYTES);
        if self.may_be_chance(scope, entry.parent) {
            self.continued.insert((scope.tenant, entry.parent));
        }
        self.path_entries.insert(key, *entry);
        if let Some(anchor) = entry.anchor {
            self.anchors
                .insert((scope.tenant, anchor), entry.message.link);
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
    pub(super) fn lineage_name(&self, scope: &Scope, lineage: i64) -> Option<LineageName> {
        let name = self.lineage_names.get(&(scope.tenant, lineage))?;
        let is_shared = |key: &String| self.shared_keys.contains(&(scope.tenant, key.clone()));
        Some(LineageName {
            is_unique: name.is_unique && !name.key.as_ref().is_some_and(is_shared),
            key: name.key.clone(),
        })
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

    /// Adds the text of a snapshot. The caller has made room for it.
    pub(super) fn add_text(&mut self, scope: &Scope, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        let key = (scope.tenant, snapshot.meta.id);
        if self.texts.insert(key, Arc::clone(&snapshot)).is_none() {
            self.bytes += sizes::of_snapshot_text(&snapshot);
        }
        snapshot
    }

    /// Makes room for `bytes` more. If they do not fit, everything is dropped but what requests in flight need: a
    /// cache that lost single entries would no longer be complete for their chains.
    pub(super) fn make_room(&mut self, bytes: usize) {
        let held = self.bytes + self.sent_requests.bytes() + self.held_alignments.bytes();
        if held + bytes > MAX_BYTES {
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
        self.drop_all_but_sends_in_flight();
        alignments.retain(|(tenant, _), alignment| {
            let tip = alignment.history.tip();
            tip.is_some_and(|tip| self.sent_requests.contains(&(*tenant, tip)))
        });
        unstored.retain(|key, _| self.sent_requests.contains(key));
        let needed: HashKeySet<([u8; 32], SnapshotId)> = unstored
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

    /// Drops by what requests of these tenants are aligned, so that their next look-up queries the store.
    pub(super) fn drop_chains_of(&mut self, tenants: &HashKeySet<Tenant>) {
        let mut freed = 0;
        let mut is_kept = |tenant: &Tenant, bytes: usize| {
            let is_kept = !tenants.contains(tenant);
            freed += if is_kept { 0 } else { bytes };
            is_kept
        };
        self.complete_links
            .retain(|(tenant, _)| is_kept(tenant, ENTRY_BYTES));
        // The size of a entry counts its anchor.
        self.path_entries
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
    pub(super) fn drop_all_but_sends_in_flight(&mut self) {
        *self = Self {
            sent_requests: self.sent_requests.take_in_flight(),
            ..Self::default()
        };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{SentLabel, SnapshotCache};
    use super::*;
    use crate::history::PositionMap;
    use crate::memory::alignment::{AlignmentKind, SharedMessages};
    use crate::store::{SentWith, SqliteStore};
    use crate::wire;

    /// An alignment of `history` with itself.
    pub(in crate::lookup) fn alignment(
        history: &Arc<History>,
        positions: PositionMap,
    ) -> Arc<Alignment> {
        Arc::new(Alignment {
            client: Arc::clone(history),
            history: Arc::clone(history),
            positions,
            shared: SharedMessages::default(),
            recorded_count: 0,
            kind: AlignmentKind::Continued,
            lineage: None,
            proof: Vec::new(),
            withheld: None,
            client_summary: None,
            summary_in_front: None,
            origins: Vec::new(),
        })
    }

    /// As a client makes them whose exchanges the recorder drops: it sends thousands of messages in each request.
    #[tokio::test]
    async fn unrecorded_alignments_evict_no_entries_of_other_tenants() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let (quiet, busy) = (Scope::new(b"quiet", None), Scope::new(b"busy", None));
        let key = (quiet.tenant, Link::root(&quiet));
        let label = SentLabel {
            model: "m",
            thread_key: None,
        };
        cache.mark_complete(&quiet, key.1, label, SentWith::default(), &[]);
        let message = r#"{"role":"user","content":"Again."}"#;
        let body = format!(
            r#"{{"model":"m","messages":[{}]}}"#,
            vec![message; 4_100].join(",")
        );
        let request = wire::Request::parse_chat(&body.into_bytes().into()).expect("a request");
        let history = request.history(&busy);
        let mut all = 0;
        for count in 4_000..4_100 {
            let positions = PositionMap::from_parts(Vec::new(), 0, 0).expect("positions");
            let alignment = alignment(&Arc::new(history.prefix(count)), positions);
            all += sizes::of_alignment(&alignment);
            cache.hold_alignment(&busy, &alignment);
        }
        assert!(all > MAX_BYTES, "{all}");
        assert!(cache.state().complete_links.contains(&key));
    }
}
