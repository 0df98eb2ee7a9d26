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
use crate::store::{Cost, Job, day};
use crate::telemetry;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Tenants that have spent what they may on a day.
#[derive(Debug, Default)]
pub(crate) struct Spent(Mutex<(i64, HashSet<[u8; 32]>)>);

impl Spent {
    fn today<T>(&self, today: i64, look: impl FnOnce(&mut HashSet<[u8; 32]>) -> T) -> T {
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spent.0 != today {
            *spent = (today, HashSet::new());
        }
        look(&mut spent.1)
    }

    /// What `tenant` spent on the day of `at_ms` is all it may; whether that is news at `now_ms`. What is
    /// owed since before midnight says nothing of today.
    fn spend(&self, tenant: [u8; 32], at_ms: i64, now_ms: i64) -> bool {
        let today = day(now_ms);
        day(at_ms) == today && self.today(today, |spent| spent.insert(tenant))
    }
}

/// Owners whose costs wait at most; with one more the others' are forgotten.
const OWING: usize = 256;

/// Costs that one owner owes at most, each for itself: what comes then is added to the last of its kind. The
/// sum is what counts; which conversation it was for matters to people, of whom nobody reads so many.
const DUES: usize = 64;

/// A cost, the last link of the request it was for, and when.
type Due = (Link, Cost, i64);

/// What calls cost for requests that no upstream had accepted yet.
#[derive(Debug, Default)]
pub(crate) struct Owed(Mutex<HashMap<Scope, Vec<Due>>>);

impl Owed {
    fn held(&self) -> MutexGuard<'_, HashMap<Scope, Vec<Due>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a cost; what the tenant owes since the day of `at_ms` began.
    fn hold(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> u64 {
        let mut held = self.held();
        if held.len() >= OWING && !held.contains_key(scope) {
            held.clear();
        }
        add(held.entry(scope.clone()).or_default(), (tip, cost, at_ms));
        let own = held
            .iter()
            .filter(|(owner, _)| owner.tenant == scope.tenant);
        own.flat_map(|(_, costs)| costs)
            .filter(|(_, _, then)| day(*then) == day(at_ms))
            .fold(0, |sum, (_, cost, _)| {
                sum.saturating_add(cost.sent).saturating_add(cost.written)
            })
    }
}

fn add(dues: &mut Vec<Due>, new: Due) {
    let (_, cost, at_ms) = &new;
    let same = |due: &&mut Due| due.1.kind == cost.kind && day(due.2) == day(*at_ms);
    let full = dues.len() >= DUES;
    if let Some((_, due, _)) = dues.iter_mut().rev().filter(|_| full).find(same) {
        due.merge(cost);
    } else {
        // Of another day: no budget asks for it any more.
        dues.drain(..usize::from(full));
        dues.push(new);
    }
}

/// A request of `scope` was recorded: what was owed for it, and for others of its owner, is booked.
pub(super) async fn collect(shop: &Shop, scope: &Scope) {
    let owed = shop.owed.held().remove(scope);
    for (tip, cost, at_ms) in owed.into_iter().flatten() {
        book(shop, scope, tip, cost, at_ms).await;
    }
}

/// Whether a call may be made for `scope`.
///
/// # Errors
/// With the time until the next day, where the budget is spent.
pub(super) fn admit(shop: &Shop, scope: &Scope) -> Result<(), CallError> {
    let now = shop.clock.now_ms();
    let spent = |tenants: &mut HashSet<_>| tenants.contains(&scope.tenant);
    if shop.settings.now().daily_tokens.is_none() || !shop.spent.today(day(now), spent) {
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
pub(super) async fn pay(
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
        None => guess(shop, &[&prompt.system, &prompt.user], &mut guessed).await,
    };
    let written = match reported.completion {
        Some(tokens) => tokens,
        None => guess(shop, &[text], &mut guessed).await,
    };
    let cost = Cost {
        kind: job.work.kind,
        sent,
        cached: reported.cached.unwrap_or_default(),
        written,
        guessed,
    };
    count(&cost);
    let now = shop.clock.now_ms();
    let (scope, tip) = (&job.scope, job.work.tip);
    if job.has_row() {
        book(shop, scope, tip, cost, now).await;
    } else {
        let owed = shop.owed.hold(scope, tip, cost, now);
        heed(
            shop,
            scope,
            owed.saturating_add(booked(shop, scope, now).await),
            now,
        );
    }
}

/// What the tenant of `scope` has in the books for today; asked only where something is made of it.
async fn booked(shop: &Shop, scope: &Scope, now: i64) -> u64 {
    if shop.settings.now().daily_tokens.is_none() {
        return 0;
    }
    let spent = shop.store.spent(scope, now).await;
    spent.unwrap_or_else(|error| {
        tracing::warn!(error = %error, "what a tenant spent today could not be read");
        0
    })
}

async fn book(shop: &Shop, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) {
    match shop.store.pay(scope, tip, cost, at_ms).await {
        Ok(total) => heed(shop, scope, total, at_ms),
        Err(error) => {
            metrics::counter!(telemetry::STORE_FAILURES).increment(1);
            tracing::warn!(error = %error, "what a model call cost could not be written down");
        }
    }
}

async fn guess(shop: &Shop, texts: &[&str], guessed: &mut u64) -> u64 {
    let mut tokens = 0;
    for text in texts.iter().filter(|text| !text.is_empty()) {
        tokens += u64::from(super::count(shop, text).await);
    }
    *guessed += tokens;
    tokens
}

fn heed(shop: &Shop, scope: &Scope, total: u64, at_ms: i64) {
    let limit = shop.settings.now().daily_tokens;
    let Some(most) = limit.filter(|most| total >= *most) else {
        return;
    };
    let now = shop.clock.now_ms();
    if shop.spent.spend(scope.tenant, at_ms, now) {
        metrics::counter!(telemetry::BUDGETS_SPENT).increment(1);
        tracing::warn!(
            tenant = %scope.tenant_label(),
            spent = total,
            daily_tokens = most,
            "the tokens that memory may cost this tenant today are spent: its jobs wait until \
             tomorrow (UTC). Requests are not affected"
        );
    }
}

fn count(cost: &Cost) {
    for (direction, tokens) in [
        ("in", cost.sent),
        ("cached", cost.cached),
        ("out", cost.written),
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
            sent,
            cached: 0,
            written: 1,
            guessed: 0,
        }
    }

    /// What was owed is booked when the owner comes again, which may be after midnight.
    #[test]
    fn what_was_spent_yesterday_is_no_budget_of_today() {
        let spent = Spent::default();
        let (yesterday, today) = (DAY_MS - 1, DAY_MS + 1);
        let is_spent = |tenant: [u8; 32]| spent.today(day(today), |known| known.contains(&tenant));
        assert!(spent.spend([1; 32], today, today));
        assert!(!spent.spend([1; 32], today, today), "no news");
        assert!(!spent.spend([2; 32], yesterday, today));
        assert!(is_spent([1; 32]), "what is known of today is not forgotten");
        assert!(!is_spent([2; 32]));
    }

    #[test]
    fn what_one_owner_owes_is_bounded_and_no_token_of_today_is_lost() {
        let (owed, scope) = (Owed::default(), Scope::of(b"tenant", None));
        let tip = Link::root(&scope);
        let calls = 10 * u64::try_from(DUES).expect("small");
        let mut owes = 0;
        for _ in 0..calls {
            owes = owed.hold(&scope, tip, cost(10), 0);
        }
        assert_eq!(owes, 11 * calls);
        assert_eq!(owed.held()[&scope].len(), DUES);
        // What is owed since yesterday is no part of it, and goes where there is no room.
        for more in 1..=calls {
            assert_eq!(owed.hold(&scope, tip, cost(10), DAY_MS), 11 * more);
        }
        assert_eq!(owed.held()[&scope].len(), DUES);
        let other = Scope::of(b"other", None);
        assert_eq!(owed.hold(&other, tip, cost(1), DAY_MS), 2);
    }
}
