//! The recorder: one task that writes down what was said and decides what follows from it.
//!
//! It is the only writer of chains and snapshots, so decisions are made one after the other on one
//! view. It never calls a model and is never waited for by a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::intake::{Exchange, Waiting};
use super::payload;
use super::track::{Settled, Track, Tracks};
use super::{Shop, now_ms};
use crate::history::{History, Link, Scope};
use crate::memory::advance::{
    Path, Plan, Step, Work, WorkState, advance, overflow as plan_overflow,
};
use crate::memory::{Node, PartKind, Snapshot, SnapshotId, Span, measure, record, render};
use crate::store::{NewJob, NewSnapshot, Offered, Record, StoreError};
use crate::telemetry;
use crate::tokens::TokenCounter;

/// Jobs put into the queue per exchange at most: a conversation that was long before Diarist saw it
/// is taken up in bounded steps.
const OFFERS: usize = 64;

/// Tracks of one conversation that may be stale at the same time, its forks.
const STALE: usize = 8;

/// A shared beginning this short may be chance ("hi", "hello"): a fork that shares no more starts a
/// lineage of its own.
const CHANCE: usize = 2;

/// What a worker tells the recorder.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) scope: Scope,
    pub(super) kind: PartKind,
    pub(super) span: Span,
    pub(super) settled: Settled,
}

/// Runs until `stop`, then records what is still waiting.
pub(super) async fn run(
    shop: Shop,
    mut exchanges: mpsc::Receiver<Waiting>,
    mut outcomes: mpsc::UnboundedReceiver<Outcome>,
    wake: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut recorder = Recorder {
        shop,
        tracks: Tracks::default(),
        wake,
    };
    loop {
        tokio::select! {
            biased;
            Some(outcome) = outcomes.recv() => {
                recorder.outcome(outcome).await;
                recorder.shop.untold.fetch_sub(1, Ordering::SeqCst);
            }
            Some((exchange, _room)) = exchanges.recv() => recorder.exchange(exchange).await,
            () = stop.cancelled() => break,
            else => break,
        }
    }
    exchanges.close();
    while let Some((exchange, _room)) = exchanges.recv().await {
        recorder.exchange(exchange).await;
    }
}

struct Recorder {
    shop: Shop,
    tracks: Tracks,
    wake: Arc<Notify>,
}

impl Recorder {
    async fn exchange(&mut self, exchange: Exchange) {
        let mut recorded = self.record(&exchange).await;
        for _ in 0..STALE {
            if !matches!(recorded, Err(StoreError::Forgotten)) {
                break;
            }
            // What was followed is no longer there, and is dropped: the store says what is.
            recorded = self.record(&exchange).await;
        }
        match recorded {
            Ok(track) => {
                self.shop.recall.troubled(false);
                let track = self.perform(track, Some(&exchange)).await;
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

    async fn outcome(&mut self, outcome: Outcome) {
        for mut track in self.tracks.take_holding(&outcome.scope, &outcome.span) {
            track.settle(outcome.kind, &outcome.span, &outcome.settled);
            let track = self.perform(track, None).await;
            self.tracks.put(track);
        }
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
            Some(track) if track.knows(exchange.used.snapshot) => track,
            // Not followed, or the request was sent with what was prepared beside this task.
            _ => load(&self.shop, scope, history).await?,
        };
        let parent = track
            .nodes
            .last()
            .map_or_else(|| Link::root(scope), |node| node.link);
        let new_nodes = self.weigh(exchange, &track).await;
        let confirm = record::confirm(&mut track.nodes, history.len());
        // Only what is new belongs to another thread; a repetition stays where it is.
        let lineage = match exchange.thread_key.as_deref() {
            Some(key) if !new_nodes.is_empty() => track.lineage_for(key),
            _ => track.lineage,
        };
        let record = Record {
            thread_key: exchange.thread_key.clone(),
            lineage,
            parent,
            confirmed: track.nodes.iter().take_while(|node| node.confirmed).count(),
            contents: record::contents(scope, history, &track.nodes, &confirm),
            confirm,
            tip,
            count: history.len(),
            used: exchange.used.clone(),
            model: exchange.model.clone(),
            at_ms: exchange.at_ms,
            new_nodes,
        };
        track.model.clone_from(&exchange.model);
        let recorded = self.shop.store.record(scope, &record).await?;
        track.joined(recorded, record.thread_key);
        // Whatever is confirmed may make room for what had to wait.
        track.paused &= record.confirm.is_empty();
        metrics::counter!(telemetry::EXCHANGES_RECORDED).increment(1);
        if !record.new_nodes.is_empty() {
            track.nodes.extend(record.new_nodes);
            self.shop.recall.complete(scope, tip, &track.snapshots);
        }
        Ok(track)
    }

    /// The messages that are new in `exchange`, counted.
    async fn weigh(&self, exchange: &Exchange, track: &Track) -> Vec<Node> {
        let known = track.nodes.len();
        let history = Arc::clone(&exchange.history);
        let parsed = Arc::clone(&exchange.parsed);
        let counter = Arc::clone(&self.shop.counter);
        // Large text is never counted on a worker of the runtime.
        let counted = tokio::task::spawn_blocking(move || {
            let tally = Tally::new(&*counter);
            let tokens: Vec<u32> = (known..history.len())
                .map(|index| {
                    parsed
                        .spoken(index)
                        .map_or(0, |said| measure::message(&said, &tally))
                })
                .collect();
            (tokens, tally.counted())
        })
        .await;
        let (tokens, bytes) = counted.unwrap_or_default();
        metrics::counter!(telemetry::TOKENIZED_BYTES).increment(bytes);
        record::added(&exchange.history, known, &tokens, exchange.at_ms)
    }

    /// Does what follows for `track`, until nothing more does.
    async fn perform(&mut self, mut track: Track, exchange: Option<&Exchange>) -> Track {
        // Each round can make one more snapshot or reflection due, hardly ever a third.
        for _ in 0..4 {
            let steps = advance(&track.path(), &self.shop.settings.policy);
            let mut changed = false;
            let mut ranges = Vec::new();
            for step in steps {
                match step {
                    Step::Observe {
                        span,
                        message_tokens,
                    } => ranges.push((span, message_tokens)),
                    Step::Reflect {
                        sources,
                        span,
                        message_tokens,
                        ..
                    } => {
                        changed |= self
                            .reflect(&mut track, sources, span, message_tokens)
                            .await;
                    }
                    Step::Snapshot(plan) => changed |= self.snapshot(&mut track, plan).await,
                }
            }
            // The words of a range are only at hand while its request is.
            if let Some(exchange) = exchange.filter(|_| !ranges.is_empty() && !track.paused) {
                self.observe(&mut track, ranges, exchange).await;
            }
            if !changed {
                break;
            }
        }
        track
    }

    async fn observe(&self, track: &mut Track, ranges: Vec<(Span, u32)>, exchange: &Exchange) {
        let nodes: Arc<[Node]> = track.nodes.as_slice().into();
        // In order: a range that is not taken leaves those after it without what comes before them.
        for (span, message_tokens) in ranges.into_iter().take(OFFERS) {
            let (parsed, nodes) = (Arc::clone(&exchange.parsed), Arc::clone(&nodes));
            let written = tokio::task::spawn_blocking(move || payload::of(&parsed, &nodes, &span));
            let Ok(payload) = written.await else { return };
            let job = NewJob {
                kind: PartKind::Chunk,
                span,
                message_tokens,
                payload: payload.to_json(),
                parts: Vec::new(),
                model: exchange.model.clone(),
                tip: track.nodes.last().map_or(span.to, |node| node.link),
                tip_count: track.nodes.len(),
            };
            if !self.offer(track, &job).await {
                return;
            }
        }
    }

    async fn reflect(
        &self,
        track: &mut Track,
        parts: Vec<crate::memory::PartId>,
        span: Span,
        message_tokens: u32,
    ) -> bool {
        let job = NewJob {
            kind: PartKind::Reflection,
            span,
            message_tokens,
            payload: String::new(),
            parts,
            model: track.model.clone(),
            tip: track.nodes.last().map_or(span.to, |node| node.link),
            tip_count: track.nodes.len(),
        };
        self.offer(track, &job).await;
        false
    }

    /// Whether somebody does the job, or has done it.
    async fn offer(&self, track: &mut Track, job: &NewJob) -> bool {
        let offered = self.shop.store.offer(&track.scope, job, now_ms()).await;
        match offered {
            Ok(taken @ (Offered::New | Offered::Known)) => {
                // Somebody else does it, or has done it: another chain here, another process.
                track.stale |= taken == Offered::Known;
                track.work.push(Work {
                    kind: job.kind,
                    span: job.span,
                    state: WorkState::Fresh,
                });
                if self.shop.recall.resume(&track.scope, job.span.to) {
                    pause_changed("resumed", track, job);
                }
                self.wake.notify_one();
                true
            }
            Ok(Offered::Paused) => {
                track.paused = true;
                if self.shop.recall.pause(&track.scope, job.span.to) {
                    pause_changed("paused", track, job);
                }
                false
            }
            Ok(Offered::Forgotten) => {
                track.stale = true;
                false
            }
            Err(error) => {
                failed("a job could not be queued", &error);
                false
            }
        }
    }

    async fn snapshot(&self, track: &mut Track, plan: Plan) -> bool {
        let (Some(tip), tip_count) = (track.nodes.last(), track.nodes.len()) else {
            return false;
        };
        match prepare(&self.shop, &track.scope, plan, (tip.link, tip_count), false).await {
            Ok(Some(snapshot)) => {
                let new = track
                    .snapshots
                    .iter()
                    .all(|known| known.id != snapshot.meta.id);
                if new {
                    track.snapshots.push(snapshot.meta.clone());
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

/// Applies everything observed to a history that was refused as too long with the snapshot `sent`.
pub(super) async fn overflow(
    shop: &Shop,
    scope: &Scope,
    history: &History,
    sent: Option<SnapshotId>,
) -> Result<Option<Arc<Snapshot>>, StoreError> {
    let Some(tip) = history.tip() else {
        return Ok(None);
    };
    let track = load(shop, scope, history).await?;
    // The newest messages were never accepted, so they are not recorded; what is observed lies
    // before them, and only their roles matter here.
    let nodes: Vec<Node> = history
        .turns()
        .iter()
        .enumerate()
        .map(|(index, turn)| {
            track.nodes.get(index).copied().unwrap_or(Node {
                link: turn.link,
                count: index + 1,
                role: turn.message.role,
                tokens: 0,
                closed: history.cuts().closed(index + 1),
                turn_end: false,
                born: history.len(),
                confirmed: false,
                seen_ms: 0,
                live: true,
            })
        })
        .collect();
    // Others may cover more: prepared for longer requests, or since this one, which is repeated as it
    // was, went out first. They count as not applied.
    let applied: Vec<_> = track
        .snapshots
        .iter()
        .filter(|snapshot| Some(snapshot.id) == sent)
        .cloned()
        .collect();
    let path = Path {
        nodes: &nodes,
        snapshots: &applied,
        ..track.path()
    };
    match plan_overflow(&path, &shop.settings.policy) {
        Some(plan) => prepare(shop, scope, plan, (tip, history.len()), true).await,
        None => Ok(None),
    }
}

async fn load(shop: &Shop, scope: &Scope, history: &History) -> Result<Track, StoreError> {
    let chain: Vec<Link> = history.turns().iter().map(|turn| turn.link).collect();
    let known = shop.store.known(scope, &chain).await?;
    let by_chance = known.branches && known.nodes.len() <= CHANCE;
    let mut track = Track::of(scope, known);
    if by_chance {
        track.orphan();
    }
    Ok(track)
}

/// Renders and commits a snapshot, and tells the request path of it.
async fn prepare(
    shop: &Shop,
    scope: &Scope,
    plan: Plan,
    (tip, tip_count): (Link, usize),
    at_once: bool,
) -> Result<Option<Arc<Snapshot>>, StoreError> {
    let parts = shop.store.parts(scope, &plan.parts).await?;
    if parts.len() != plan.parts.len() {
        // One was deleted meanwhile: what it covered would be lost (INV-COVER).
        return Ok(None);
    }
    let hints = parts
        .last()
        .filter(|last| last.body.span.to == plan.to)
        .map(|last| render::Hints {
            current_task: last.body.current_task.as_deref(),
            suggested_response: last.body.suggested_response.as_deref(),
        })
        .filter(|hints| hints.current_task.is_some() || hints.suggested_response.is_some());
    let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
    let snapshot = NewSnapshot {
        to: plan.to,
        to_count: plan.to_count,
        pin: plan.pin,
        parts: plan.parts,
        tokens: plan.tokens,
        cause: plan.cause,
        segments: render::segments(render::PREAMBLE_VERSION, &texts, hints),
        tip,
        tip_count,
        at_once,
        at_ms: now_ms(),
    };
    let committed = shop.store.commit_snapshot(scope, &snapshot).await?;
    metrics::counter!(telemetry::SNAPSHOTS, "cause" => snapshot.cause.name()).increment(1);
    tracing::info!(
        tenant = %scope.tenant_label(),
        snapshot = committed.meta.id.0,
        covers = committed.meta.to_count,
        eligible_from = committed.meta.eligible_from,
        observation_tokens = committed.meta.tokens,
        cause = snapshot.cause.name(),
        "prepared a snapshot"
    );
    Ok(Some(shop.recall.insert(scope, committed)))
}

/// Sums up what goes through a counter here; workers use the same one at the same time.
struct Tally<'a> {
    counter: &'a dyn TokenCounter,
    bytes: AtomicU64,
}

impl<'a> Tally<'a> {
    fn new(counter: &'a dyn TokenCounter) -> Self {
        Self {
            counter,
            bytes: AtomicU64::new(0),
        }
    }
}

impl TokenCounter for Tally<'_> {
    fn count(&self, text: &str) -> u32 {
        self.bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        self.counter.count(text)
    }

    fn counted(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

fn pause_changed(change: &'static str, track: &Track, job: &NewJob) {
    metrics::counter!(telemetry::OBSERVER_PAUSES, "change" => change).increment(1);
    tracing::info!(
        tenant = %track.scope.tenant_label(),
        lineage = track.lineage,
        observed = job.span.from_count,
        messages = track.nodes.len(),
        "observing {change}: the Observer is shown at most 1.5 times what is new"
    );
}

fn failed(what: &'static str, error: &StoreError) {
    metrics::counter!(telemetry::STORE_FAILURES).increment(1);
    tracing::warn!(error = %error, "{what}; requests pass, and the next one tries again");
}
