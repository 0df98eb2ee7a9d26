//! What happens to the memory of a conversation, under the published names of the field: for the
//! structured log (target `diarist::events`) and for the conversation's timeline. Of every request
//! there is one, how its conversation stands: the log has it under a target of its own below that
//! (`diarist::events::status`), for whoever wants the others alone.
//!
//! Numbers, names and times (and a title, where titles are asked for), never a word of a message, of a
//! prompt or of an answer. Told by the
//! recorder and the workers, written down by a task of its own: nobody waits for it, and what does
//! not fit is dropped.

mod activation;
mod awaited;
mod cycle;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(super) use self::activation::{Stood, activated};
pub(super) use self::awaited::Awaited;
pub(super) use self::cycle::{Cycle, renamed};
use super::track::Track;
use super::{Settings, Shop};
use crate::history::{Link, Role, Scope};
use crate::memory::advance::Standing;
use crate::memory::policy::cache_lifetime;
use crate::memory::{Node, PartKind, Policy};
use crate::store::{Event, Store};
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
    /// Whether the log has it.
    logged: bool,
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

    fn tell(&self, scope: &Scope, tip: Link, event: Event) {
        self.send(Happened {
            scope: scope.clone(),
            tip,
            event,
            logged: false,
        });
    }

    /// What the log has already is kept for the timeline of `tip` as well, which is recorded only now.
    pub(super) fn keep(&self, scope: &Scope, tip: Link, events: &[Event]) {
        for event in events {
            self.send(Happened {
                scope: scope.clone(),
                tip,
                event: event.clone(),
                logged: true,
            });
        }
    }

    fn send(&self, happened: Happened) {
        let Some(to) = &self.to else { return };
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
        let same = |a: &Happened, b: &Happened| {
            (a.tip, a.logged) == (b.tip, b.logged) && a.scope == b.scope
        };
        for together in batch.chunk_by(same) {
            let events: Vec<Event> = together.iter().map(|told| told.event.clone()).collect();
            let (scope, tip) = (&together[0].scope, together[0].tip);
            let noted = store.note(scope, tip, &events).await;
            let noted = noted.unwrap_or_else(|error| {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                tracing::debug!(error = %error, "events could not be written down");
                events
            });
            for event in noted.iter().filter(|_| !together[0].logged) {
                log(scope, event);
            }
        }
        batch.clear();
        unwritten.fetch_sub(taken, Ordering::SeqCst);
    }
}

fn log(scope: &Scope, event: &Event) {
    let tenant = scope.tenant_label();
    if event.kind == STATUS {
        let (event, body) = (&event.kind, &event.body);
        tracing::info!(target: "diarist::events::status", tenant, event, body);
    } else {
        tracing::info!(target: "diarist::events", tenant, event = event.kind, body = event.body);
    }
}

const STATUS: &str = "data-om-status";

fn event(kind: &str, at_ms: i64, body: &Value) -> Event {
    Event {
        kind: kind.to_owned(),
        at_ms,
        body: body.to_string(),
    }
}

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

/// What a conversation with `model` at `upstream` is remembered by, as far as it is published. How long it has to be
/// idle is told as it holds for `kind`; `"auto"` as a request means it that says nothing of the cache.
fn config(policy: &Policy, upstream: &str, scope: &Scope, model: &str, kind: PartKind) -> Value {
    let early = match kind {
        PartKind::Chunk => policy.early_activation,
        PartKind::Reflection => policy.early_reflection,
    };
    let mut config = json!({
        "messageTokens": policy.message_tokens,
        "observationTokens": policy.observation_tokens,
        "scope": if scope.resource.is_some() { "resource" } else { "thread" },
    });
    let lifetime = cache_lifetime(upstream, model, None);
    if let Some(idle) = early.idle.after(lifetime) {
        config["activateAfterIdle"] = json!(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
    }
    config
}

/// How a conversation stands after one more of its requests.
pub(super) fn status(shop: &Shop, settings: &Settings, track: &Track, standing: &Standing) {
    let Some(tip) = track.nodes.last() else {
        return;
    };
    let policy = settings.policy_for(&track.model);
    let body = status_body(policy, &track.nodes, standing);
    let now = shop.clock.now_ms();
    let status = event(STATUS, now, &body);
    shop.events.tell(&track.scope, tip.link, status);
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

#[cfg(test)]
mod tests;
