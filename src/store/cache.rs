//! What this process remembers of the store, so that a warm conversation asks it nothing.
//!
//! Holds which snapshots end at which link, the text of those that were used, and what each request
//! was sent with. It answers for a chain without a query when it is *complete* for it: a link is
//! marked `seen` only by the recorder, when the recorder has just written that link for the first
//! time (nothing can hang below it yet) and has put every snapshot of its chain here. Complete or
//! nothing: when the memory budget is reached everything is dropped at once, and each conversation
//! asks the store once more.
//!
//! It is also the first rung of INV-OPEN: with the store gone, what is known here still serves.

mod compaction;
mod lookup;
mod origin_index;
mod origin_tracking;
mod pinned_alignment;
mod pins;
mod sent_prefix;
mod shared_thread_keys;
mod state;

use std::cell::LazyCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::compaction::may_be_compacted;
pub use self::lookup::{Lookup, LookupParams, LookupSource};
use self::origin_index::OriginIndex;
pub use self::pins::PinLabel;
pub use self::sent_prefix::PrefixMatch;
use self::shared_thread_keys::SharedThreadKeys;
use self::state::{CacheState, alignment_bytes, anchors};
use super::{LookupKeys, PrefixTrim, RequestRecord, SentWith, SharedContent, Store, StoreError};
use crate::history::align::MessageOrigin;
use crate::history::{History, Link, PathMessage, Scope, ScopedHash};
use crate::memory::alignment::{Alignment, LineageName, PathEntry, find_alignment};
use crate::memory::{Snapshot, SnapshotId, SnapshotMeta};

/// How long a request waits for each of its reads of the store. A cold conversation
/// needs two indexed reads, a few milliseconds on a healthy disk; a locked one must not be felt.
pub const READ_TIMEOUT: Duration = Duration::from_millis(250);

/// Texts and index entries kept, in bytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Roughly what an index entry weighs.
const ENTRY_BYTES: usize = 160;

/// The cache in front of a [`Store`].
#[derive(Debug)]
pub struct SnapshotCache {
    store: Arc<dyn Store>,
    read_timeout: Duration,
    state: Mutex<CacheState>,
    degraded: AtomicBool,
    shared_thread_keys: SharedThreadKeys,
    origin_index: Mutex<OriginIndex>,
}

impl SnapshotCache {
    /// An empty memory of `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            read_timeout: READ_TIMEOUT,
            state: Mutex::default(),
            degraded: AtomicBool::new(false),
            shared_thread_keys: SharedThreadKeys::default(),
            origin_index: Mutex::default(),
        }
    }

    /// The same, where a read of the store may take `timeout` instead of [`READ_TIMEOUT`].
    #[must_use]
    pub fn with_read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }

    /// More conversations go under `key` than one name can stand for; whether that is news.
    pub fn add_shared_thread_key(&self, scope: &Scope, key: &str) -> bool {
        self.shared_thread_keys.add(scope, key)
    }

    /// Whether `key` was found to name no conversation.
    pub fn is_shared_thread_key(&self, scope: &Scope, key: &str) -> bool {
        self.shared_thread_keys.contains(scope, key)
    }

    /// Says whether the store took what was last to be written to it. A warm conversation asks it
    /// nothing and would not notice.
    pub fn set_degraded(&self, troubled: bool) {
        self.degraded.store(troubled, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        // A panic while holding the lock leaves maps that are still maps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever needs both locks takes that of what is known first.
    fn origin_index(&self) -> MutexGuard<'_, OriginIndex> {
        self.origin_index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of what `client` sent, and where it stands. Never longer than [`PATIENCE`], never
    /// an error. `answers` are marks of texts among its first messages (see [`Probes`]); they are only
    /// asked for where its chain is not known.
    pub async fn look_up(
        &self,
        scope: &Scope,
        client: &Arc<History>,
        params: LookupParams<'_>,
        answers: impl FnOnce() -> Vec<(ScopedHash, usize)> + Send,
    ) -> (Lookup, Option<Alignment>) {
        let model = params.model;
        let (pinned, (evidence, is_complete)) = {
            let (state, origin_index) = (self.state(), self.origin_index());
            let pinned = state.pinned_alignment(scope, client, &params, &origin_index);
            (
                pinned,
                state.evidence(scope, client, &params, &origin_index),
            )
        };
        let alignment = pinned
            .clone()
            .or_align(|| find_alignment(client, &evidence));
        let answers = LazyCell::new(answers);
        // Another process may know who else says what proves it.
        let may_be_contested =
            |alignment: &Alignment| !alignment.proof.is_empty() && self.store.has_other_writers();
        let complete = match &alignment {
            Some(alignment) => {
                !may_be_contested(alignment)
                    && self.state().has_complete_link(scope, &alignment.history)
            }
            None => is_complete && !may_be_compacted(client, &evidence, &answers),
        };
        if complete {
            let history = alignment
                .as_ref()
                .map_or(client, |alignment| &alignment.history);
            let mut lookup = self.cached_lookup(scope, history, model, true);
            lookup.origins = self.track_origins(client, &evidence, alignment.as_ref());
            lookup.withheld = evidence.is_withheld(alignment.as_ref());
            let prefix_match = self.state().prefix_match(
                scope,
                client,
                alignment.is_some(),
                evidence.recorded_count,
            );
            self.add_peer_intro(&mut lookup, scope, client, prefix_match);
            return (lookup, alignment);
        }
        let chain: Vec<Link> = client.turns().iter().map(|turn| turn.link).collect();
        let keys = LookupKeys {
            anchors: anchors(client, 0).collect(),
            answers: answers.clone(),
            system: params.system,
            model: Some(model.to_owned()),
        };
        match with_timeout(
            self.read_timeout,
            self.store.find_candidates(scope, &chain, &keys),
        )
        .await
        {
            Ok(candidates) => {
                let (sent_with, mut prefix_trims) = (
                    candidates.sent_with.clone(),
                    candidates.prefix_trims.clone(),
                );
                let aligned_sent_with = candidates.aligned_sent_with.clone();
                let path_trims = candidates.path_trims.clone();
                let (depth, continued_elsewhere, sent_prefixes) = (
                    candidates.depth,
                    candidates.continued_elsewhere,
                    candidates.sent_prefixes.clone(),
                );
                let path = candidates.path.as_ref().and_then(|(_, path)| path.last());
                let path_end = path
                    .map(|step| step.message.link)
                    .zip(candidates.path_sent_with.clone());
                let evidence = {
                    let mut state = self.state();
                    state.add_candidates(scope, client, candidates, &params, &self.origin_index())
                };
                let alignment = pinned.or_align(|| find_alignment(client, &evidence));
                self.mark_quotations(&answers, &evidence, alignment.as_ref());
                let origins = self.track_origins(client, &evidence, alignment.as_ref());
                let history = alignment
                    .as_ref()
                    .map_or(client, |alignment| &alignment.history);
                let mut lookup = self.cached_lookup(scope, history, model, false);
                lookup.origins = origins;
                lookup.withheld = evidence.is_withheld(alignment.as_ref());
                // What it was sent with as a view says nothing where it is none any more.
                let aligned_sent_with = aligned_sent_with.filter(|_| alignment.is_some());
                lookup.previous_send = lookup.previous_send.or(sent_with).or(aligned_sent_with);
                // A view that brings nothing new ends where another request did, and is pinned with it.
                if let (Some(alignment), Some((tip, sent_with))) = (&alignment, path_end)
                    && alignment.history.tip() == Some(tip)
                {
                    lookup.previous_send = lookup.previous_send.or(Some(sent_with));
                }
                if let Some(alignment) = &alignment {
                    let on_chain =
                        |tip: &Link| alignment.history.turns().iter().any(|t| t.link == *tip);
                    let path = path_trims.into_iter().filter(|(tip, _)| on_chain(tip));
                    prefix_trims.extend(path.map(|(_, carried)| carried));
                }
                for carried in prefix_trims {
                    lookup.merge_trim(carried);
                }
                let on_chain = |tip: &Option<Link>| match (tip, &alignment) {
                    (None, _) => true,
                    (Some(tip), Some(alignment)) => {
                        alignment.history.turns().iter().any(|t| t.link == *tip)
                    }
                    (Some(_), None) => false,
                };
                let sent_prefixes = sent_prefixes.into_iter().filter(|(tip, _)| on_chain(tip));
                // Of two that are as long, what this process sent counts.
                lookup.sent_prefix = sent_prefixes
                    .map(|(_, sent)| sent)
                    .chain(lookup.sent_prefix)
                    .max_by_key(|sent| sent.shared_messages);
                let prefix_match = PrefixMatch {
                    aligned: alignment.is_some(),
                    depth,
                    continued_elsewhere,
                };
                self.add_peer_intro(&mut lookup, scope, client, prefix_match);
                (lookup, alignment)
            }
            Err(error) => {
                tracing::debug!(error = %error, "the store did not answer; using what this process knows");
                let history = alignment
                    .as_ref()
                    .map_or(client, |alignment| &alignment.history);
                let mut lookup = self.cached_lookup(scope, history, model, false);
                lookup.origins = self.track_origins(client, &evidence, alignment.as_ref());
                let prefix_match = self.state().prefix_match(
                    scope,
                    client,
                    alignment.is_some(),
                    evidence.recorded_count,
                );
                self.add_peer_intro(&mut lookup, scope, client, prefix_match);
                lookup.peer_intro = None;
                lookup.source = LookupSource::Failed;
                (lookup, alignment)
            }
        }
    }

    fn cached_lookup(
        &self,
        scope: &Scope,
        history: &Arc<History>,
        model: &str,
        warm: bool,
    ) -> Lookup {
        let state = self.state();
        let mut candidates = Vec::new();
        let mut trims = Vec::new();
        let mut paused = false;
        for turn in history.turns() {
            let key = (scope.tenant, turn.link);
            if let Some(snapshots) = state.snapshots_by_end.get(&key) {
                candidates.extend(snapshots.iter().cloned());
            }
            if let Some(unstored) = state.unstored_snapshots.get(&key) {
                candidates.extend(unstored.iter().cloned());
            }
            trims.extend(state.pins.by_model(&key).filter_map(|(used, model)| {
                let (trim, model) = (used.trim?, model.to_owned());
                Some(PrefixTrim { trim, model })
            }));
            paused |= state.paused.contains(&key);
        }
        let sent_prefix = state.sent_prefix(scope, history, model);
        let previous_send = history
            .tip()
            .and_then(|tip| state.pins.get(&(scope.tenant, tip), model).cloned());
        let origin = match (warm, self.degraded.load(Ordering::Relaxed)) {
            (false, _) => LookupSource::Cold,
            (true, false) => LookupSource::Warm,
            (true, true) => LookupSource::Degraded,
        };
        let mut lookup = Lookup {
            candidates,
            previous_send,
            prefix_trims: Vec::new(),
            source: origin,
            paused,
            peer_intro: None,
            sent_peer_intro: None,
            sent_prefix,
            prefix_match: PrefixMatch::default(),
            origins: Vec::new(),
            withheld: false,
        };
        for carried in trims {
            lookup.merge_trim(carried);
        }
        lookup
    }

    /// A request was recorded in the lineage of this number and name: its new messages with their marks,
    /// and what else later ones find it by.
    pub fn add_recorded(
        &self,
        scope: &Scope,
        history: &History,
        (lineage, name): (i64, &LineageName),
        record: &RequestRecord,
        shared: &SharedContent,
    ) {
        let (new, entries) = (&record.new_nodes, &record.lookup_entries);
        let mut state = self.state();
        state.add_lineage_name(scope, lineage, name);
        let from = new.first().map_or(0, |node| node.count - 1);
        let mut parent = match from.checked_sub(1) {
            Some(before) => history.turns()[before].link,
            None => history.root(),
        };
        for (node, marks) in new.iter().zip(&entries.marks) {
            state.add_step(
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
                    pending: false,
                },
            );
            parent = node.link;
        }
        for (link, _) in &entries.kept_messages {
            state.add_kept_message((scope.tenant, *link));
        }
        if let Some((tip, view)) = &entries.alignment {
            state.release_alignment(&(scope.tenant, *tip));
            state.add_bytes(ENTRY_BYTES);
            state.alignments.insert((scope.tenant, *tip), view.clone());
        }
    }

    /// The range that ends at `to` is observed, or waits for it with its words.
    pub fn mark_range_end(&self, scope: &Scope, to: Link) {
        let mut state = self.state();
        state.add_bytes(ENTRY_BYTES);
        state.range_ends.insert((scope.tenant, to));
    }

    /// A snapshot was prepared; its text is read when it is asked for.
    pub fn add_snapshot_meta(&self, scope: &Scope, meta: &SnapshotMeta) {
        let mut state = self.state();
        state.add_bytes(ENTRY_BYTES);
        state.add_snapshot(scope, meta);
    }

    /// Whether `id` is known to be a snapshot that covers nothing.
    pub fn is_peer_intro(&self, scope: &Scope, id: SnapshotId) -> bool {
        self.state().peer_intros.contains_key(&(scope.tenant, id))
    }

    /// The words of these messages are gone.
    pub fn remove_kept_messages(&self, messages: &[([u8; 32], Link)]) {
        let mut state = self.state();
        for message in messages {
            if state.kept_messages.remove(message) {
                state.bytes = state.bytes.saturating_sub(ENTRY_BYTES);
            }
        }
    }

    /// The text of a snapshot; `None` where neither this process nor the store can give it in time.
    pub async fn load_snapshot(&self, scope: &Scope, id: SnapshotId) -> Option<Arc<Snapshot>> {
        let cached = self.state().texts.get(&(scope.tenant, id)).cloned();
        if cached.is_some() {
            return cached;
        }
        match with_timeout(self.read_timeout, self.store.snapshot(scope, id)).await {
            Ok(Some(snapshot)) => Some(self.insert_snapshot(scope, snapshot)),
            Ok(None) => None,
            Err(error) => {
                tracing::debug!(error = %error, "a snapshot could not be read; using what this process knows");
                None
            }
        }
    }

    /// Of `candidates` those whose text this process holds: what is left when the store is gone.
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

    /// Settles what the request with this tip, for this model, is sent with. The first to settle
    /// wins, so two equal requests at the same moment go out alike. `before` says that `mine` is what
    /// it was sent with before. Whoever settles also calls [`Recall::release`].
    pub fn get_or_pin(
        &self,
        scope: &Scope,
        tip: Link,
        label: PinLabel<'_>,
        proposed: SentWith,
        sent_before: bool,
    ) -> SentWith {
        let mut state = self.state();
        state.add_bytes(ENTRY_BYTES);
        state
            .pins
            .get_or_pin((scope.tenant, tip), label, proposed, sent_before)
    }

    /// The request was settled as the view that `seen` is. Until it is recorded its repetitions are that
    /// same view, whatever is observed meanwhile.
    pub fn hold_alignment(&self, scope: &Scope, alignment: &Arc<Alignment>) {
        let Some(tip) = alignment.client.tip() else {
            return;
        };
        let key = (scope.tenant, tip);
        let mut state = self.state();
        // What is recorded as this view is found by it.
        if state.alignments.contains_key(&key) {
            return;
        }
        state.release_alignment(&key);
        state.add_bytes(alignment_bytes(alignment));
        state.held_alignments.insert(key, Arc::clone(alignment));
    }

    /// What the request with this tip is sent with at the moment, for this model.
    pub fn pinned(&self, scope: &Scope, tip: Link, model: &str) -> Option<SentWith> {
        self.state().pins.get(&(scope.tenant, tip), model).cloned()
    }

    /// The request with this tip, for this model, was refused as it `was` sent, and is to go out as `now`
    /// instead; unless an equal one was settled otherwise meanwhile. What both go out with.
    pub fn replace_refused_pin(
        &self,
        scope: &Scope,
        request: (Link, &str),
        refused: &SentWith,
        replacement: SentWith,
    ) -> SentWith {
        let (tip, model) = request;
        let mut state = self.state();
        state
            .pins
            .replace_refused(&(scope.tenant, tip), model, refused, replacement)
    }

    /// What the request with this tip, for this model, was sent with is stored now, under the number of
    /// `now`.
    pub fn renumber_pin(
        &self,
        scope: &Scope,
        request: (Link, &str),
        unstored: &SentWith,
        stored: SentWith,
    ) {
        let (tip, model) = request;
        let mut state = self.state();
        state
            .pins
            .renumber(&(scope.tenant, tip), model, unstored, stored);
    }

    /// A request that was settled has its answer. Where no upstream `accepted` it, and no equal one
    /// is under way, it is decided anew when it comes again.
    pub fn release_pin(&self, scope: &Scope, tip: Link, model: &str, accepted: bool) {
        let mut state = self.state();
        state.pins.release(&(scope.tenant, tip), model, accepted);
    }

    /// A snapshot was prepared or read.
    pub fn insert_snapshot(&self, scope: &Scope, snapshot: Snapshot) -> Arc<Snapshot> {
        let mut state = self.state();
        let size = snapshot.segments.iter().map(String::len).sum::<usize>();
        state.add_bytes(size + ENTRY_BYTES);
        state.add_snapshot(scope, &snapshot.meta);
        state.add_text(scope, snapshot)
    }

    /// Something was observed for the request that ends in `tip` and is not stored yet. It serves that
    /// request and what goes on from it: any other branch would be told anew in other words what it
    /// was told before (INV-PREFIX).
    pub fn add_unstored_snapshot(
        &self,
        scope: &Scope,
        tip: Link,
        snapshot: Snapshot,
    ) -> Arc<Snapshot> {
        let mut state = self.state();
        let size = snapshot.segments.iter().map(String::len).sum::<usize>();
        state.add_bytes(size + 2 * ENTRY_BYTES);
        let unstored = state
            .unstored_snapshots
            .entry((scope.tenant, tip))
            .or_default();
        unstored.push(snapshot.meta.clone());
        state.add_text(scope, snapshot)
    }

    /// The recorder wrote `tip` for the first time, for `model` and as it was sent, and knows every
    /// snapshot of its chain. From here on nobody asks the store for either.
    pub fn mark_complete(
        &self,
        scope: &Scope,
        tip: Link,
        label: PinLabel<'_>,
        sent_with: SentWith,
        snapshots: &[SnapshotMeta],
    ) {
        let mut state = self.state();
        state.add_bytes(ENTRY_BYTES);
        // This may drop everything, as whatever is charged may: what is learned stands behind it.
        state.add_sent_prefix(scope, tip, sent_with.snapshot);
        for meta in snapshots {
            state.add_snapshot(scope, meta);
        }
        state
            .pins
            .add_recorded((scope.tenant, tip), label, sent_with);
        state.complete_links.insert((scope.tenant, tip));
    }

    /// A request was recorded for `model` whose every message was recorded before. Only where all that was
    /// recorded of it is known here: elsewhere the first time counts, and only the store knows that.
    pub fn add_repetition(
        &self,
        scope: &Scope,
        tip: Link,
        label: PinLabel<'_>,
        sent_with: SentWith,
    ) {
        let (mut state, key) = (self.state(), (scope.tenant, tip));
        if state.complete_links.contains(&key) {
            state.add_bytes(ENTRY_BYTES);
            state.pins.add_recorded(key, label, sent_with);
        }
    }

    /// The range that ends at `to` may not be observed for now. Whether that is new.
    pub fn pause_observation(&self, scope: &Scope, to: Link) -> bool {
        let mut state = self.state();
        let new = !state.paused.contains(&(scope.tenant, to));
        if new {
            state.add_bytes(ENTRY_BYTES);
            state.paused.insert((scope.tenant, to));
        }
        new
    }

    /// The range that ends at `to` is being observed. Whether it was paused before.
    pub fn resume_observation(&self, scope: &Scope, to: Link) -> bool {
        self.state().paused.remove(&(scope.tenant, to))
    }

    /// Drops everything: something was deleted from the store.
    pub fn clear(&self) {
        *self.state() = CacheState::default();
    }
}

async fn with_timeout<T>(
    timeout: Duration,
    query: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(timeout, query)
        .await
        .unwrap_or_else(|_| Err(StoreError::Busy(format!("no answer within {timeout:?}"))))
}
