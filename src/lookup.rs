//! The cache in front of the store. A request of a warm conversation makes no query.
//!
//! Holds which snapshots end at which link, the texts of those that were used, and what each request was
//! sent with. It answers for a chain without a query if it is *complete* for it. Only the recorder marks a
//! link as complete: when it has written that link for the first time, so that nothing can follow it yet,
//! and has put every snapshot of its chain here. At the memory limit everything is dropped at once, but
//! for what requests in flight need; then each conversation makes one query again.
//!
//! If the store fails, requests are served with what is cached (INV-OPEN). Called by `proxy` and `jobs`.

mod aged_map;
mod base_chains;
mod hash_tables;
mod known_chains;
mod origin_index;
mod origin_tracking;
mod outcome;
mod query;
mod seen_messages;
mod sent_prefix;
mod sent_requests;
mod sizes;
mod state;
mod tenant_origins;
mod timed_reads;
mod unrecorded_answers;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::aged_map::AgedMap;
pub use self::hash_tables::{HashKeyMap, HashKeySet};
use self::origin_index::OriginIndex;
pub use self::outcome::{
    Lookup, LookupParams, LookupSource, PossibleSummaries, PrefixMatch, Sender,
};
pub use self::query::answer_contents;
pub use self::sent_requests::SentLabel;
use self::sizes::ENTRY_BYTES;
use self::state::CacheState;
pub use self::state::anchors;
use self::timed_reads::TimedReads;
pub use self::unrecorded_answers::AnswersInProgress;
use self::unrecorded_answers::UnrecordedAnswers;
use crate::history::align::MessageOrigin;
use crate::history::{HashPurpose, History, Link, PathMessage, Scope};
use crate::memory::alignment::{Alignment, LineageName, PathEntry};
use crate::memory::{Snapshot, SnapshotId, SnapshotMeta};
use crate::store::{RequestRecord, SentWith, SharedContent, Store};

/// A request waits this long for each of its reads of the store. A cold conversation needs two indexed
/// reads, which take a few milliseconds on a healthy disk. A client must not notice a locked one.
pub const READ_TIMEOUT: Duration = Duration::from_millis(250);

/// The cache in front of a [`Store`].
#[derive(Debug)]
pub struct SnapshotCache {
    store: Arc<dyn Store>,
    reads: TimedReads,
    state: Mutex<CacheState>,
    degraded: AtomicBool,
    shared_thread_keys: SharedThreadKeys,
    origin_index: Mutex<OriginIndex>,
    unrecorded_answers: Arc<UnrecordedAnswers>,
}

impl SnapshotCache {
    /// An empty cache in front of `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            reads: TimedReads::new(READ_TIMEOUT),
            state: Mutex::default(),
            degraded: AtomicBool::new(false),
            shared_thread_keys: SharedThreadKeys::default(),
            origin_index: Mutex::default(),
            unrecorded_answers: Arc::default(),
        }
    }

    /// The same cache with another limit for each read of the store.
    #[must_use]
    pub fn with_read_timeout(mut self, timeout: Duration) -> Self {
        self.reads = TimedReads::new(timeout);
        self
    }

    /// Remembers that too many conversations have the thread key `key`; returns whether that is new.
    pub fn add_shared_thread_key(&self, scope: &Scope, key: &str) -> bool {
        self.shared_thread_keys.add(scope, key)
    }

    /// Whether too many conversations have the thread key `key`, so that it names none of them.
    pub fn is_shared_thread_key(&self, scope: &Scope, key: &str) -> bool {
        self.shared_thread_keys.contains(scope, key)
    }

    /// Sets whether the last write to the store failed. A warm conversation makes no query and would not
    /// notice otherwise.
    pub fn set_degraded(&self, degraded: bool) {
        self.degraded.store(degraded, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        // After a panic under the lock the maps are still valid; at worst an entry is missing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was seen, and holds about this many entries from now on.
    #[cfg(feature = "testing")]
    pub fn limit_seen_entries(&self, max_entries: usize) {
        *self.origin_index() = OriginIndex::with_max_entries(max_entries);
    }

    /// A caller that needs both locks takes the one of `state` first.
    fn origin_index(&self) -> MutexGuard<'_, OriginIndex> {
        self.origin_index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a recorded request of a lineage with this id and name: its new messages with their marks, and
    /// what later requests find it by.
    pub fn add_recorded(
        &self,
        scope: &Scope,
        history: &History,
        (lineage, name): (i64, &LineageName),
        record: &RequestRecord,
        shared: &SharedContent,
    ) {
        let (new, entries) = (&record.new_nodes, &record.lookup_entries);
        self.unrecorded_answers.set_recorder_slow(false);
        let mut state = self.state();
        state.add_lineage_name(scope, lineage, name);
        let from = new.first().map_or(0, |node| node.count - 1);
        let mut parent = match from.checked_sub(1) {
            Some(before) => history.messages()[before].link,
            None => history.root(),
        };
        for (node, marks) in new.iter().zip(&entries.marks) {
            state.add_path_entry(
                scope,
                &PathEntry {
                    message: PathMessage {
                        link: node.link,
                        role: node.role,
                    },
                    parent,
                    message_key: Some(marks.item),
                    anchor: marks.anchor,
                    range_end: false,
                    live: node.live,
                    text_kept: false,
                    lineage,
                    origin: marks.origin,
                    message_origin: MessageOrigin {
                        from_upstream: marks.from_upstream,
                        unshared: !shared.messages.contains(&node.link),
                    },
                    summary_start: marks.summary_start,
                    pending: false,
                },
            );
            parent = node.link;
        }
        for (link, _) in &entries.kept_messages {
            state.add_kept_message((scope.tenant, *link));
        }
        if let Some((tip, view)) = &entries.alignment {
            state.held_alignments.remove(&(scope.tenant, *tip));
            state.add_bytes(sizes::of_stored_alignment(view));
            if let Some(known) = state.alignments.insert((scope.tenant, *tip), view.clone()) {
                let twice = sizes::of_stored_alignment(&known);
                state.bytes = state.bytes.saturating_sub(twice);
            }
        }
    }

    /// Marks `to` as the end of a range that is observed, or queued with its text.
    pub fn mark_range_end(&self, scope: &Scope, to: Link) {
        let mut state = self.state();
        let end = (scope.tenant, to);
        if !state.range_ends.contains(&end) {
            state.add_bytes(ENTRY_BYTES);
            state.range_ends.insert(end);
        }
    }

    /// Adds a snapshot without its text; the text is read when a request needs it.
    pub fn add_snapshot_meta(&self, scope: &Scope, meta: &SnapshotMeta) {
        let mut state = self.state();
        state.make_room(sizes::of_snapshot_meta(meta));
        state.add_snapshot(scope, meta);
    }

    /// Whether `id` is cached as a peer intro: a snapshot that covers no message.
    pub fn is_peer_intro(&self, scope: &Scope, id: SnapshotId) -> bool {
        self.state().peer_intros.contains_key(&(scope.tenant, id))
    }

    /// Forgets that the texts of these messages are kept: they have expired.
    pub fn remove_kept_messages(&self, messages: &[([u8; 32], Link)]) {
        let mut state = self.state();
        for message in messages {
            if state.kept_messages.remove(message) {
                state.bytes = state.bytes.saturating_sub(ENTRY_BYTES);
            }
        }
    }

    /// Those of `candidates` whose text is cached. Only they can be sent while the store fails.
    pub fn with_cached_text(
        &self,
        scope: &Scope,
        candidates: &[SnapshotMeta],
    ) -> Vec<SnapshotMeta> {
        let state = self.state();
        candidates
            .iter()
            .filter(|meta| state.texts.contains_key(&(scope.tenant, meta.id)))
            .cloned()
            .collect()
    }

    /// Decides what the request with this tip, for this model, is sent with, and returns it. The first call
    /// wins, so two equal requests at the same time are sent alike. `sent_before` says that an upstream has
    /// accepted `proposed` before. Each call needs one [`SnapshotCache::end_send`].
    pub fn begin_send(
        &self,
        scope: &Scope,
        tip: Link,
        label: SentLabel<'_>,
        proposed: SentWith,
        sent_before: bool,
    ) -> SentWith {
        let mut state = self.state();
        let key = (scope.tenant, tip);
        if state.sent_requests.get(&key, label.model).is_none() {
            state.make_room(sizes::of_sent_request(label.model, label.thread_key));
        }
        let sent_requests = &mut state.sent_requests;
        sent_requests.begin_send(key, label, proposed, sent_before)
    }

    /// Keeps the alignment that a request was sent with. Until the request is recorded, its repetitions have
    /// the same alignment, whatever is observed meanwhile.
    pub fn hold_alignment(&self, scope: &Scope, alignment: &Arc<Alignment>) {
        let Some(tip) = alignment.client.tip() else {
            return;
        };
        let key = (scope.tenant, tip);
        let mut state = self.state();
        // A recorded alignment is found without this.
        if state.alignments.contains_key(&key) {
            return;
        }
        state.hold_alignment(key, Arc::clone(alignment));
    }

    /// What the request with this tip, for this model, was sent with.
    pub fn sent_with(&self, scope: &Scope, tip: Link, model: &str) -> Option<SentWith> {
        self.state()
            .sent_requests
            .get(&(scope.tenant, tip), model)
            .cloned()
    }

    /// Replaces what a request is sent with that the upstream refused as `refused`, unless an equal request has
    /// changed it meanwhile. Returns what both are sent with.
    pub fn replace_refused_send(
        &self,
        scope: &Scope,
        request: (Link, &str),
        refused: &SentWith,
        replacement: SentWith,
    ) -> SentWith {
        let (tip, model) = request;
        let mut state = self.state();
        state
            .sent_requests
            .replace_refused(&(scope.tenant, tip), model, refused, replacement)
    }

    /// Replaces the id of a snapshot that was stored after a request was sent with it.
    pub fn renumber_sent_snapshot(
        &self,
        scope: &Scope,
        request: (Link, &str),
        unstored: &SentWith,
        stored: SentWith,
    ) {
        let (tip, model) = request;
        let mut state = self.state();
        state
            .sent_requests
            .renumber(&(scope.tenant, tip), model, unstored, stored);
    }

    /// Ends what [`SnapshotCache::begin_send`] began, when the request has its answer. If no upstream `accepted` it, and
    /// no equal one is in flight, it is forgotten, and a repetition is decided anew.
    pub fn end_send(&self, scope: &Scope, tip: Link, model: &str, accepted: bool) {
        let mut state = self.state();
        state
            .sent_requests
            .release(&(scope.tenant, tip), model, accepted);
    }

    /// Adds a snapshot with its text.
    pub fn insert_snapshot(&self, scope: &Scope, snapshot: Snapshot) -> Arc<Snapshot> {
        let mut state = self.state();
        let text_bytes = sizes::of_snapshot_text(&snapshot);
        state.make_room(text_bytes + sizes::of_snapshot_meta(&snapshot.meta));
        state.add_snapshot(scope, &snapshot.meta);
        state.add_text(scope, snapshot)
    }

    /// Adds a snapshot that was made for the request that ends at `tip` and is not stored yet. Only that
    /// request and its continuations use it. On any other branch it would change the cached prefix
    /// (INV-PREFIX).
    pub fn add_unstored_snapshot(
        &self,
        scope: &Scope,
        tip: Link,
        snapshot: Snapshot,
    ) -> Arc<Snapshot> {
        let mut state = self.state();
        let meta_bytes = sizes::of_snapshot_meta(&snapshot.meta);
        state.make_room(meta_bytes + sizes::of_snapshot_text(&snapshot));
        state.bytes += meta_bytes;
        let unstored = state
            .unstored_snapshots
            .entry((scope.tenant, tip))
            .or_default();
        unstored.push(snapshot.meta.clone());
        state.add_text(scope, snapshot)
    }

    /// Marks `tip` as complete: the recorder has written it for the first time and passes every snapshot of
    /// its chain. From now on, requests that continue it make no query.
    pub fn mark_complete(
        &self,
        scope: &Scope,
        tip: Link,
        label: SentLabel<'_>,
        sent_with: SentWith,
        snapshots: &[SnapshotMeta],
    ) {
        let mut state = self.state();
        let metas: usize = snapshots.iter().map(sizes::of_snapshot_meta).sum();
        // Making room may drop everything, so all entries are added after it.
        state.make_room(
            2 * ENTRY_BYTES + sizes::of_sent_request(label.model, label.thread_key) + metas,
        );
        state.add_sent_prefix(scope, tip, sent_with.snapshot);
        for meta in snapshots {
            state.add_snapshot(scope, meta);
        }
        state
            .sent_requests
            .add_recorded((scope.tenant, tip), label, sent_with);
        if state.complete_links.insert((scope.tenant, tip)) {
            state.bytes += ENTRY_BYTES;
        }
    }

    /// Adds a recorded request that has no new message. Only if its tip is complete here: otherwise it may
    /// have been sent before with something that only the store knows, and the first send counts.
    pub fn add_repetition(
        &self,
        scope: &Scope,
        tip: Link,
        label: SentLabel<'_>,
        sent_with: SentWith,
    ) {
        let (mut state, key) = (self.state(), (scope.tenant, tip));
        if state.complete_links.contains(&key) {
            state.sent_requests.add_recorded(key, label, sent_with);
        }
    }

    /// Pauses observation at the range that ends at `to`; returns whether that is new.
    pub fn pause_observation(&self, scope: &Scope, to: Link) -> bool {
        let mut state = self.state();
        let new = !state.paused.contains(&(scope.tenant, to));
        if new {
            state.add_bytes(ENTRY_BYTES);
            state.paused.insert((scope.tenant, to));
        }
        new
    }

    /// Ends the pause at the range that ends at `to`; returns whether there was one.
    pub fn resume_observation(&self, scope: &Scope, to: Link) -> bool {
        let mut state = self.state();
        let was_paused = state.paused.remove(&(scope.tenant, to));
        if was_paused {
            state.bytes = state.bytes.saturating_sub(ENTRY_BYTES);
        }
        was_paused
    }

    /// Drops all that the store may not hold any more, because something was deleted from it. What requests in flight
    /// were sent with stays, without its text.
    pub fn clear(&self) {
        self.state().drop_all_but_sends_in_flight();
    }
}

/// The cache holds this many shared thread keys. With one more, all are dropped; the recorder finds them
/// again.
const MAX_KEYS: usize = 4_096;

static CONVERSATION_NAME: HashPurpose = HashPurpose::new("diarist 2026-11 crowd");

/// Hashes of thread keys that too many conversations have, until the process ends.
#[derive(Debug, Default)]
struct SharedThreadKeys(Mutex<HashSet<[u8; 32]>>);

impl SharedThreadKeys {
    /// Adds a key; returns whether it is new.
    fn add(&self, scope: &Scope, key: &str) -> bool {
        let mut hashes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hashes.len() >= MAX_KEYS {
            hashes.clear();
        }
        hashes.insert(key_hash(scope, key))
    }

    fn contains(&self, scope: &Scope, key: &str) -> bool {
        let hashes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !hashes.is_empty() && hashes.contains(&key_hash(scope, key))
    }
}

fn key_hash(scope: &Scope, key: &str) -> [u8; 32] {
    let mut hasher = CONVERSATION_NAME.hasher();
    hasher.update(&scope.tenant);
    hasher.update(&scope.resource.unwrap_or_default());
    hasher.update(key.as_bytes());
    *hasher.finalize().as_bytes()
}
