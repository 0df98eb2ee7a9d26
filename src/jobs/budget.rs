//! What memory's own model calls cost: counted for metrics, per conversation and against the daily
//! budget of a tenant.
//!
//! The store keeps the books, so that a budget holds over restarts and for every process. What is
//! held here spares a job with several calls the next one, and waits until there is somebody to book it
//! on: nothing is stored for an owner whom no upstream has accepted (INV-OWN). Never delays a request.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Shop;
use crate::history::{Link, Scope};
use crate::llm::{CallError, Prompt, Reply};
use crate::store::{Cost, Job, utc_day};
use crate::telemetry;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Tenants that have spent what they may on a day.
#[derive(Debug, Default)]
pub(crate) struct BudgetCache(Mutex<(i64, HashSet<[u8; 32]>)>);

impl BudgetCache {
    fn on_day<T>(&self, today: i64, look: impl FnOnce(&mut HashSet<[u8; 32]>) -> T) -> T {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.0 != today {
            *cached = (today, HashSet::new());
        }
        look(&mut cached.1)
    }

    /// What `tenant` spent on the day of `at_ms` is all it may; whether that is news at `now_ms`. What is
    /// owed since before midnight says nothing of today.
    fn mark_exhausted(&self, tenant: [u8; 32], at_ms: i64, now_ms: i64) -> bool {
        let today = utc_day(now_ms);
        utc_day(at_ms) == today && self.on_day(today, |exhausted| exhausted.insert(tenant))
    }
}

/// Owners whose costs wait at most; with one more the others' are forgotten.
const MAX_OWNERS: usize = 256;

/// Costs that one owner owes at most, each for itself: what comes then is added to the last of its kind. The
/// sum is what counts; which conversation it was for matters to people, of whom nobody reads so many.
const MAX_COSTS_PER_OWNER: usize = 64;

/// A cost, the last link of the request it was for, and when.
type UnbilledCost = (Link, Cost, i64);

/// What calls cost for requests that no upstream had accepted yet.
#[derive(Debug, Default)]
pub(crate) struct UnbilledCosts(Mutex<HashMap<Scope, Vec<UnbilledCost>>>);

impl UnbilledCosts {
    fn lock(&self) -> MutexGuard<'_, HashMap<Scope, Vec<UnbilledCost>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a cost; what the tenant owes since the day of `at_ms` began.
    fn add(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> u64 {
        let mut costs = self.lock();
        if costs.len() >= MAX_OWNERS && !costs.contains_key(scope) {
            costs.clear();
        }
        push_or_merge(costs.entry(scope.clone()).or_default(), (tip, cost, at_ms));
        let tenant_costs = costs
            .iter()
            .filter(|(owner, _)| owner.tenant == scope.tenant);
        tenant_costs
            .flat_map(|(_, costs)| costs)
            .filter(|(_, _, then)| utc_day(*then) == utc_day(at_ms))
            .fold(0, |sum, (_, cost, _)| {
                sum.saturating_add(cost.prompt_tokens)
                    .saturating_add(cost.completion_tokens)
            })
    }
}

fn push_or_merge(costs: &mut Vec<UnbilledCost>, new: UnbilledCost) {
    let (_, cost, at_ms) = &new;
    let same_kind_and_day =
        |due: &&mut UnbilledCost| due.1.kind == cost.kind && utc_day(due.2) == utc_day(*at_ms);
    let full = costs.len() >= MAX_COSTS_PER_OWNER;
    if let Some((_, existing, _)) = costs
        .iter_mut()
        .rev()
        .filter(|_| full)
        .find(same_kind_and_day)
    {
        existing.merge(cost);
    } else {
        // Of another day: no budget asks for it any more.
        costs.drain(..usize::from(full));
        costs.push(new);
    }
}

/// A request of `scope` was recorded: what was owed for it, and for others of its owner, is booked.
pub(super) async fn bill_pending(shop: &Shop, scope: &Scope) {
    let unbilled = shop.unbilled_costs.lock().remove(scope);
    for (tip, cost, at_ms) in unbilled.into_iter().flatten() {
        bill(shop, scope, tip, cost, at_ms).await;
    }
}

/// Whether a call may be made for `scope`.
///
/// # Errors
/// With the time until the next day, where the budget is spent.
pub(super) fn admit(shop: &Shop, scope: &Scope) -> Result<(), CallError> {
    let now = shop.clock.now_ms();
    let is_exhausted = |tenants: &mut HashSet<_>| tenants.contains(&scope.tenant);
    if shop.settings.current().daily_tokens.is_none()
        || !shop.budget_cache.on_day(utc_day(now), is_exhausted)
    {
        return Ok(());
    }
    let left = u64::try_from(DAY_MS - now.rem_euclid(DAY_MS)).unwrap_or_default();
    Err(CallError::RateLimited {
        retry_after: Some(Duration::from_millis(left)),
        message: "the tokens that memory may cost this tenant today are spent".to_owned(),
    })
}

/// Puts a call that was made into the books: what the endpoint reported, or what was counted here
/// where it reported nothing. A call that failed costs nothing, unless a model worked on it.
pub(super) async fn record_cost(
    shop: &Shop,
    job: &Job,
    prompt: &Prompt,
    answer: &Result<Reply, CallError>,
) {
    let (reported, text) = match answer {
        Ok(reply) => (reply.usage, reply.text.as_str()),
        Err(error) if error.is_billed() => (crate::wire::usage::Usage::default(), ""),
        Err(_) => return,
    };
    let mut guessed = 0;
    let sent = match reported.prompt {
        Some(tokens) => tokens,
        None => estimate_tokens(shop, &[&prompt.system, &prompt.user], &mut guessed).await,
    };
    let written = match reported.completion {
        Some(tokens) => tokens,
        None => estimate_tokens(shop, &[text], &mut guessed).await,
    };
    let cost = Cost {
        kind: job.spec.kind,
        prompt_tokens: sent,
        cached_tokens: reported.cached.unwrap_or_default(),
        completion_tokens: written,
        estimated_tokens: guessed,
    };
    emit_metrics(&cost);
    let now = shop.clock.now_ms();
    let (scope, tip) = (&job.scope, job.spec.tip);
    if job.is_queued() {
        bill(shop, scope, tip, cost, now).await;
    } else {
        let unbilled = shop.unbilled_costs.add(scope, tip, cost, now);
        check_budget(
            shop,
            scope,
            unbilled.saturating_add(billed_today(shop, scope, now).await),
            now,
        );
    }
}

/// What the tenant of `scope` has in the books for today; asked only where something is made of it.
async fn billed_today(shop: &Shop, scope: &Scope, now: i64) -> u64 {
    if shop.settings.current().daily_tokens.is_none() {
        return 0;
    }
    let total = shop.store.spent_tokens(scope, now).await;
    total.unwrap_or_else(|error| {
        tracing::warn!(error = %error, "what a tenant spent today could not be read");
        0
    })
}

async fn bill(shop: &Shop, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) {
    match shop.store.record_cost(scope, tip, cost, at_ms).await {
        Ok(total) => check_budget(shop, scope, total, at_ms),
        Err(error) => {
            metrics::counter!(telemetry::STORE_FAILURES).increment(1);
            tracing::warn!(error = %error, "what a model call cost could not be written down");
        }
    }
}

async fn estimate_tokens(shop: &Shop, texts: &[&str], guessed: &mut u64) -> u64 {
    let mut tokens = 0;
    for text in texts.iter().filter(|text| !text.is_empty()) {
        tokens += u64::from(super::count_tokens(shop, text).await);
    }
    *guessed += tokens;
    tokens
}

fn check_budget(shop: &Shop, scope: &Scope, total: u64, at_ms: i64) {
    let limit = shop.settings.current().daily_tokens;
    let Some(budget) = limit.filter(|budget| total >= *budget) else {
        return;
    };
    let now = shop.clock.now_ms();
    if shop.budget_cache.mark_exhausted(scope.tenant, at_ms, now) {
        metrics::counter!(telemetry::BUDGETS_SPENT).increment(1);
        tracing::warn!(
            tenant = %scope.tenant_label(),
            spent = total,
            daily_tokens = budget,
            "the tokens that memory may cost this tenant today are spent: its jobs wait until \
             tomorrow (UTC). Requests are not affected"
        );
    }
}

fn emit_metrics(cost: &Cost) {
    for (direction, tokens) in [
        ("in", cost.prompt_tokens),
        ("cached", cost.cached_tokens),
        ("out", cost.completion_tokens),
    ] {
        metrics::counter!(
            telemetry::MODEL_TOKENS,
            "kind" => cost.kind.name(),
            "direction" => direction
        )
        .increment(tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PartKind;

    fn cost(sent: u64) -> Cost {
        Cost {
            kind: PartKind::Chunk,
            prompt_tokens: sent,
            cached_tokens: 0,
            completion_tokens: 1,
            estimated_tokens: 0,
        }
    }

    /// What was owed is booked when the owner comes again, which may be after midnight.
    #[test]
    fn what_was_spent_yesterday_is_no_budget_of_today() {
        let cache = BudgetCache::default();
        let (yesterday, today) = (DAY_MS - 1, DAY_MS + 1);
        let is_exhausted = |tenant: [u8; 32]| {
            cache.on_day(utc_day(today), |exhausted| exhausted.contains(&tenant))
        };
        assert!(cache.mark_exhausted([1; 32], today, today));
        assert!(!cache.mark_exhausted([1; 32], today, today), "no news");
        assert!(!cache.mark_exhausted([2; 32], yesterday, today));
        assert!(
            is_exhausted([1; 32]),
            "what is known of today is not forgotten"
        );
        assert!(!is_exhausted([2; 32]));
    }

    #[test]
    fn what_one_owner_owes_is_bounded_and_no_token_of_today_is_lost() {
        let (unbilled, scope) = (UnbilledCosts::default(), Scope::new(b"tenant", None));
        let tip = Link::root(&scope);
        let calls = 10 * u64::try_from(MAX_COSTS_PER_OWNER).expect("small");
        let mut total = 0;
        for _ in 0..calls {
            total = unbilled.add(&scope, tip, cost(10), 0);
        }
        assert_eq!(total, 11 * calls);
        assert_eq!(unbilled.lock()[&scope].len(), MAX_COSTS_PER_OWNER);
        // What is owed since yesterday is no part of it, and goes where there is no room.
        for more in 1..=calls {
            assert_eq!(unbilled.add(&scope, tip, cost(10), DAY_MS), 11 * more);
        }
        assert_eq!(unbilled.lock()[&scope].len(), MAX_COSTS_PER_OWNER);
        let other = Scope::new(b"other", None);
        assert_eq!(unbilled.add(&other, tip, cost(1), DAY_MS), 2);
    }
}
