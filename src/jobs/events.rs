//! Events about the memory of a conversation, under the published names of the field, for two
//! readers: the structured log (target `diarist::events`) and the conversation's timeline in the
//! store. How a conversation stands after each request is in the log alone, at debug and under a
//! target of its own ([`status`]): the store can tell it from the chain at any time.
//!
//! An event contains numbers, names and times, and a title if titles are configured; never text of
//! a message, a prompt or an answer. The recorder and the workers emit events, and a task of its
//! own writes them. Nobody waits for it; an event that does not fit into the queue is dropped.

mod activation;
mod cycle;
mod overflow_observe;
pub(super) mod status;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

pub(super) use self::activation::ConversationState;
pub(super) use self::cycle::Cycle;
pub(super) use self::overflow_observe::OverflowEvents;
use super::clock::Clock;
use super::settings::Reloadable;
use crate::history::{Link, Scope};
use crate::memory::policy::cache_lifetime;
use crate::memory::{PartKind, Policy};
use crate::store::{Event, Store};
use crate::tasks::Tasks;
use crate::telemetry;

/// The most events in the queue. Writing one takes well under a millisecond.
const MAX_QUEUED: usize = 4_096;

/// The most events written in one go.
const BATCH: usize = 64;

/// The longest error in an event, in characters (the published bound).
const MAX_ERROR: usize = 2_000;

/// One event on its way to the writer.
#[derive(Debug)]
pub(super) struct QueuedEvent {
    scope: Scope,
    tip: Link,
    event: Event,
    /// Whether the log already has it.
    logged: bool,
}

/// The sending side, and what the events themselves need.
#[derive(Clone, Debug)]
pub(super) struct Events {
    /// `None` emits nothing.
    sender: Option<mpsc::Sender<QueuedEvent>>,
    /// Events that are sent and not written yet.
    pending: Arc<AtomicUsize>,
    clock: Clock,
    settings: Reloadable,
}

impl Events {
    /// Starts the task that writes events. It ends when `tasks` are stopped.
    pub(super) fn start(
        store: Arc<dyn Store>,
        clock: Clock,
        settings: Reloadable,
        tasks: &Tasks,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        let pending = Arc::new(AtomicUsize::new(0));
        // The receiver outlives a writer that panics.
        let receiver = Arc::new(Mutex::new(receiver));
        let (owned_tasks, counted) = (tasks.clone(), Arc::clone(&pending));
        tasks.supervise("events", move || {
            let (store, receiver) = (Arc::clone(&store), Arc::clone(&receiver));
            write(store, receiver, Arc::clone(&counted), owned_tasks.clone())
        });
        Self {
            sender: Some(sender),
            pending,
            clock,
            settings,
        }
    }

    /// Emits nothing: no task writes events.
    #[cfg(feature = "testing")]
    pub(super) fn disabled(clock: Clock, settings: Reloadable) -> Self {
        Self {
            sender: None,
            pending: Arc::default(),
            clock,
            settings,
        }
    }

    /// Whether every emitted event is written.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.load(Ordering::SeqCst) == 0
    }

    fn emit(&self, scope: &Scope, tip: Link, event: Event) {
        self.send(QueuedEvent {
            scope: scope.clone(),
            tip,
            event,
            logged: false,
        });
    }

    /// Writes events that the log already has into the timeline of `tip`, which is recorded only
    /// now.
    pub(super) fn record_logged(&self, scope: &Scope, tip: Link, events: &[Event]) {
        for event in events {
            self.send(QueuedEvent {
                scope: scope.clone(),
                tip,
                event: event.clone(),
                logged: true,
            });
        }
    }

    fn send(&self, queued: QueuedEvent) {
        let Some(to) = &self.sender else { return };
        self.pending.fetch_add(1, Ordering::SeqCst);
        if to.try_send(queued).is_err() {
            self.pending.fetch_sub(1, Ordering::SeqCst);
            metrics::counter!(telemetry::EVENTS_DROPPED).increment(1);
        }
    }
}

/// Takes events off the count when they are written, or lost by a panic.
struct Counted<'a>(&'a AtomicUsize, usize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

async fn write(
    store: Arc<dyn Store>,
    receiver: Arc<Mutex<mpsc::Receiver<QueuedEvent>>>,
    pending: Arc<AtomicUsize>,
    tasks: Tasks,
) {
    let (mut receiver, stop) = (receiver.lock().await, tasks.token());
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let count = tokio::select! {
            taken = receiver.recv_many(&mut batch, BATCH) => taken,
            () = stop.cancelled() => {
                receiver.close();
                receiver.recv_many(&mut batch, MAX_QUEUED).await
            }
        };
        if count == 0 {
            return;
        }
        let _counted = Counted(&pending, count);
        tasks.fault_point("events");
        // Neighbouring events mostly belong to one conversation.
        let same_target = |a: &QueuedEvent, b: &QueuedEvent| {
            (a.tip, a.logged) == (b.tip, b.logged) && a.scope == b.scope
        };
        for group in batch.chunk_by(same_target) {
            let events: Vec<Event> = group.iter().map(|queued| queued.event.clone()).collect();
            let (scope, tip) = (&group[0].scope, group[0].tip);
            let written = store.append_events(scope, tip, &events).await;
            let noted = written.unwrap_or_else(|error| {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                tracing::debug!(error = %error, "events could not be stored");
                events
            });
            for event in noted.iter().filter(|_| !group[0].logged) {
                log(scope, event);
            }
        }
        batch.clear();
    }
}

fn log(scope: &Scope, event: &Event) {
    let tenant = scope.tenant_label();
    tracing::info!(target: "diarist::events", tenant, event = event.kind, body = event.body);
}

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

/// The published part of the settings for a conversation with `model` at `upstream`. The idle time
/// is that for `kind`; for `"auto"`, it is that of a request without a cache setting.
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
    if let Some(idle) = early.idle.duration(lifetime) {
        config["activateAfterIdle"] = json!(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
    }
    config
}

#[cfg(test)]
mod tests;
