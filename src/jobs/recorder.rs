//! The recorder: one task that writes down what was said and decides what follows from it.
//!
//! It is the only writer of chains and snapshots, so decisions are made one after the other on one
//! view. It never calls a model and is never waited for by a request.

mod adopting;
mod idle;
mod queueing;
mod telling;
mod wishes;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use self::idle::zone_name;
use super::events::{self, Stood};
use super::evidence::{self, Kept};
use super::intake::{Exchange, Waiting};
use super::minutes;
use super::names;
use super::others;
use super::prepare::{Draft, Occasion, Prepared, draft, load, load_chain, prepare};
use super::traces;
use super::track::{Settled, Track, Tracks};
use super::weigh::weigh;
use super::{Shop, books};
use crate::history::{Link, Scope};
use crate::memory::advance::{
    Plan, Step, Work, WorkState, advance, bounded, dropped as plan_dropped, early, standing,
};
use crate::memory::place::{Agreed, EvidenceLevel, LineageName};
use crate::memory::{Cause, Node, PartKind, PartMeta, SnapshotId, Span, record};
use crate::store::recall::{Asking, Asks};
use crate::store::{Elsewhere, Record, StoreError, Urgency, Used};
use crate::telemetry;

/// Tracks of one conversation that may be stale at the same time, its forks.
const STALE: usize = 8;

/// What a worker tells the recorder.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) scope: Scope,
    pub(super) kind: PartKind,
    pub(super) span: Span,
    pub(super) settled: Settled,
    /// What is told of the part, where one was written.
    pub(super) kept: Option<Kept>,
}

/// Runs until `stop`, then records what is still waiting.
pub(super) async fn run(
    shop: Shop,
    mut exchanges: mpsc::Receiver<Waiting>,
    mut outcomes: mpsc::UnboundedReceiver<Outcome>,
    wake: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut recorder = Recorder::new(shop, wake);
    loop {
        tokio::select! {
            biased;
            Some(outcome) = outcomes.recv() => {
                recorder.outcome(outcome).await;
                recorder.shop.untold.fetch_sub(1, Ordering::SeqCst);
            }
            Some((exchange, _room)) = exchanges.recv() => recorder.exchange(exchange).await,
            () = stop.cancelled() => break,
            () = tokio::time::sleep(recorder.until_ring()) => {
                recorder.shop.untold.fetch_add(1, Ordering::SeqCst);
                recorder.ring().await;
                recorder.shop.untold.fetch_sub(1, Ordering::SeqCst);
            }
            else => break,
        }
    }
    exchanges.close();
    while let Some((exchange, _room)) = exchanges.recv().await {
        recorder.exchange(exchange).await;
    }
}

pub(super) struct Recorder {
    shop: Shop,
    tracks: Tracks,
    wake: Arc<Notify>,
    /// When the next timer may have run out, in milliseconds since 1970.
    rings_at: Option<i64>,
}

impl Recorder {
    pub(super) fn new(shop: Shop, wake: Arc<Notify>) -> Self {
        Self {
            shop,
            tracks: Tracks::default(),
            wake,
            // Whatever ran out while nobody looked.
            rings_at: Some(0),
        }
    }

    pub(super) async fn exchange(&mut self, exchange: Exchange) {
        let mut recorded = self.record(&exchange).await;
        for _ in 0..STALE {
            if !matches!(recorded, Err(StoreError::Forgotten)) {
                break;
            }
            // What was followed is no longer there, and is dropped: the store says what is.
            recorded = self.record(&exchange).await;
        }
        match recorded {
            Ok(mut track) => {
                self.shop.recall.troubled(false);
                books::collect(&self.shop, &exchange.scope).await;
                self.grant(&mut track, &exchange).await;
                self.steer(&mut track).await;
                let mut track = self.perform(track, Some(&exchange)).await;
                self.tell(&mut track).await;
                let settings = self.shop.settings.now();
                events::status(&self.shop, &settings, &track, &standing(&track.path()));
                self.stand_by(&track).await;
                self.tracks.put(track);
            }
            // The track is dropped with the failure: the next request reads the truth again.
            Err(error) => {
                // A conversation that was forgotten meanwhile is no trouble of the store.
                let troubled = !matches!(error, StoreError::Forgotten);
                self.shop.recall.troubled(troubled);
                failed("an exchange could not be recorded", &error);
            }
        }
    }

    pub(super) async fn outcome(&mut self, mut outcome: Outcome) {
        let tracks = self.tracks.take_holding(&outcome.scope, &outcome.span);
        self.audit(&mut outcome, tracks.first()).await;
        for mut track in tracks {
            track.settle(outcome.kind, &outcome.span, &outcome.settled);
            let mut track = self.perform(track, None).await;
            self.tell(&mut track).await;
            self.stand_by(&track).await;
            self.tracks.put(track);
        }
    }

    /// Tells what a part kept that was written; `track` is a chain that holds it.
    async fn audit(&self, outcome: &mut Outcome, track: Option<&Track>) {
        let (Settled::Written(part), Some(kept)) = (&outcome.settled, outcome.kept.take()) else {
            return;
        };
        let read = match track {
            None if self.shop.audit.is_some() => self.read(&outcome.scope, part.span.to).await,
            _ => None,
        };
        let track = track.or(read.as_ref());
        evidence::tell(&self.shop, &outcome.scope, track, part, kept);
    }

    /// The chain that ends in `tip`, where nobody follows it here.
    async fn read(&self, scope: &Scope, tip: Link) -> Option<Track> {
        let chain = self.shop.store.chain(scope, tip).await.ok()?;
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
            Some(track) if !self.knows(&track, exchange.used.snapshot) => {
                // The request was sent with what was prepared beside this task.
                load(&self.shop, scope, history).await?
            }
            Some(mut track) => {
                // The work it waits for may long be done elsewhere, from the first request after it was
                // offered. Of that alone is asked: a job may be tried for days, and its chain is long.
                let ends = track.awaited();
                if !ends.is_empty() && !track.hear(&self.shop.store.work(scope, &ends).await?) {
                    track.learn(load(&self.shop, scope, history).await?);
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
            .or_else(|| track.nodes.last().map(|node| node.seen_ms));
        let known = track.nodes.len();
        let mut new_nodes = weigh(&self.shop, exchange, known, answered_ms).await?;
        let (agreed, continued) = match &exchange.seen {
            Some(seen) => (seen.agreed.clone(), seen.lineage),
            None if known == 0 => self.agreed(exchange).unwrap_or_default(),
            None => Default::default(),
        };
        traces::date(exchange, &mut new_nodes, &agreed);
        let mut confirm = record::confirm(&mut track.nodes, history.len());
        confirm.extend(traces::confirm(exchange, &mut new_nodes, &agreed));
        // Only what is new belongs to another thread; a repetition stays where it is.
        let thread_key = names::of(&self.shop, &track, exchange).await?;
        let lineage = match thread_key.as_deref() {
            key if exchange.child && !new_nodes.is_empty() => track.lineage_of_child(key),
            Some(key) if !new_nodes.is_empty() => track.lineage_for(key),
            _ => track.lineage,
        };
        let nodes: Vec<Node> = track.nodes.iter().chain(&new_nodes).copied().collect();
        // An older request that came again says nothing of when the conversation fell idle.
        let newest = !new_nodes.is_empty() || track.nodes.last().is_some_and(|tip| !tip.confirmed);
        let gave = |origin| self.shop.recall.gave(origin);
        let mut traces = traces::of(exchange, &new_nodes, gave);
        traces.words = minutes::of(&self.shop, exchange, &nodes, &confirm).await;
        let mut record = Record {
            thread_key,
            lineage: lineage.or(continued.filter(|_| known == 0)),
            parent,
            confirmed: nodes.iter().take_while(|node| node.confirmed).count(),
            contents: record::contents(scope, history, &nodes, &confirm),
            traces,
            confirm,
            tip,
            count: history.len(),
            used: exchange.used.clone(),
            model: exchange.model.clone(),
            way: exchange.way,
            at_ms: exchange.at_ms,
            timer: newest.then(|| self.timer(exchange)).flatten(),
            zone: exchange.zone.as_ref().and_then(zone_name),
            new_nodes,
        };
        track.model.clone_from(&exchange.model);
        track.answered_ms = Some(exchange.answered_ms);
        track.zone = exchange.zone.clone().or(track.zone);
        track.way = exchange.way.or(track.way);
        track.shared = exchange.shared && !exchange.child;
        let rescued = self.shop.rescues.of(exchange.used.snapshot);
        let (recorded, used) = match &rescued {
            None => {
                // One that was given up before it could be stored is none.
                if record.used.snapshot.is_some_and(|id| id.0 < 1) {
                    record.used = Used::default();
                }
                let recorded = self.shop.store.record(scope, &record).await?;
                (recorded, record.used.clone())
            }
            Some(rescued) => self.adopt(&mut track, &record, rescued).await?,
        };
        track.joined(recorded, record.thread_key.clone());
        if let Some(at_ms) = record.timer.as_ref().and_then(|timer| timer.alarms.next()) {
            self.expect_ring(at_ms);
        }
        // Whatever is confirmed may make room for what had to wait.
        track.paused &= record.confirm.is_empty();
        metrics::counter!(telemetry::EXCHANGES_RECORDED).increment(1);
        let recall = &self.shop.recall;
        let elsewhere = self.elsewhere(&track, &record).await;
        let name = LineageName {
            key: track.key().map(str::to_owned),
            only: !elsewhere.name,
        };
        recall.follow(scope, history, (recorded, &name), &record, &elsewhere);
        let asks = Asks {
            model: &exchange.model,
            key: exchange.thread_key.as_deref(),
        };
        if record.new_nodes.is_empty() {
            recall.again(scope, tip, asks, used);
        } else {
            track.nodes.extend(record.new_nodes);
            recall.complete(scope, tip, asks, used, &track.snapshots);
        }
        if let Some(rescued) = rescued {
            for part in &rescued.adoption.parts {
                let stored = |meta: &&PartMeta| (meta.kind, meta.span) == (part.kind, part.span);
                if let Some(meta) = track.parts.iter().find(stored) {
                    evidence::tell(&self.shop, scope, Some(&track), meta, Kept::of(part));
                }
            }
        }
        Ok(track)
    }

    /// Where `exchange`, which is a chain of its own, says again what was recorded on another one.
    fn agreed(&self, exchange: &Exchange) -> Option<(Agreed, Option<i64>)> {
        let asking = Asking {
            model: &exchange.model,
            key: exchange.thread_key.as_deref(),
            system: exchange.system,
            level: EvidenceLevel::default(),
        };
        let recall = &self.shop.recall;
        recall.agreed(&exchange.scope, &exchange.history, &asking)
    }

    /// What of `record` other conversations share. Where the store cannot say it, all of it: what proves
    /// nothing is withheld, and nothing else.
    async fn elsewhere(&self, track: &Track, record: &Record) -> Elsewhere {
        let new: Vec<Link> = record.new_nodes.iter().map(|node| node.link).collect();
        let found = self.shop.store.elsewhere(&track.scope, &new, track.key());
        found.await.unwrap_or_else(|error| {
            failed("what other conversations share could not be read", &error);
            Elsewhere {
                messages: new,
                name: true,
            }
        })
    }

    /// Whether `snapshot` is one of the chain's, or covers nothing of any.
    fn knows(&self, track: &Track, snapshot: Option<SnapshotId>) -> bool {
        let opens = |id| self.shop.recall.opens(&track.scope, id);
        track.knows(snapshot) || snapshot.is_some_and(opens)
    }

    /// What waits for this conversation goes the way of its newest request, and is as urgent as that
    /// has made it. Told when it changed: a job of a way that is gone would wait for ever.
    async fn steer(&self, track: &mut Track) {
        let open = |work: &&Work| work.state != WorkState::Abandoned;
        let ends: Vec<Link> = track.work.iter().filter(open).map(|w| w.span.to).collect();
        if ends.is_empty() {
            return;
        }
        let urgency = Urgency {
            observation: self.urgency(track, PartKind::Chunk),
            reflection: self.urgency(track, PartKind::Reflection),
        };
        let tenths = [urgency.observation / 100, urgency.reflection / 100];
        let steered = Some((track.way, tenths));
        if track.steered == steered {
            return;
        }
        let store = &self.shop.store;
        match store.steer(&track.scope, &ends, track.way, urgency).await {
            Ok(()) => {
                track.steered = steered;
                self.wake.notify_one();
            }
            Err(error) => failed("waiting jobs could not be steered", &error),
        }
    }

    fn urgency(&self, track: &Track, kind: PartKind) -> u32 {
        let settings = self.shop.settings.now();
        standing(&track.path()).urgency(kind, settings.policy_for(&track.model))
    }

    /// Does what follows for `track`, until nothing more does.
    async fn perform(&mut self, mut track: Track, exchange: Option<&Exchange>) -> Track {
        // Each round can make one more snapshot or reflection due, hardly ever a third.
        for _ in 0..4 {
            let settings = self.shop.settings.now();
            let steps = advance(&track.path(), settings.policy_for(&track.model));
            let (mut changed, mut ranges) = (false, Vec::new());
            for step in steps {
                changed |= self.step(&mut track, step, &mut ranges).await;
            }
            // Where something changed, that may be done with it.
            let rest = exchange.filter(|_| !changed);
            if let Some(step) = rest.and_then(|exchange| self.dropped(&track, exchange)) {
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
    async fn step(&self, track: &mut Track, step: Step, ranges: &mut Vec<(Span, u32)>) -> bool {
        match step {
            Step::Observe {
                span,
                message_tokens,
            } => {
                ranges.push((span, message_tokens));
                false
            }
            Step::Reflect {
                sources,
                span,
                message_tokens,
                ..
            } => self.reflect(track, sources, span, message_tokens).await,
            Step::Snapshot(plan) => self.snapshot(track, plan).await,
            Step::Shorten {
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
    fn dropped(&self, track: &Track, exchange: &Exchange) -> Option<Step> {
        let seen = exchange.seen.as_ref()?;
        let sent_from = match seen.view.sent_from() {
            0 => return None,
            // A window that slides will drop as many again as came.
            from => {
                from + track
                    .nodes
                    .iter()
                    .rev()
                    .take_while(|n| n.born == track.nodes.len())
                    .count()
            }
        };
        let settings = self.shop.settings.now();
        let (path, policy) = (track.path(), settings.policy_for(&track.model));
        plan_dropped(&path, policy, sent_from).map(|plan| bounded(&path, policy, plan))
    }

    /// Holds ready what is sent if the next request asks another model, where that is configured.
    async fn stand_by(&self, track: &Track) {
        let settings = self.shop.settings.now().for_model(&track.model);
        let policy = &settings.policy;
        if !policy.early_activation.model_change && !policy.early_reflection.model_change {
            return;
        }
        let Some(tip) = track.nodes.last() else {
            return;
        };
        let occasion = Occasion {
            tip: tip.link,
            tip_count: track.nodes.len(),
            at_once: false,
            zone: track.zone.as_ref().unwrap_or(&settings.zone),
            policy,
        };
        let composed = match early(&track.path(), policy, Cause::ModelChange) {
            None => Ok(None),
            Some(plan) => draft(&self.shop, &track.scope, plan, &occasion, &settings, true).await,
        };
        let snapshot = composed.unwrap_or_else(|error| {
            failed("a snapshot for another model could not be composed", &error);
            None
        });
        let ready = match snapshot {
            None => None,
            Some(new) => Some(Draft::of(
                new,
                others::of(&self.shop, track, None, track.settled()).await,
            )),
        };
        let standby = &self.shop.standby;
        standby.hold(Stood::of(track), &track.nodes, ready);
    }

    async fn snapshot(&self, track: &mut Track, plan: Plan) -> bool {
        let (Some(tip), tip_count) = (track.nodes.last(), track.nodes.len()) else {
            return false;
        };
        let settings = self.shop.settings.now().for_model(&track.model);
        let occasion = Occasion {
            tip: tip.link,
            tip_count,
            at_once: false,
            zone: track.zone.as_ref().unwrap_or(&settings.zone),
            policy: &settings.policy,
        };
        let told = others::of(&self.shop, track, None, track.settled()).await;
        let stood = Stood::of(track);
        match prepare(&self.shop, &track.scope, plan, &occasion, &settings, told).await {
            Ok(Some(Prepared { snapshot, bound })) => {
                track
                    .snapshots
                    .extend(bound.map(|bound| bound.meta.clone()));
                let new = track
                    .snapshots
                    .iter()
                    .all(|known| known.id != snapshot.meta.id);
                if new {
                    let meta = &snapshot.meta;
                    events::activated(&self.shop, &stood, &track.model, tip.link, meta);
                    track.snapshots.push(meta.clone());
                }
                new
            }
            Ok(None) => {
                track.stale = true;
                false
            }
            Err(error) => {
                track.stale = true;
                failed("a snapshot could not be prepared", &error);
                false
            }
        }
    }
}

pub(super) fn failed(what: &'static str, error: &StoreError) {
    metrics::counter!(telemetry::STORE_FAILURES).increment(1);
    tracing::warn!(error = %error, "{what}; requests pass, and the next one tries again");
}
