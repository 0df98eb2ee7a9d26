//! What is told of a job: its tries, each from a start to an end or a failure, and the title it found.
//!
//! Whether a try is told as `buffering` or as `observation` says only how urgent it was. Called by the
//! workers and by whoever asks a model more than once for one job.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};

use super::{MAX_ERROR, config, event, log, operation, time};
use crate::jobs::evidence::Kept;
use crate::jobs::{Settings, Shop, nonce};
use crate::store::{Event, Job};

/// The tries of one job, as they are told: every question to the Reflector is a cycle of its own.
#[derive(Debug)]
pub(in crate::jobs) struct Cycle {
    number: AtomicU32,
    since_ms: AtomicI64,
    beside: Option<Beside>,
}

/// Of a job that is in no queue: the name of its try, and what was told of it. Nothing of that may be
/// written down before the upstream has accepted what comes of it (INV-OWN); the log has it at once.
#[derive(Debug)]
struct Beside {
    name: String,
    told: Mutex<Vec<Event>>,
}

impl Cycle {
    /// None is told of yet.
    pub(in crate::jobs) fn new(at_ms: i64) -> Self {
        Self {
            number: AtomicU32::new(0),
            since_ms: AtomicI64::new(at_ms),
            beside: None,
        }
    }

    /// The same of a job that is in no queue.
    pub(super) fn beside(at_ms: i64) -> Self {
        let beside = Beside {
            name: nonce(),
            told: Mutex::default(),
        };
        Self {
            beside: Some(beside),
            ..Self::new(at_ms)
        }
    }

    /// What was told of a job that is in no queue.
    pub(super) fn told(&self) -> Vec<Event> {
        let told = self.beside.as_ref().map(|beside| &beside.told);
        let told = told.map(|told| told.lock().unwrap_or_else(PoisonError::into_inner));
        told.map(|told| told.clone()).unwrap_or_default()
    }

    /// A model is about to be asked.
    pub(in crate::jobs) fn started(&self, shop: &Shop, settings: &Settings, job: &Job) {
        let now = shop.clock.now_ms();
        self.since_ms.store(now, Ordering::Relaxed);
        let tokens = match family(job) {
            "buffering" => "tokensToBuffer",
            _ => "tokensToObserve",
        };
        let mut body = self.body(job);
        body.insert("startedAt".to_owned(), json!(time(now)));
        body.insert(tokens.to_owned(), json!(job.work.message_tokens));
        let (model, kind) = (&job.work.model, job.work.kind);
        let policy = settings.policy_for(model);
        let config = config(policy, &settings.upstream, &job.scope, model, kind);
        body.insert("config".to_owned(), config);
        self.tell(shop, job, "start", now, body);
    }

    /// What was answered is not enough, and the model is about to be asked again.
    pub(in crate::jobs) fn again(&self, shop: &Shop, settings: &Settings, job: &Job, why: &str) {
        self.failed(shop, job, why);
        self.number.fetch_add(1, Ordering::Relaxed);
        self.started(shop, settings, job);
    }

    /// It wrote a part of so many `tokens`, from the messages of the job.
    pub(in crate::jobs) fn ended(&self, shop: &Shop, job: &Job, tokens: u32, kept: Option<&Kept>) {
        let now = shop.clock.now_ms();
        let (taken, written) = match family(job) {
            "buffering" => ("tokensBuffered", "bufferedTokens"),
            _ => ("tokensObserved", "observationTokens"),
        };
        let mut body = self.body(job);
        body.insert("completedAt".to_owned(), json!(time(now)));
        body.insert("durationMs".to_owned(), json!(self.lasted(now)));
        body.insert(taken.to_owned(), json!(job.work.message_tokens));
        body.insert(written.to_owned(), json!(tokens));
        // Ours, beside what is published.
        body.extend(kept.map(|kept| ("retention".to_owned(), kept.retention.to_map().into())));
        self.tell(shop, job, "end", now, body);
    }

    /// It did not: `error` is the provider's message, or ours.
    pub(in crate::jobs) fn failed(&self, shop: &Shop, job: &Job, error: &str) {
        let now = shop.clock.now_ms();
        let error: String = error.chars().take(MAX_ERROR).collect();
        let mut body = self.body(job);
        body.insert("failedAt".to_owned(), json!(time(now)));
        body.insert("durationMs".to_owned(), json!(self.lasted(now)));
        body.insert("tokensAttempted".to_owned(), json!(job.work.message_tokens));
        body.insert("error".to_owned(), json!(error));
        self.tell(shop, job, "failed", now, body);
    }

    fn lasted(&self, now: i64) -> i64 {
        now - self.since_ms.load(Ordering::Relaxed)
    }

    /// What the events of one try have in common.
    fn body(&self, job: &Job) -> Map<String, Value> {
        let name = match &self.beside {
            Some(beside) => beside.name.clone(),
            None => format!("{}-{}", job.id, job.fence),
        };
        let id = match self.number.load(Ordering::Relaxed) {
            0 => name,
            again => format!("{name}-{again}"),
        };
        let mut body = Map::new();
        body.insert("cycleId".to_owned(), json!(id));
        body.insert("operationType".to_owned(), json!(operation(job.work.kind)));
        body
    }

    fn tell(&self, shop: &Shop, job: &Job, end: &str, at_ms: i64, body: Map<String, Value>) {
        let kind = format!("data-om-{}-{end}", family(job));
        let event = event(&kind, at_ms, &Value::Object(body));
        match &self.beside {
            None => shop.events.tell(&job.scope, job.work.tip, event),
            Some(beside) => {
                log(&job.scope, &event);
                let mut told = beside.told.lock().unwrap_or_else(PoisonError::into_inner);
                told.push(event);
            }
        }
    }
}

/// Whether `job` is done ahead of need, or its conversation is beyond its limit already.
fn family(job: &Job) -> &'static str {
    if job.work.urgency < 1_000 {
        "buffering"
    } else {
        "observation"
    }
}

/// The conversation has another title: the only words an event holds, and a model's.
pub(in crate::jobs) fn renamed(shop: &Shop, job: &Job, old: Option<&str>, new: &str) {
    let now = shop.clock.now_ms();
    let mut body = Cycle::new(now).body(job);
    body.remove("operationType");
    body.extend(old.map(|old| ("oldTitle".to_owned(), json!(old))));
    body.insert("newTitle".to_owned(), json!(new));
    body.insert("timestamp".to_owned(), json!(time(now)));
    let renamed = event("data-om-thread-update", now, &Value::Object(body));
    shop.events.tell(&job.scope, job.work.tip, renamed);
}
