//! The recorder: one task that writes down what was said and decides what follows from it.
//!
//! It is the only writer of chains and snapshots, so decisions are made one after the other on one
//! view. It never calls a model and is never waited for by a request.

mod digests;
mod idle;
mod operator_requests;
mod overflow_observe;
mod queueing;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::count_tokens::measure_new_messages;
use super::events::{self, ConversationState};
use super::evidence::{self, PartReport};
use super::intake::{Exchange, QueuedExchange};
use super::failure::log_store_failure;
use super::message_archive;
use super::peer_memory;
use super::prepare::{Prepared, SnapshotDraft, SnapshotTarget, draft, load, load_chain, prepare};
use super::thread_keys;
use super::traces;
use super::track::{JobResult, Track, Tracks};
use super::{Shop, budget};
use crate::history::{Link, Scope};
use crate::memory::advance::{
    Action, ChainJob, JobState, SnapshotPlan, advance, bounded_snapshot, dropped as plan_dropped,
    early, threshold_status,
};
use crate::memory::alignment::{EvidenceLevel, LineageName, SharedMessages};
use crate::memory::{Node, PartKind, PartMeta, SnapshotCause, SnapshotId, Span, record};
use crate::store::cache::{LookupParams, PinLabel};
use crate::store::{RequestRecord, SentWith, SharedContent, StoreError, Urgency};
use crate::telemetry;

/// Tracks of one conversation that may be stale at the same time, its forks.
const MAX_STALE_TRACKS: usize = 8;

/// What a worker tells the recorder.
#[derive(Debug)]
pub(super) struct JobOutcome {
    pub(super) scope: Scope,
    pub(super) kind: PartKind,
    pub(super) span: Span,
    pub(super) result: JobResult,
    /// What is told of the part, where one was written.
    pub(super) report: Option<PartReport>,
}

/// Runs until `stop`, then records what is still waiting.
pub(super) async fn run(
    shop: Shop,
    mut exchanges: mpsc::Receiver<QueuedExchange>,
    mut outcomes: mpsc::UnboundedReceiver<JobOutcome>,
    wake: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut recorder = Recorder::new(shop, wake);
    loop {
        tokio::select! {
            biased;
            Some(outcome) = outcomes.recv() => {
                recorder.handle_outcome(outcome).await;
                recorder.shop.pending_work.fetch_sub(1, Ordering::SeqCst);
            }
            Some((exchange, _permit)) = exchanges.recv() => recorder.handle_exchange(exchange).await,
            () = stop.cancelled() => break,
            () = tokio::time::sleep(recorder.time_to_next_timer()) => {
                recorder.shop.pending_work.fetch_add(1, Ordering::SeqCst);
                recorder.fire_timer().await;
                recorder.shop.pending_work.fetch_sub(1, Ordering::SeqCst);
            }
            else => break,
        }
    }
    exchanges.close();
    while let Some((exchange, _permit)) = exchanges.recv().await {
        recorder.handle_exchange(exchange).await;
    }
}

pub(super) struct Recorder {
    shop: Shop,
    tracks: Tracks,
    wake: Arc<Notify>,
    /// When the next timer may have run out, in milliseconds since 1970.
    next_timer_ms: Option<i64>,
}

impl Recorder {
    pub(super) fn new(shop: Shop, wake: Arc<Notify>) -> Self {
        Self {
            shop,
            tracks: Tracks::default(),
            wake,
            // Whatever ran out while nobody looked.
            next_timer_ms: Some(0),
        }
    }

    pub(super) async fn handle_exchange(&mut self, exchange: Exchange) {
        let mut recorded = self.record(&exchange).await;
        for _ in 0..MAX_STALE_TRACKS {
            if !matches!(recorded, Err(StoreError::Forgotten)) {
                break;
            }
            // What was followed is no longer there, and is dropped: the store says what is.
            recorded = self.record(&exchange).await;
        }
        match recorded {
            Ok(mut track) => {
                self.shop.recall.set_degraded(false);
                budget::bill_pending(&self.shop, &exchange.scope).await;
                self.handle_operator_request(&mut track, &exchange).await;
                self.reprioritize(&mut track).await;
                let mut track = self.perform_steps(track, Some(&exchange)).await;
                self.publish_digest(&mut track).await;
                let settings = self.shop.settings.current();
                events::emit_status(
                    &self.shop,
                    &settings,
                    &track,
                    &threshold_status(&track.path()),
                );
                self.prepare_model_switch(&track).await;
                self.tracks.put(track);
            }
            // The track is dropped with the failure: the next request reads the truth again.
            Err(error) => {
                // A conversation that was forgotten meanwhile is no trouble of the store.
                let degraded = !matches!(error, StoreError::Forgotten);
                self.shop.recall.set_degraded(degraded);
                log_store_failure("an exchange could not be recorded", &error);
            }
        }
    }

    pub(super) async fn handle_outcome(&mut self, mut outcome: JobOutcome) {
        let tracks = self.tracks.take_containing(&outcome.scope, &outcome.span);
        self.report_part(&mut outcome, tracks.first()).await;
        for mut track in tracks {
            track.apply_result(outcome.kind, &outcome.span, &outcome.result);
            let mut track = self.perform_steps(track, None).await;
            self.publish_digest(&mut track).await;
            self.prepare_model_switch(&track).await;
            self.tracks.put(track);
        }
    }

    /// Tells what a part kept that was written; `track` is a chain that holds it.
    async fn report_part(&self, outcome: &mut JobOutcome, track: Option<&Track>) {
        let (JobResult::Written(part), Some(report)) = (&outcome.result, outcome.report.take())
        else {
            return;
        };
        let loaded = match track {
            None if self.shop.audit.is_some() => {
                self.load_track(&outcome.scope, part.span.to).await
            }
            _ => None,
        };
        let track = track.or(loaded.as_ref());
        evidence::report_part(&self.shop, &outcome.scope, track, part, report);
    }

    /// The chain that ends in `tip`, where nobody follows it here.
    async fn load_track(&self, scope: &Scope, tip: Link) -> Option<Track> {
        let chain = self.shop.store.chain_links(scope, tip).await.ok()?;
        load_chain(&self.shop, scope, &chain).await.ok()
    }

    /// Writes the exchange down: its new messages, which of the old ones it confirms, and what it
    /// was sent with.
    async fn record(&mut self, exchange: &Exchange) -> Result<Track, StoreError> {
        let (scope, history) = (&exchange.scope, &exchange.history);
        let Some(tip) = history.tip() else {
            return Err(StoreError::Corrupt(
                "an exchange without messages".to_owned(),
            ));
        };
        let mut track = match self.tracks.take(scope, history) {
            Some(track) if !self.knows_snapshot(&track, exchange.sent_with.snapshot) => {
                // The request was sent with what was prepared beside this task.
                load(&self.shop, scope, history).await?
            }
            Some(mut track) => {
                // The work it waits for may long be done elsewhere, from the first request after it was
                // offered. Of that alone is asked: a job may be tried for days, and its chain is long.
                let open_ends = track.open_job_ends();
                if !open_ends.is_empty()
                    && !track.update_jobs(&self.shop.store.jobs_ending_at(scope, &open_ends).await?)
                {
                    track.refresh_from(load(&self.shop, scope, history).await?);
                }
                track
            }
            None => load(&self.shop, scope, history).await?,
        };
        let parent = track
            .nodes
            .last()
            .map_or_else(|| Link::root(scope), |node| node.link);
        // Where its answer was not seen, the request itself is the next best thing.
        let answered_ms = track
            .answered_ms
            .or_else(|| track.nodes.last().map(|node| node.received_ms));
        let known_count = track.nodes.len();
        let mut new_nodes =
            measure_new_messages(&self.shop, exchange, known_count, answered_ms).await?;
        let (shared_messages, continued_lineage) = match &exchange.alignment {
            Some(alignment) => (alignment.shared.clone(), alignment.lineage),
            None if known_count == 0 => self.find_shared_messages(exchange).unwrap_or_default(),
            None => Default::default(),
        };
        traces::mark_live(exchange, &mut new_nodes, &shared_messages);
        let mut confirm = record::confirm_nodes(&mut track.nodes, history.len());
        confirm.extend(traces::confirm_repeated(
            exchange,
            &mut new_nodes,
            &shared_messages,
        ));
        // Only what is new belongs to another thread; a repetition stays where it is.
        let thread_key = thread_keys::effective_thread_key(&self.shop, &track, exchange).await?;
        let lineage = match thread_key.as_deref() {
            key if exchange.sub_agent && !new_nodes.is_empty() => track.lineage_for_sub_agent(key),
            Some(key) if !new_nodes.is_empty() => track.lineage_for(key),
            _ => track.lineage,
        };
        let nodes: Vec<Node> = track.nodes.iter().chain(&new_nodes).copied().collect();
        // An older request that came again says nothing of when the conversation fell idle.
        let newest = !new_nodes.is_empty() || track.nodes.last().is_some_and(|tip| !tip.confirmed);
        let is_from_upstream = |origin| self.shop.recall.is_from_upstream(origin);
        let mut traces = traces::for_exchange(exchange, &new_nodes, is_from_upstream);
        traces.kept_messages =
            message_archive::texts_to_keep(&self.shop, exchange, &nodes, &confirm).await;
        let mut record = RequestRecord {
            thread_key,
            lineage: lineage.or(continued_lineage.filter(|_| known_count == 0)),
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
        let pending_overflow = self.shop.pending_overflows.get(exchange.sent_with.snapshot);
        let (recorded, sent_with) = match &pending_overflow {
            None => {
                // One that was given up before it could be stored is none.
                if record.sent_with.snapshot.is_some_and(|id| id.0 < 1) {
                    record.sent_with = SentWith::default();
                }
                let recorded = self.shop.store.record(scope, &record).await?;
                (recorded, record.sent_with.clone())
            }
            Some(pending) => self.record_overflow(&mut track, &record, pending).await?,
        };
        track.join_lineage(recorded, record.thread_key.clone());
        if let Some(at_ms) = record.timer.as_ref().and_then(|timer| timer.alarms.next()) {
            self.schedule_timer(at_ms);
        }
        // Whatever is confirmed may make room for what had to wait.
        track.paused &= record.newly_confirmed.is_empty();
        metrics::counter!(telemetry::EXCHANGES_RECORDED).increment(1);
        let recall = &self.shop.recall;
        let shared_content = self.find_shared_content(&track, &record).await;
        let lineage_name = LineageName {
            key: track.thread_key().map(str::to_owned),
            is_unique: !shared_content.thread_key_shared,
        };
        recall.add_recorded(
            scope,
            history,
            (recorded, &lineage_name),
            &record,
            &shared_content,
        );
        let pin_label = PinLabel {
            model: &exchange.model,
            thread_key: exchange.thread_key.as_deref(),
        };
        if record.new_nodes.is_empty() {
            recall.add_repetition(scope, tip, pin_label, sent_with);
        } else {
            track.nodes.extend(record.new_nodes);
            recall.mark_complete(scope, tip, pin_label, sent_with, &track.snapshots);
        }
        if let Some(pending) = pending_overflow {
            for part in &pending.observation.parts {
                let is_stored = |meta: &&PartMeta| (meta.kind, meta.span) == (part.kind, part.span);
                if let Some(meta) = track.parts.iter().find(is_stored) {
                    evidence::report_part(
                        &self.shop,
                        scope,
                        Some(&track),
                        meta,
                        PartReport::from_part(part),
                    );
                }
            }
        }
        Ok(track)
    }

    /// Where `exchange`, which is a chain of its own, says again what was recorded on another one.
    fn find_shared_messages(&self, exchange: &Exchange) -> Option<(SharedMessages, Option<i64>)> {
        let params = LookupParams {
            model: &exchange.model,
            thread_key: exchange.thread_key.as_deref(),
            system: exchange.system,
            level: EvidenceLevel::default(),
        };
        let recall = &self.shop.recall;
        recall.find_overlap(&exchange.scope, &exchange.history, &params)
    }

    /// What of `record` other conversations share. Where the store cannot say it, all of it: what proves
    /// nothing is withheld, and nothing else.
    async fn find_shared_content(&self, track: &Track, record: &RequestRecord) -> SharedContent {
        let new: Vec<Link> = record.new_nodes.iter().map(|node| node.link).collect();
        let found = self
            .shop
            .store
            .find_shared_content(&track.scope, &new, track.thread_key());
        found.await.unwrap_or_else(|error| {
            log_store_failure("what other conversations share could not be read", &error);
            SharedContent {
                messages: new,
                thread_key_shared: true,
            }
        })
    }

    /// Whether `snapshot` is one of the chain's, or covers nothing of any.
    fn knows_snapshot(&self, track: &Track, snapshot: Option<SnapshotId>) -> bool {
        let is_peer_intro = |id| self.shop.recall.is_peer_intro(&track.scope, id);
        track.has_snapshot(snapshot) || snapshot.is_some_and(is_peer_intro)
    }

    /// What waits for this conversation goes the way of its newest request, and is as urgent as that
    /// has made it. Told when it changed: a job of a way that is gone would wait for ever.
    async fn reprioritize(&self, track: &mut Track) {
        let is_open = |work: &&ChainJob| work.state != JobState::Abandoned;
        let ends: Vec<Link> = track
            .work
            .iter()
            .filter(is_open)
            .map(|w| w.span.to)
            .collect();
        if ends.is_empty() {
            return;
        }
        let urgency = Urgency {
            observation: self.urgency(track, PartKind::Chunk),
            reflection: self.urgency(track, PartKind::Reflection),
        };
        let tenths = [urgency.observation / 100, urgency.reflection / 100];
        let priorities = Some((track.route, tenths));
        if track.last_priorities == priorities {
            return;
        }
        let store = &self.shop.store;
        match store
            .reprioritize(&track.scope, &ends, track.route, urgency)
            .await
        {
            Ok(()) => {
                track.last_priorities = priorities;
                self.wake.notify_one();
            }
            Err(error) => log_store_failure("waiting jobs could not be steered", &error),
        }
    }

    fn urgency(&self, track: &Track, kind: PartKind) -> u32 {
        let settings = self.shop.settings.current();
        threshold_status(&track.path()).urgency(kind, settings.policy_for(&track.model))
    }

    /// Does what follows for `track`, until nothing more does.
    async fn perform_steps(&mut self, mut track: Track, exchange: Option<&Exchange>) -> Track {
        // Each round can make one more snapshot or reflection due, hardly ever a third.
        for _ in 0..4 {
            let settings = self.shop.settings.current();
            let steps = advance(&track.path(), settings.policy_for(&track.model));
            let (mut changed, mut ranges) = (false, Vec::new());
            for step in steps {
                changed |= self.step(&mut track, step, &mut ranges).await;
            }
            // Where something changed, that may be done with it.
            let rest = exchange.filter(|_| !changed);
            if let Some(step) = rest.and_then(|exchange| self.cover_dropped(&track, exchange)) {
                changed |= self.step(&mut track, step, &mut ranges).await;
            }
            // The words of a range are only at hand while its request is.
            if let Some(exchange) = exchange.filter(|_| !ranges.is_empty() && !track.paused) {
                self.observe(&mut track, ranges, exchange, None).await;
            }
            if !changed {
                break;
            }
        }
        track
    }

    /// Does `step`, or puts the range that is to be observed to the others; whether something else follows
    /// for `track` now.
    async fn step(&self, track: &mut Track, step: Action, ranges: &mut Vec<(Span, u32)>) -> bool {
        match step {
            Action::Observe {
                span,
                message_tokens,
            } => {
                ranges.push((span, message_tokens));
                false
            }
            Action::Reflect {
                sources,
                span,
                message_tokens,
                ..
            } => self.reflect(track, sources, span, message_tokens).await,
            Action::Snapshot(plan) => self.snapshot(track, plan).await,
            Action::Shorten {
                span,
                message_tokens,
                limit,
                plan,
            } => {
                let sizes = (message_tokens, limit);
                self.shorten(track, plan, span, sizes).await
            }
        }
    }

    /// What the client no longer sends is covered at once, where it is observed: nothing else would
    /// tell the model of it.
    fn cover_dropped(&self, track: &Track, exchange: &Exchange) -> Option<Action> {
        let alignment = exchange.alignment.as_ref()?;
        let sent_from = match alignment.positions.fully_sent_from() {
            0 => return None,
            // A window that slides will drop as many again as came.
            from => {
                from + track
                    .nodes
                    .iter()
                    .rev()
                    .take_while(|n| n.first_length == track.nodes.len())
                    .count()
            }
        };
        let settings = self.shop.settings.current();
        let (path, policy) = (track.path(), settings.policy_for(&track.model));
        plan_dropped(&path, policy, sent_from).map(|plan| bounded_snapshot(&path, policy, plan))
    }

    /// Holds ready what is sent if the next request asks another model, where that is configured.
    async fn prepare_model_switch(&self, track: &Track) {
        let settings = self.shop.settings.current().for_model(&track.model);
        let policy = &settings.policy;
        if !policy.early_activation.model_change && !policy.early_reflection.model_change {
            return;
        }
        let Some(tip) = track.nodes.last() else {
            return;
        };
        let target = SnapshotTarget {
            tip: tip.link,
            tip_count: track.nodes.len(),
            eligible_now: false,
            zone: track.zone.as_ref().unwrap_or(&settings.zone),
            policy,
        };
        let composed = match early(&track.path(), policy, SnapshotCause::ModelChange) {
            None => Ok(None),
            Some(plan) => draft(&self.shop, &track.scope, plan, &target, &settings, true).await,
        };
        let snapshot = composed.unwrap_or_else(|error| {
            log_store_failure("a snapshot for another model could not be composed", &error);
            None
        });
        let draft_for_switch = match snapshot {
            None => None,
            Some(new) => Some(SnapshotDraft::new(
                new,
                peer_memory::for_track(&self.shop, track, None, track.last_confirmed()).await,
            )),
        };
        let standby = &self.shop.model_switch_snapshots;
        standby.replace(
            ConversationState::from_track(track),
            &track.nodes,
            draft_for_switch,
        );
    }

    async fn snapshot(&self, track: &mut Track, plan: SnapshotPlan) -> bool {
        let (Some(tip), tip_count) = (track.nodes.last(), track.nodes.len()) else {
            return false;
        };
        let settings = self.shop.settings.current().for_model(&track.model);
        let target = SnapshotTarget {
            tip: tip.link,
            tip_count,
            eligible_now: false,
            zone: track.zone.as_ref().unwrap_or(&settings.zone),
            policy: &settings.policy,
        };
        let peer_section =
            peer_memory::for_track(&self.shop, track, None, track.last_confirmed()).await;
        let conversation = ConversationState::from_track(track);
        match prepare(
            &self.shop,
            &track.scope,
            plan,
            &target,
            &settings,
            peer_section,
        )
        .await
        {
            Ok(Some(Prepared {
                snapshot,
                peer_snapshot,
            })) => {
                track
                    .snapshots
                    .extend(peer_snapshot.map(|stored| stored.meta.clone()));
                let is_new = track
                    .snapshots
                    .iter()
                    .all(|existing| existing.id != snapshot.meta.id);
                if is_new {
                    let meta = &snapshot.meta;
                    events::emit_activated(&self.shop, &conversation, &track.model, tip.link, meta);
                    track.snapshots.push(meta.clone());
                }
                is_new
            }
            Ok(None) => {
                track.stale = true;
                false
            }
            Err(error) => {
                track.stale = true;
                log_store_failure("a snapshot could not be prepared", &error);
                false
            }
        }
    }
}
