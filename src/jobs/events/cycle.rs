//! The events of a job: the start of each try and its end or failure, and a new title.
//!
//! The names `buffering` and `observation` tell only how urgent the job was. Called by the workers
//! and the Reflector.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};

use super::{Events, MAX_ERROR, config, event, log, operation, time};
use crate::jobs::part_report::PartReport;
use crate::jobs::settings::Settings;
use crate::store::{Event, Job};

/// The tries of one job since it was claimed. In the published events the first one is a cycle, and so is each further
/// call of the Reflector.
#[derive(Debug)]
pub(in crate::jobs) struct Cycle {
    log: Events,
    number: AtomicU32,
    since_ms: AtomicI64,
    unqueued: Option<UnqueuedEvents>,
}

/// For a job that is in no queue: the name of its try and its events. They may not be stored before
/// the upstream has accepted the result (INV-OWN). The log has them at once.
#[derive(Debug)]
struct UnqueuedEvents {
    name: String,
    events: Mutex<Vec<Event>>,
}

impl Cycle {
    /// No try has started yet.
    pub(in crate::jobs) fn new(log: &Events) -> Self {
        Self {
            log: log.clone(),
            number: AtomicU32::new(0),
            since_ms: AtomicI64::new(log.clock.now_ms()),
            unqueued: None,
        }
    }

    /// The same for a job that is in no queue.
    pub(super) fn unqueued(log: &Events) -> Self {
        let unqueued = UnqueuedEvents {
            name: uuid::Uuid::new_v4().simple().to_string(),
            events: Mutex::default(),
        };
        Self {
            unqueued: Some(unqueued),
            ..Self::new(log)
        }
    }

    /// The events of a job that is in no queue.
    pub(super) fn buffered_events(&self) -> Vec<Event> {
        let events = self.unqueued.as_ref().map(|unqueued| &unqueued.events);
        let events = events.map(|events| events.lock().unwrap_or_else(PoisonError::into_inner));
        events.map(|events| events.clone()).unwrap_or_default()
    }

    /// The model will be called now.
    pub(in crate::jobs) fn started(&self, settings: &Settings, job: &Job) {
        let now = self.log.clock.now_ms();
        self.since_ms.store(now, Ordering::Relaxed);
        let input_key = match family(job) {
            "buffering" => "tokensToBuffer",
            _ => "tokensToObserve",
        };
        let mut body = self.body(job);
        body.insert("startedAt".to_owned(), json!(time(now)));
        body.insert(input_key.to_owned(), json!(job.spec.message_tokens));
        let (model, kind) = (&job.spec.model, job.spec.kind);
        let policy = &settings.policy_for(model);
        let config = config(policy, &settings.upstream, &job.scope, model, kind);
        body.insert("config".to_owned(), config);
        self.emit(job, "start", now, body);
    }

    /// The answer was not good enough, and the model will be called again.
    pub(in crate::jobs) fn retry(&self, settings: &Settings, job: &Job, reason: &str) {
        self.failed(job, reason);
        self.number.fetch_add(1, Ordering::Relaxed);
        self.started(settings, job);
    }

    /// The job wrote a part of `tokens` tokens.
    pub(in crate::jobs) fn ended(&self, job: &Job, tokens: u32, report: Option<&PartReport>) {
        let now = self.log.clock.now_ms();
        let (input_key, output_key) = match family(job) {
            "buffering" => ("tokensBuffered", "bufferedTokens"),
            _ => ("tokensObserved", "observationTokens"),
        };
        let mut body = self.body(job);
        body.insert("completedAt".to_owned(), json!(time(now)));
        body.insert("durationMs".to_owned(), json!(self.elapsed(now)));
        body.insert(input_key.to_owned(), json!(job.spec.message_tokens));
        body.insert(output_key.to_owned(), json!(tokens));
        // Our own field, beside the published ones.
        body.extend(
            report.map(|report| ("retention".to_owned(), report.retention.to_map().into())),
        );
        self.emit(job, "end", now, body);
    }

    /// The try failed with `error`, the provider's message or ours.
    pub(in crate::jobs) fn failed(&self, job: &Job, error: &str) {
        let now = self.log.clock.now_ms();
        let error: String = error.chars().take(MAX_ERROR).collect();
        let mut body = self.body(job);
        body.insert("failedAt".to_owned(), json!(time(now)));
        body.insert("durationMs".to_owned(), json!(self.elapsed(now)));
        body.insert("tokensAttempted".to_owned(), json!(job.spec.message_tokens));
        body.insert("error".to_owned(), json!(error));
        self.emit(job, "failed", now, body);
    }

    fn elapsed(&self, now: i64) -> i64 {
        now - self.since_ms.load(Ordering::Relaxed)
    }

    /// The fields that all events of one try have.
    fn body(&self, job: &Job) -> Map<String, Value> {
        let name = match &self.unqueued {
            Some(unqueued) => unqueued.name.clone(),
            None => format!("{}-{}", job.id, job.fence),
        };
        let id = match self.number.load(Ordering::Relaxed) {
            0 => name,
            again => format!("{name}-{again}"),
        };
        let mut body = Map::new();
        body.insert("cycleId".to_owned(), json!(id));
        body.insert("operationType".to_owned(), json!(operation(job.spec.kind)));
        body
    }

    fn emit(&self, job: &Job, end: &str, at_ms: i64, body: Map<String, Value>) {
        let kind = format!("data-om-{}-{end}", family(job));
        let event = event(&kind, at_ms, &Value::Object(body));
        match &self.unqueued {
            None => self.log.emit(&job.scope, job.spec.tip, event),
            Some(unqueued) => {
                log(&job.scope, &event);
                let mut events = unqueued
                    .events
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                events.push(event);
            }
        }
    }
}

/// The published family: whether `job` is done ahead of need, or after its conversation reached the
/// limit.
fn family(job: &Job) -> &'static str {
    if job.spec.urgency < 1_000 {
        "buffering"
    } else {
        "observation"
    }
}

impl Events {
    /// Emits that the conversation has another title. The title, which a model wrote, is the only text
    /// that an event contains.
    pub(in crate::jobs) fn emit_title_change(&self, job: &Job, old: Option<&str>, new: &str) {
        let now = self.clock.now_ms();
        let mut body = Cycle::new(self).body(job);
        body.remove("operationType");
        body.extend(old.map(|old| ("oldTitle".to_owned(), json!(old))));
        body.insert("newTitle".to_owned(), json!(new));
        body.insert("timestamp".to_owned(), json!(time(now)));
        let renamed = event("data-om-thread-update", now, &Value::Object(body));
        self.emit(&job.scope, job.spec.tip, renamed);
    }
}
