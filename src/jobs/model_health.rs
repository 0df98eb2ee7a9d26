//! Whether the Observer and the Reflector work, judged by their calls.
//!
//! A model that fails, refuses or answers what cannot be used is *failing* after a few calls in a row, at
//! once if no call can succeed. That is reported by `/readyz` (the parts `observer` and `reflector`), by a
//! response header, by a metric and, once a minute, by a log line that names the model, the endpoint, a
//! conversation and the remedy. A call that takes unusually long is reported while it runs. Calls that wait on purpose,
//! because of a rate limit, are reported as *resting*. So are endpoints that the circuit breaker leaves alone. Makes no
//! call and stops none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::clock::{Clock, millis};
use super::model_problem::{Problem, remedy, role};
use super::resting;
use super::settings::Phase;
use crate::llm::{CallError, Endpoint, MAX_RETRY_AFTER};
use crate::memory::PartKind;
use crate::store::Job;
use crate::tasks::{Condition, Readiness};
use crate::telemetry;

/// So many calls in a row must fail before a model that has worked counts as failing, unless no call can succeed.
const FAILING_AFTER: u32 = 3;

/// The same for an Observer that has not worked yet. A conversation whose answers cannot be used makes two calls, and
/// then waits.
const UNPROVEN_FAILING_AFTER: u32 = 2;

/// A pause that an endpoint asks for is shown from this length on. Shorter ones are over before anybody looks.
const SHORTEST_REST: Duration = Duration::from_secs(30);

/// At most one line about one model in this time.
const WARNING_INTERVAL: Duration = Duration::from_mins(1);

/// How long a borrowed credential counts as failing after its last call. A configured one counts until a
/// call succeeds or the configuration changes.
const BORROWED_TTL: Duration = Duration::from_mins(30);

/// The most models in the table. Clients choose their names, so there must be a bound.
const MAX_TARGETS: usize = 1_024;

type Tenant = [u8; 32];

/// Who is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target {
    kind: PartKind,
    /// Whose credential is borrowed; `None` for the operator's own.
    tenant: Option<Tenant>,
    origin: String,
    model: String,
}

impl Target {
    fn new(endpoint: &Endpoint, model: &str, job: &Job) -> Self {
        let borrowed = matches!(endpoint, Endpoint::Borrowed(_));
        Self {
            kind: job.spec.kind,
            tenant: borrowed.then_some(job.scope.tenant),
            origin: endpoint.origin(),
            model: model.to_owned(),
        }
    }
}

#[derive(Debug, Default)]
struct Health {
    /// Whether an answer of it was usable since the process or the configuration began.
    proven: bool,
    /// Calls in a row that came to nothing.
    bad_calls: u32,
    /// Ranges in a row about which it said nothing usable, and the job of the last one.
    bad_ranges: u32,
    last_bad_job: Option<i64>,
    /// Why it is failing, if it is.
    failing: Option<String>,
    last_call: Option<Instant>,
    last_warning: Option<Instant>,
    /// Calls that run and take longer than they should.
    overdue: u32,
    /// How long its slowest answered call took.
    slowest: Duration,
    /// Since when, and until when, it asks to be left alone, if the credential is the operator's own.
    rest: Option<(i64, i64)>,
}

/// A clock that is adjusted while it runs goes back by less than this, in milliseconds.
const ADJUSTMENT_MS: i64 = 60_000;

/// Whether a rest or pause lasts at `now_ms`. One that begins later was made by a clock that was ahead, and has been put
/// right since: its end says nothing.
fn lasts_at((since, until): (i64, i64), now_ms: i64) -> bool {
    (since - ADJUSTMENT_MS..until).contains(&now_ms)
}

/// Begins a rest or pause at `now_ms`, or extends it: then it keeps its beginning.
fn extend<K>(entry: Entry<'_, K, (i64, i64)>, now_ms: i64, until_ms: i64) {
    let (since, until) = entry.or_insert((now_ms, until_ms));
    *since = now_ms.min(*since);
    *until = until_ms;
}

#[derive(Debug, Default)]
struct State {
    targets: HashMap<Target, Health>,
    /// Tenants whose borrowed credentials rest: since when, and until when.
    rests: HashMap<Tenant, (i64, i64)>,
    /// Endpoints that get no calls because they keep failing: since when, and until when. Once the time is over, one call
    /// tries them; the entry stays until a call does not fail because of the endpoint, at most half an hour longer.
    paused: HashMap<EndpointKey, (i64, i64)>,
}

/// An endpoint as the circuit breaker tells them apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EndpointKey {
    /// Whose credential is borrowed; `None` for the operator's own.
    tenant: Option<Tenant>,
    origin: String,
}

impl EndpointKey {
    fn new(endpoint: &Endpoint, job: &Job) -> Self {
        let borrowed = matches!(endpoint, Endpoint::Borrowed(_));
        Self {
            tenant: borrowed.then_some(job.scope.tenant),
            origin: endpoint.origin(),
        }
    }
}

/// Why a conversation may get no memory for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The Observer fails, refuses, or answers what cannot be used; with the time in which its endpoint gets no calls, if it
    /// keeps failing.
    ObserverFailing(Option<Rest>),
    /// Memory's calls with the client's credential rest, because of its rate limit.
    ObserverResting(Rest),
    /// The tokens that memory may use today are spent, for this account or for all.
    BudgetSpent(Rest),
}

/// When memory's calls began to wait, and until when they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    pub since: Timestamp,
    pub until: Timestamp,
}

impl Rest {
    /// From and until these milliseconds since 1970; `None` if they are no times.
    pub(super) fn from_millis(since: i64, until: i64) -> Option<Self> {
        Some(Self {
            since: Timestamp::from_millisecond(since).ok()?,
            until: Timestamp::from_millisecond(until).ok()?,
        })
    }
}

/// How the models of memory are. A clone is a second handle.
#[derive(Clone, Debug)]
pub(super) struct ModelHealth {
    state: Arc<Mutex<State>>,
    readiness: Readiness,
    clock: Clock,
    recovered: Arc<AtomicBool>,
}

impl ModelHealth {
    pub(super) fn new(clock: Clock, readiness: &Readiness) -> Self {
        let health = Self {
            state: Arc::default(),
            readiness: readiness.clone(),
            clock,
            recovered: Arc::default(),
        };
        health.publish(&health.lock());
        health
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call gave what can be used.
    pub(super) fn worked(&self, endpoint: &Endpoint, model: &str, job: &Job) {
        let now = self.clock.instant();
        let mut state = self.lock();
        let health = state.health(Target::new(endpoint, model, job));
        let (was_failing, was_resting) = (health.failing.is_some(), health.rest.is_some());
        *health = Health {
            proven: true,
            last_call: Some(now),
            overdue: health.overdue,
            slowest: health.slowest,
            ..Health::default()
        };
        if was_failing {
            tracing::info!(
                model,
                endpoint = endpoint.origin(),
                "the {} works again",
                role(job.spec.kind)
            );
            self.recovered.store(true, Ordering::SeqCst);
        }
        if was_failing || was_resting {
            self.publish(&state);
        }
    }

    /// How long a call may run before it is reported as hanging; `deadline` ends it. A model that takes minutes for each
    /// answer is slow, not broken, so it is measured by itself once it has answered.
    pub(super) fn patience(
        &self,
        endpoint: &Endpoint,
        model: &str,
        job: &Job,
        deadline: Duration,
    ) -> Duration {
        let state = self.lock();
        let health = state.targets.get(&Target::new(endpoint, model, job));
        let slowest = health.map_or(Duration::ZERO, |health| health.slowest);
        (2 * slowest).max(deadline / 2)
    }

    /// A call was answered after this time.
    pub(super) fn answered(&self, endpoint: &Endpoint, model: &str, job: &Job, after: Duration) {
        let now = self.clock.instant();
        let mut state = self.lock();
        let health = state.health(Target::new(endpoint, model, job));
        health.last_call = Some(now);
        health.slowest = health.slowest.max(after);
        // It answers, whatever it says.
        if health.rest.take().is_some() {
            self.publish(&state);
        }
    }

    /// A call has run for this long without an answer. It is reported as hanging until the returned value is dropped.
    pub(super) fn begin_overdue(
        &self,
        endpoint: &Endpoint,
        model: &str,
        job: &Job,
        after: Duration,
    ) -> OverdueCall {
        let target = Target::new(endpoint, model, job);
        tracing::warn!(
            model,
            endpoint = endpoint.origin(),
            thread = job.conversation,
            seconds = after.as_secs(),
            "the {} has not answered a call yet: {}. Requests pass with their whole history meanwhile",
            role(job.spec.kind),
            remedy(
                job.spec.kind,
                target.tenant.is_some(),
                Problem::Call(&CallError::Timeout {
                    message: String::new()
                })
            )
        );
        let mut state = self.lock();
        state.health(target.clone()).overdue += 1;
        self.publish(&state);
        drop(state);
        OverdueCall {
            health: self.clone(),
            target,
        }
    }

    /// Whether a model works again since this was last called: what waited for it need not wait longer.
    pub(super) fn take_recovered(&self) -> bool {
        self.recovered.swap(false, Ordering::SeqCst)
    }

    /// A call gave nothing that can be used.
    pub(super) fn failed(&self, endpoint: &Endpoint, model: &str, job: &Job, problem: Problem<'_>) {
        let borrowed = matches!(endpoint, Endpoint::Borrowed(_));
        let at_once = match problem {
            // A shorter call may follow. If not, that is a problem of its own.
            Problem::Call(CallError::TooLong { .. }) => return,
            // The client may have taken its key back; then it gets the same error. Or its key is not allowed to use this
            // model; then nobody else would notice.
            Problem::Call(CallError::Unauthorised { .. }) if borrowed => false,
            Problem::Call(CallError::Unauthorised { .. } | CallError::Fatal { .. }) => true,
            Problem::Call(_) | Problem::NoShorterCall(_) | Problem::Unusable => false,
        };
        let (now, now_ms) = (self.clock.instant(), self.clock.now_ms());
        let mut state = self.lock();
        let health = state.health(Target::new(endpoint, model, job));
        health.bad_calls = health.bad_calls.saturating_add(1);
        health.last_call = Some(now);
        if let Problem::Call(error) = problem
            && !error.is_retryable()
        {
            health.rest = None;
        }
        if let Problem::Call(error) = problem
            && let Some(wait) = error.retry_after().filter(|_| !borrowed)
            && wait >= SHORTEST_REST
        {
            // One that is extended keeps its beginning.
            let running = health.rest.filter(|(_, until)| *until > now_ms);
            let since = running.map_or(now_ms, |(since, _)| since);
            let until = now_ms.saturating_add(millis(wait.min(MAX_RETRY_AFTER)));
            health.rest = Some((since, until));
        }
        if health.last_bad_job.replace(job.id) != Some(job.id) {
            health.bad_ranges = health.bad_ranges.saturating_add(1);
        }
        let error = problem.text(job.spec.kind);
        let limit = match (health.proven, problem, job.spec.kind) {
            (true, ..) => FAILING_AFTER,
            // One job has made all calls that could help.
            (false, Problem::NoShorterCall(_) | Problem::Unusable, PartKind::Reflection) => 1,
            (false, ..) => UNPROVEN_FAILING_AFTER,
        };
        if at_once || health.bad_calls >= limit {
            health.failing = Some(error.clone());
        }
        let is_due = |last: Instant| now.saturating_duration_since(last) >= WARNING_INTERVAL;
        if health.last_warning.is_none_or(is_due) {
            health.last_warning = Some(now);
            tracing::warn!(
                model,
                endpoint = endpoint.origin(),
                thread = job.conversation,
                failed_calls = health.bad_calls,
                error = %error,
                "the {} does not work: {}. Requests pass with their whole history meanwhile",
                role(job.spec.kind),
                remedy(job.spec.kind, borrowed, problem)
            );
        }
        self.publish(&state);
    }

    /// Whether a range about which the model says nothing is a matter of that range: the model has shown that
    /// it can do the work, or it says so in the right form, and it does not fail at one range after the other.
    pub(super) fn is_trusted(
        &self,
        endpoint: &Endpoint,
        model: &str,
        job: &Job,
        is_empty_block: bool,
    ) -> bool {
        let state = self.lock();
        let health = state.targets.get(&Target::new(endpoint, model, job));
        let (proven, bad_ranges) =
            health.map_or((false, 0), |health| (health.proven, health.bad_ranges));
        (proven || is_empty_block) && bad_ranges < FAILING_AFTER
    }

    /// Memory's calls with the credential of `tenant` rest until `until_ms`.
    pub(super) fn record_rest(&self, tenant: &Tenant, until_ms: i64) {
        let mut state = self.lock();
        let now_ms = self.clock.now_ms();
        state.rests.retain(|_, rest| lasts_at(*rest, now_ms));
        extend(state.rests.entry(*tenant), now_ms, until_ms);
        self.publish(&state);
    }

    /// The endpoint keeps failing, and gets no calls for this time.
    pub(super) fn record_pause(&self, endpoint: &Endpoint, job: &Job, pause: Duration) {
        let now_ms = self.clock.now_ms();
        let until_ms = now_ms.saturating_add(millis(pause));
        let mut state = self.lock();
        if state.paused.len() >= MAX_TARGETS {
            state.paused.clear();
        }
        let key = EndpointKey::new(endpoint, job);
        extend(state.paused.entry(key), now_ms, until_ms);
        self.publish(&state);
    }

    /// The endpoint answered.
    pub(super) fn end_pause(&self, endpoint: &Endpoint, job: &Job) {
        let mut state = self.lock();
        let key = EndpointKey::new(endpoint, job);
        if state.paused.remove(&key).is_some() {
            self.publish(&state);
        }
    }

    /// The notice for a request of `tenant` in a conversation with `model`. `phase` is its Observer.
    pub(super) fn notice(&self, tenant: &Tenant, phase: &Phase, model: &str) -> Option<Notice> {
        let state = self.lock();
        let borrowed = phase.endpoint.is_none();
        let is_observer = |target: &Target| {
            target.kind == PartKind::Chunk
                && target.tenant == borrowed.then_some(*tenant)
                && match &phase.model {
                    Some(models) => models.names().any(|name| name == target.model),
                    None => target.model == model,
                }
        };
        let now_ms = self.clock.now_ms();
        let origin = phase.endpoint.as_ref().map(Endpoint::origin);
        let mut paused = state.paused.iter().filter(|(endpoint, pause)| {
            lasts_at(**pause, now_ms)
                && endpoint.tenant == borrowed.then_some(*tenant)
                && origin.as_ref().is_none_or(|it| *it == endpoint.origin)
        });
        let pause = paused
            .next()
            .and_then(|(_, (since, until))| Rest::from_millis(*since, *until));
        let mut targets = state.targets.iter();
        let fails =
            |(target, health): (&Target, &Health)| health.failing.is_some() && is_observer(target);
        // The Reflector's calls may have opened the breaker of this endpoint. Then the Observer is not called either.
        if pause.is_some() || targets.any(fails) {
            return Some(Notice::ObserverFailing(pause));
        }
        let observers = state
            .targets
            .iter()
            .filter(|(target, _)| is_observer(target));
        let own = observers
            .filter_map(|(_, health)| health.rest)
            .filter(|rest| lasts_at(*rest, now_ms))
            .max_by_key(|(_, until)| *until);
        let of_tenant = state.rests.get(tenant).copied();
        let of_tenant = of_tenant.filter(|rest| borrowed && lasts_at(*rest, now_ms));
        let (since, until) = of_tenant.or(own)?;
        Rest::from_millis(since, until).map(Notice::ObserverResting)
    }

    /// Forgets what is over: rests that have ended, and borrowed credentials that failed and that nobody uses any more.
    pub(super) fn expire(&self) {
        let (now, now_ms) = (self.clock.instant(), self.clock.now_ms());
        let mut state = self.lock();
        state.rests.retain(|_, rest| lasts_at(*rest, now_ms));
        let is_recent = |until: i64| until.saturating_add(millis(BORROWED_TTL)) > now_ms;
        state.paused.retain(|_, (_, until)| is_recent(*until));
        state.targets.retain(|target, health| {
            let age = health
                .last_call
                .map(|last| now.saturating_duration_since(last));
            // What is known of a model that works stays: nobody is warned of it.
            let is_problem = health.bad_calls > 0 && health.overdue == 0;
            target.tenant.is_none() || !is_problem || age.is_none_or(|age| age < BORROWED_TTL)
        });
        self.publish(&state);
    }

    /// Forgets everything: with another configuration, other calls are made.
    pub(super) fn reset(&self) {
        let mut state = self.lock();
        state.targets.clear();
        state.paused.clear();
        self.publish(&state);
    }

    fn publish(&self, state: &State) {
        let now_ms = self.clock.now_ms();
        let waiting = |rest: &(i64, i64)| lasts_at(*rest, now_ms);
        let own = state.targets.values().filter_map(|health| health.rest);
        let rests = state.rests.values().copied().chain(own);
        resting::publish("rate_limit", rests.filter(waiting));
        let paused = state.paused.values().copied();
        resting::publish("breaker", paused.filter(waiting));
        for (kind, part) in [
            (PartKind::Chunk, "observer"),
            (PartKind::Reflection, "reflector"),
        ] {
            let failing = state
                .targets
                .iter()
                .filter(|(target, _)| target.kind == kind);
            let mut failing: Vec<String> = failing
                .filter_map(|(target, health)| {
                    let error = health.failing.as_ref()?;
                    Some(format!("{} at {}: {error}", target.model, target.origin))
                })
                .collect();
            failing.sort_unstable();
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            metrics::gauge!(telemetry::MODELS_FAILING, "kind" => kind.name())
                .set(failing.len() as f64);
            let own = state
                .targets
                .iter()
                .filter(|(target, _)| target.kind == kind);
            let own = own.filter_map(|(_, health)| health.rest).filter(waiting);
            let rests = state.rests.values().copied().chain(own);
            let rest = rests.map(|(_, until)| until).max();
            let rest = rest.and_then(|until| Timestamp::from_millisecond(until).ok());
            // A call that hangs is shown, but nothing is decided by it: it may still be answered.
            let overdue = state.targets.iter();
            let mut overdue = overdue.filter(|(target, health)| {
                target.kind == kind && health.failing.is_none() && health.overdue > 0
            });
            failing.extend(overdue.next().map(|(target, health)| {
                format!(
                    "{} at {}: it has not answered yet; calls that hang: {}",
                    target.model, target.origin, health.overdue
                )
            }));
            let condition = match (failing.as_slice(), rest) {
                ([], None) => Condition::Up,
                ([], Some(until)) => Condition::Resting { until },
                ([one], _) => Condition::Degraded(one.clone()),
                ([one, more @ ..], _) => {
                    Condition::Degraded(format!("{one} (and {} more)", more.len()))
                }
            };
            self.readiness.set(part, condition);
        }
    }
}

impl State {
    /// The health of `target`. If there are too many, the one is dropped that was not called for the longest time,
    /// first of those that work.
    fn health(&mut self, target: Target) -> &mut Health {
        if self.targets.len() >= MAX_TARGETS && !self.targets.contains_key(&target) {
            let order = |health: &Health| {
                let is_needed = health.failing.is_some() || health.overdue > 0;
                (is_needed, health.last_call)
            };
            let targets = self.targets.iter();
            let oldest = targets.min_by_key(|(_, health)| order(health));
            if let Some(oldest) = oldest.map(|(oldest, _)| oldest.clone()) {
                self.targets.remove(&oldest);
            }
        }
        self.targets.entry(target).or_default()
    }
}

/// A call that is reported as hanging.
#[must_use = "the call counts as ended as soon as this is dropped"]
pub(super) struct OverdueCall {
    health: ModelHealth,
    target: Target,
}

impl Drop for OverdueCall {
    fn drop(&mut self) {
        let mut state = self.health.lock();
        if let Some(health) = state.targets.get_mut(&self.target) {
            health.overdue = health.overdue.saturating_sub(1);
        }
        self.health.publish(&state);
    }
}

#[cfg(test)]
mod tests;
