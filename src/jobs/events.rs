//! What happens to the memory of a conversation, under the published names of the field: for the
//! structured log (target `diarist::events`) and for the conversation's timeline.
//!
//! Numbers, names and times (and a title, where titles are asked for), never a word of a message, of a
//! prompt or of an answer. Told by the
//! recorder and the workers, written down by a task of its own: nobody waits for it, and what does
//! not fit is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::track::Track;
use super::{Settings, Shop};
use crate::history::{Link, Role, Scope};
use crate::memory::advance::Standing;
use crate::memory::{Cause, Node, PartKind, PartMeta, Policy, Snapshot, SnapshotMeta};
use crate::store::{Event, Job, Store};
use crate::tasks::Tasks;
use crate::telemetry;

/// Events waiting at most. One is written in well under a millisecond.
const WAITING: usize = 4_096;

/// Events written in one go.
const BATCH: usize = 64;

/// Longest error that is told, in characters (the published bound).
const MAX_ERROR: usize = 2_000;

/// One event on its way, before it is known whose it is.
#[derive(Debug)]
pub(crate) struct Happened {
    scope: Scope,
    tip: Link,
    event: Event,
}

/// Where events are told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    to: Option<mpsc::Sender<Happened>>,
    unwritten: Arc<AtomicUsize>,
}

impl Events {
    /// Starts the task that writes them down; it ends when `tasks` is told to.
    pub(super) fn start(store: Arc<dyn Store>, tasks: &Tasks) -> Self {
        let (to, told) = mpsc::channel(WAITING);
        let unwritten = Arc::new(AtomicUsize::new(0));
        let task = write(store, told, Arc::clone(&unwritten), tasks.token());
        tasks.spawn("events", task);
        Self {
            to: Some(to),
            unwritten,
        }
    }

    /// Whether everything told is written down.
    pub(super) fn is_idle(&self) -> bool {
        self.unwritten.load(Ordering::SeqCst) == 0
    }

    fn tell(&self, scope: &Scope, tip: Link, kind: &str, at_ms: i64, body: &Value) {
        let Some(to) = &self.to else { return };
        let happened = Happened {
            scope: scope.clone(),
            tip,
            event: Event {
                kind: kind.to_owned(),
                at_ms,
                body: body.to_string(),
            },
        };
        self.unwritten.fetch_add(1, Ordering::SeqCst);
        if to.try_send(happened).is_err() {
            self.unwritten.fetch_sub(1, Ordering::SeqCst);
            metrics::counter!(telemetry::EVENTS_DROPPED).increment(1);
        }
    }
}

async fn write(
    store: Arc<dyn Store>,
    mut told: mpsc::Receiver<Happened>,
    unwritten: Arc<AtomicUsize>,
    stop: CancellationToken,
) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let taken = tokio::select! {
            taken = told.recv_many(&mut batch, BATCH) => taken,
            () = stop.cancelled() => {
                told.close();
                told.recv_many(&mut batch, WAITING).await
            }
        };
        if taken == 0 {
            return;
        }
        // Events of one conversation mostly come together.
        let same = |a: &Happened, b: &Happened| a.tip == b.tip && a.scope == b.scope;
        for together in batch.chunk_by(same) {
            let events: Vec<Event> = together.iter().map(|told| told.event.clone()).collect();
            let (scope, tip) = (&together[0].scope, together[0].tip);
            let noted = store.note(scope, tip, &events).await;
            let noted = noted.unwrap_or_else(|error| {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                tracing::debug!(error = %error, "events could not be written down");
                events
            });
            for event in &noted {
                log(scope, event);
            }
        }
        batch.clear();
        unwritten.fetch_sub(taken, Ordering::SeqCst);
    }
}

fn log(scope: &Scope, event: &Event) {
    let tenant = scope.tenant_label();
    // One for each request: there for whoever asks.
    if event.kind == STATUS {
        tracing::debug!(target: "diarist::events", tenant, event = event.kind, body = event.body);
    } else {
        tracing::info!(target: "diarist::events", tenant, event = event.kind, body = event.body);
    }
}

const STATUS: &str = "data-om-status";

/// An RFC 3339 time.
fn time(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms).map_or_else(|_| String::new(), |at| at.to_string())
}

fn operation(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Chunk => "observation",
        PartKind::Reflection => "reflection",
    }
}

fn config(scope: &Scope, policy: &Policy) -> Value {
    json!({
        "messageTokens": policy.message_tokens,
        "observationTokens": policy.observation_tokens,
        "scope": if scope.resource.is_some() { "resource" } else { "thread" },
    })
}

/// How a conversation stands after one more of its requests.
pub(super) fn status(shop: &Shop, settings: &Settings, track: &Track, standing: &Standing) {
    let Some(tip) = track.nodes.last() else {
        return;
    };
    let policy = settings.policy_for(&track.model);
    let body = status_body(policy, &track.nodes, standing);
    let now = shop.clock.now_ms();
    shop.events.tell(&track.scope, tip.link, STATUS, now, &body);
}

fn status_body(policy: &Policy, nodes: &[Node], standing: &Standing) -> Value {
    let progress = |running: bool, done: bool| match (running, done) {
        (true, _) => "running",
        (false, true) => "complete",
        (false, false) => "idle",
    };
    let (condensed, reflection) = standing.reflection.unwrap_or_default();
    // Steps of the turn: how often the assistant has spoken since the user did.
    let step = nodes
        .iter()
        .rev()
        .take_while(|node| node.role != Role::User)
        .filter(|node| node.role == Role::Assistant)
        .count();
    json!({
        "windows": {
            "active": {
                "messages": {
                    "tokens": standing.message_tokens,
                    "threshold": policy.message_tokens,
                },
                "observations": {
                    "tokens": standing.observation_tokens,
                    "threshold": policy.observation_tokens,
                },
            },
            "buffered": {
                "observations": {
                    "chunks": standing.chunks,
                    "messageTokens": standing.chunk_message_tokens,
                    "projectedMessageRemoval":
                        standing.chunk_message_tokens.min(standing.message_tokens),
                    "observationTokens": standing.chunk_tokens,
                    "status": progress(standing.observing, standing.chunks > 0),
                },
                "reflection": {
                    "inputObservationTokens": condensed,
                    "observationTokens": reflection,
                    "status": progress(standing.reflecting, standing.reflection.is_some()),
                },
            },
        },
        "stepNumber": step,
        "generationCount": standing.generations,
    })
}

/// Whether `job` is done ahead of need, or its conversation is beyond its limit already.
fn family(job: &Job) -> &'static str {
    if job.work.urgency < 1_000 {
        "buffering"
    } else {
        "observation"
    }
}

/// What the events of one job have in common. Every try is a cycle of its own.
fn cycle(job: &Job) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert(
        "cycleId".to_owned(),
        json!(format!("{}-{}", job.id, job.fence)),
    );
    body.insert("operationType".to_owned(), json!(operation(job.work.kind)));
    body
}

fn tell(shop: &Shop, job: &Job, end: &str, at_ms: i64, body: Map<String, Value>) {
    let kind = format!("data-om-{}-{end}", family(job));
    let (scope, tip) = (&job.scope, job.work.tip);
    let events = &shop.events;
    events.tell(scope, tip, &kind, at_ms, &Value::Object(body));
}

/// A model is about to be asked.
pub(super) fn started(shop: &Shop, settings: &Settings, job: &Job, at_ms: i64) {
    let tokens = match family(job) {
        "buffering" => "tokensToBuffer",
        _ => "tokensToObserve",
    };
    let mut body = cycle(job);
    body.insert("startedAt".to_owned(), json!(time(at_ms)));
    body.insert(tokens.to_owned(), json!(job.work.message_tokens));
    body.insert(
        "config".to_owned(),
        config(&job.scope, settings.policy_for(&job.work.model)),
    );
    tell(shop, job, "start", at_ms, body);
}

/// It wrote a part.
pub(super) fn ended(shop: &Shop, job: &Job, part: &PartMeta, started_ms: i64) {
    let now = shop.clock.now_ms();
    let (taken, written) = match family(job) {
        "buffering" => ("tokensBuffered", "bufferedTokens"),
        _ => ("tokensObserved", "observationTokens"),
    };
    let mut body = cycle(job);
    body.insert("completedAt".to_owned(), json!(time(now)));
    body.insert("durationMs".to_owned(), json!(now - started_ms));
    body.insert(taken.to_owned(), json!(part.message_tokens));
    body.insert(written.to_owned(), json!(part.tokens));
    tell(shop, job, "end", now, body);
}

/// It did not: `error` is the provider's message, or ours.
pub(super) fn failed(shop: &Shop, job: &Job, error: &str, started_ms: i64) {
    let now = shop.clock.now_ms();
    let error: String = error.chars().take(MAX_ERROR).collect();
    let mut body = cycle(job);
    body.insert("failedAt".to_owned(), json!(time(now)));
    body.insert("durationMs".to_owned(), json!(now - started_ms));
    body.insert("tokensAttempted".to_owned(), json!(job.work.message_tokens));
    body.insert("error".to_owned(), json!(error));
    tell(shop, job, "failed", now, body);
}

/// The conversation has another title: the only words an event holds, and a model's.
pub(super) fn renamed(shop: &Shop, job: &Job, old: Option<&str>, new: &str) {
    let now = shop.clock.now_ms();
    let mut body = cycle(job);
    body.remove("operationType");
    body.extend(old.map(|old| ("oldTitle".to_owned(), json!(old))));
    body.insert("newTitle".to_owned(), json!(new));
    body.insert("timestamp".to_owned(), json!(time(now)));
    let (scope, tip) = (&job.scope, job.work.tip);
    shop.events.tell(
        scope,
        tip,
        "data-om-thread-update",
        now,
        &Value::Object(body),
    );
}

/// A snapshot was prepared; what it covers beyond `before` comes into use with it. One event for
/// all its chunks, since they come into use together.
pub(super) fn activated(
    shop: &Shop,
    track: &Track,
    before: Option<&SnapshotMeta>,
    tip: Link,
    snapshot: &Snapshot,
) {
    let now = shop.clock.now_ms();
    let policy = *shop.settings.now().policy_for(&track.model);
    let body = activation_body(
        &track.scope,
        &policy,
        &track.parts,
        before,
        &snapshot.meta,
        now,
    );
    shop.events
        .tell(&track.scope, tip, "data-om-activation", now, &body);
}

fn activation_body(
    scope: &Scope,
    policy: &Policy,
    parts: &[PartMeta],
    before: Option<&SnapshotMeta>,
    snapshot: &SnapshotMeta,
    now: i64,
) -> Value {
    let covered = before.map_or(0, |snapshot| snapshot.to_count);
    let chunks: Vec<&PartMeta> = parts
        .iter()
        .filter(|part| part.kind == PartKind::Chunk)
        .filter(|part| part.span.to_count > covered && part.span.to_count <= snapshot.to_count)
        .collect();
    let generations = parts
        .iter()
        .filter(|part| part.kind == PartKind::Reflection)
        .filter(|part| part.span.to_count <= snapshot.to_count);
    let kind = match snapshot.cause {
        Cause::Reflection => PartKind::Reflection,
        _ => PartKind::Chunk,
    };
    json!({
        "cycleId": format!("snapshot-{}", snapshot.id.0),
        "operationType": operation(kind),
        "activatedAt": time(now),
        "chunksActivated": chunks.len(),
        "tokensActivated": chunks.iter().map(|chunk| u64::from(chunk.message_tokens)).sum::<u64>(),
        "observationTokens": snapshot.tokens,
        "messagesActivated": snapshot.to_count.saturating_sub(covered),
        "generationCount": generations.count(),
        "triggeredBy": trigger(snapshot.cause),
        "config": config(scope, policy),
    })
}

/// The published word for a cause, where there is one.
fn trigger(cause: Cause) -> &'static str {
    match cause.name() {
        "idle" => "ttl",
        "model_change" => "provider_change",
        name => name,
    }
}

#[cfg(test)]
mod tests;
