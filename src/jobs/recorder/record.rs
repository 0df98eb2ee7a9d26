//! Writes an exchange down: its new messages, the older ones that it confirms, and what it was sent
//! with.

use std::sync::Arc;

use super::state::Recorder;
use crate::history::{History, Link, Scope};
use crate::jobs::exchange::Exchange;
use crate::jobs::failure::log_store_failure;
use crate::jobs::overflow_observe::PendingOverflow;
use crate::jobs::part_report::PartReport;
use crate::jobs::traces;
use crate::jobs::track::Track;
use crate::lookup::{LookupParams, Sender, SentLabel};
use crate::memory::alignment::{EvidenceLevel, LineageName, SharedMessages};
use crate::memory::peer_memory::MAX_CHANCE_PREFIX;
use crate::memory::{Node, PartMeta, SnapshotId, record};
use crate::store::{
    LIVE_MS, OperatorRequest, RecordedRequest, RequestRecord, SHARED_KEY_THRESHOLD, SentWith,
    SharedContent, StoreError,
};
use crate::telemetry;

/// An exchange that is ready to be written. Nothing of it is visible to requests yet.
pub(super) struct PreparedExchange {
    pub(super) track: Track,
    pub(super) record: RequestRecord,
    /// What was observed for it while its client waited, and is not stored yet.
    pub(super) overflow: Option<Arc<PendingOverflow>>,
}

/// An exchange that is written, and what an operator asks of its conversation.
pub(super) type Recorded = (Track, Option<OperatorRequest>);

impl Recorder {
    /// Records `exchange` in one transaction and updates the cache. Returns its track.
    pub(super) async fn record(&mut self, exchange: &Exchange) -> Result<Recorded, StoreError> {
        let mut prepared = self.prepare(exchange).await?;
        let Some(pending) = prepared.overflow.take() else {
            let batch = vec![(exchange.scope.clone(), prepared.record.clone())];
            let recorded = self.base.store.record_batch(batch).await?.pop();
            let recorded = recorded.unwrap_or(Err(StoreError::Forgotten))?;
            return Ok(self.publish(exchange, prepared, recorded));
        };
        let PreparedExchange { track, record, .. } = &mut prepared;
        let (lineage, sent_with) = self.record_overflow(track, record, &pending).await?;
        track.join_lineage(lineage, record.thread_key.clone());
        record.sent_with = sent_with;
        let recorded = RecordedRequest {
            lineage,
            shared: self.find_shared_content(track, record).await,
            operator_request: self
                .base
                .store
                .operator_request(&exchange.scope, lineage)
                .await
                .unwrap_or_default(),
        };
        let (track, request) = self.publish(exchange, prepared, recorded);
        for part in &pending.observation.parts {
            let is_stored = |meta: &&PartMeta| (meta.kind, meta.span) == (part.kind, part.span);
            if let Some(meta) = track.parts.iter().find(is_stored) {
                let report = PartReport::from_part(part);
                self.shared
                    .reporter
                    .report(&exchange.scope, Some(&track), meta, report);
            }
        }
        Ok((track, request))
    }

    /// Works out what is to be written of `exchange`. Reads the store and the cache, changes neither.
    pub(super) async fn prepare(
        &mut self,
        exchange: &Exchange,
    ) -> Result<PreparedExchange, StoreError> {
        let (scope, history) = (&exchange.scope, &exchange.history);
        let Some(tip) = history.tip() else {
            return Err(StoreError::Corrupt(
                "an exchange without messages".to_owned(),
            ));
        };
        self.store_account(scope).await;
        let mut track = self
            .current_track(scope, history, exchange.sent_with.snapshot)
            .await?;
        let parent = track
            .nodes
            .last()
            .map_or_else(|| Link::root(scope), |node| node.link);
        // If this process did not see the last answer, the time of the last request is used.
        let answered_ms = track
            .answered_ms
            .or_else(|| track.nodes.last().map(|node| node.received_ms));
        let known_count = track.nodes.len();
        let mut new_nodes = exchange
            .measure_new_messages(&self.base.counter, known_count, answered_ms)
            .await?;
        let (shared_messages, continued_lineage) = match &exchange.alignment {
            Some(alignment) => (alignment.shared.clone(), alignment.lineage),
            // A client that keeps its first messages and its newest ones begins each request alike.
            None if known_count <= MAX_CHANCE_PREFIX => {
                self.find_shared_messages(exchange).unwrap_or_default()
            }
            None => Default::default(),
        };
        traces::mark_live(exchange, &mut new_nodes, &shared_messages);
        // A new chain continues the conversation that it is proven to belong to; an aligned one has its own, or none on purpose.
        let begins_chain =
            known_count == 0 || (exchange.alignment.is_none() && !exchange.sub_agent);
        let is_same = continued_lineage.is_some();
        let length = traces::carried_length(exchange, &shared_messages, is_same);
        let mut confirm = record::confirm_nodes(&mut track.nodes, length);
        confirm.extend(traces::confirm_repeated(
            exchange,
            &mut new_nodes,
            &shared_messages,
        ));
        // Only new messages can start another thread. A repeated request stays in its lineage.
        let thread_key = self.effective_thread_key(&track, exchange).await?;
        let lineage = match thread_key.as_deref() {
            key if exchange.sub_agent && !new_nodes.is_empty() => track.lineage_for_sub_agent(key),
            Some(key) if !new_nodes.is_empty() => track.lineage_for(key),
            _ => track.lineage,
        };
        let nodes: Vec<Node> = track.nodes.iter().chain(&new_nodes).copied().collect();
        // A repetition of an older request does not set the idle timer anew.
        let newest = !new_nodes.is_empty() || track.nodes.last().is_some_and(|tip| !tip.confirmed);
        let is_from_upstream = |origin| {
            let cache = &self.base.cache;
            cache.is_from_upstream(&exchange.scope, origin)
        };
        let mut traces = traces::for_exchange(exchange, &new_nodes, is_from_upstream);
        traces.kept_messages = self.archive.texts_to_keep(exchange, &nodes, &confirm).await;
        let mut record = RequestRecord {
            thread_key,
            lineage: lineage.or(continued_lineage.filter(|_| begins_chain)),
            parent,
            confirmed_count: nodes.iter().take_while(|node| node.confirmed).count(),
            contents: record::message_contents(scope, history, &nodes, &confirm),
            lookup_entries: traces,
            newly_confirmed: confirm,
            tip,
            count: history.len(),
            sent_with: exchange.sent_with.clone(),
            model: exchange.model.clone(),
            route_hash: exchange.route,
            at_ms: exchange.at_ms,
            timer: newest.then(|| self.timer(exchange)).flatten(),
            zone: exchange.zone_name(),
            new_nodes,
        };
        track.model.clone_from(&exchange.model);
        track.answered_ms = Some(exchange.answered_ms);
        track.zone = exchange.zone.clone().or(track.zone);
        track.route = exchange.route.or(track.route);
        track.allows_peer_memory = exchange.allows_peer_memory && !exchange.sub_agent;
        let overflow = self
            .shared
            .pending_overflows
            .get(exchange.sent_with.snapshot);
        // A pending overflow that was dropped before it could be stored is no snapshot of any store.
        if overflow.is_none() && record.sent_with.snapshot.is_some_and(|id| id.0 < 1) {
            record.sent_with = SentWith::default();
        }
        Ok(PreparedExchange {
            track,
            record,
            overflow,
        })
    }

    /// Everything that is recorded of the chain of `history`, whose request was sent with `snapshot`: from memory, with what
    /// other processes have done since, or from the store.
    async fn current_track(
        &mut self,
        scope: &Scope,
        history: &History,
        snapshot: Option<SnapshotId>,
    ) -> Result<Track, StoreError> {
        self.drop_tracks_of_earlier_database();
        let store = &*self.base.store;
        let known = self.tracks.take(scope, history);
        // A track without the snapshot that the request was sent with is incomplete: another task prepared that one.
        let Some(mut track) = known.filter(|track| self.knows_snapshot(track, snapshot)) else {
            return Track::load(store, scope, history).await;
        };
        // Other processes may have done the open jobs of this track. The query is about these jobs only: a job may be tried
        // for days, and its chain may be long.
        let open_ends = track.open_job_ends();
        if !open_ends.is_empty()
            && !track.update_jobs(&store.jobs_ending_at(scope, &open_ends).await?)
        {
            track.refresh_from(Track::load(store, scope, history).await?);
        }
        Ok(track)
    }

    /// Lets requests and later exchanges know of `exchange`, which was committed as `recorded`.
    pub(super) fn publish(
        &mut self,
        exchange: &Exchange,
        prepared: PreparedExchange,
        recorded: RecordedRequest,
    ) -> Recorded {
        let (scope, history) = (&exchange.scope, &exchange.history);
        let PreparedExchange {
            mut track, record, ..
        } = prepared;
        let RecordedRequest {
            lineage, shared, ..
        } = recorded;
        track.join_lineage(lineage, record.thread_key.clone());
        if let Some(at_ms) = record.timer.as_ref().and_then(|timer| timer.alarms.next()) {
            self.schedule_timer(at_ms);
        }
        // A confirmation may allow the Observer to go on.
        track.paused &= record.newly_confirmed.is_empty();
        metrics::counter!(telemetry::EXCHANGES_RECORDED).increment(1);
        let cache = &self.base.cache;
        let lineage_name = LineageName {
            key: track.thread_key().map(str::to_owned),
            is_unique: !shared.thread_key_shared,
        };
        cache.add_recorded(scope, history, (lineage, &lineage_name), &record, &shared);
        let sent_label = SentLabel {
            model: &exchange.model,
            thread_key: exchange.thread_key.as_deref(),
        };
        let (tip, sent_with) = (record.tip, record.sent_with);
        if record.new_nodes.is_empty() {
            cache.add_repetition(scope, tip, sent_label, sent_with);
        } else {
            track.nodes.extend(record.new_nodes);
            self.base.calibration.add(exchange, &track.nodes);
            cache.mark_complete(scope, tip, sent_label, sent_with, &track.snapshots);
        }
        (track, recorded.operator_request)
    }

    /// The messages of `exchange`, which starts a chain of its own, that are recorded on another
    /// chain.
    fn find_shared_messages(&self, exchange: &Exchange) -> Option<(SharedMessages, Option<i64>)> {
        let params = LookupParams {
            model: &exchange.model,
            thread_key: exchange.thread_key.as_deref(),
            system: exchange.system,
            level: EvidenceLevel::default(),
            sender: Sender {
                is_stranger: false,
                may_be_stored: true,
            },
            account: exchange.account,
            marks_quotations: false,
        };
        let cache = &self.base.cache;
        cache.find_overlap(&exchange.scope, &exchange.history, &params)
    }

    /// What `record` shares with other conversations. If the store cannot be read, all of it: then
    /// it is not used as proof of belonging to a conversation, and nothing else changes.
    async fn find_shared_content(&self, track: &Track, record: &RequestRecord) -> SharedContent {
        let new: Vec<Link> = record.new_nodes.iter().map(|node| node.link).collect();
        let found = self
            .base
            .store
            .find_shared_content(&track.scope, &new, track.thread_key());
        found.await.unwrap_or_else(|error| {
            log_store_failure(
                "the messages shared with other conversations could not be read",
                &error,
            );
            SharedContent {
                messages: new,
                thread_key_shared: true,
            }
        })
    }

    /// Whether `snapshot` is one of the chain's, or an introduction, which covers no message.
    fn knows_snapshot(&self, track: &Track, snapshot: Option<SnapshotId>) -> bool {
        let is_peer_intro = |id| self.base.cache.is_peer_intro(&track.scope, id);
        track.has_snapshot(snapshot) || snapshot.is_some_and(is_peer_intro)
    }

    /// The thread key under which `exchange` is recorded. `None` for a key that many live
    /// conversations share: a fixed id for all users of an application, or for everything that one
    /// user does, names no conversation.
    async fn effective_thread_key(
        &self,
        track: &Track,
        exchange: &Exchange,
    ) -> Result<Option<String>, StoreError> {
        let Some(key) = exchange.thread_key.as_deref() else {
            return Ok(None);
        };
        let (scope, since) = (&exchange.scope, exchange.at_ms - LIVE_MS);
        if track.has_thread_key(key)
            || self
                .base
                .store
                .count_live_conversations(scope, key, since)
                .await?
                < SHARED_KEY_THRESHOLD
        {
            return Ok(Some(key.to_owned()));
        }
        if self.base.cache.add_shared_thread_key(scope, key) {
            tracing::warn!(
                tenant = scope.tenant_label(),
                "more than {SHARED_KEY_THRESHOLD} live conversations have one thread key: it no longer identifies a conversation"
            );
        }
        Ok(None)
    }
}
