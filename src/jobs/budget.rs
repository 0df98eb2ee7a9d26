//! The cost of memory's own model calls: in metrics, per conversation, and against the daily budgets
//! of an account and of all.
//!
//! The store sums the costs, so that a budget holds across restarts and for all processes. This process keeps two
//! things. First, which budgets are spent: a job with several calls need not query the store before each. Second, costs
//! that are not billed yet: those of requests that no upstream has accepted, because nothing may be stored for their
//! owner (INV-OWN), and those that the store could not take. Never delays a request, except one under
//! `overflow = "observe"`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::base::Base;
use super::model_health::Rest;
use super::resting;
use crate::history::{Link, Scope};
use crate::llm::{CallError, FailedCall, Prompt, Reply, ReportedUsage};
use crate::store::{Cost, DailyLimits, Job, Spent, utc_day};
use crate::telemetry;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Whose budget it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Payer {
    Account([u8; 32]),
    All,
}

/// A budget that is spent.
#[derive(Clone, Copy, Debug)]
struct SpentBudget {
    since_ms: i64,
    /// What was spent when it was last compared with the limit.
    tokens: u64,
}

/// The budgets of one day that are spent.
#[derive(Debug, Default)]
struct SpentBudgets(Mutex<(i64, HashMap<Payer, SpentBudget>)>);

impl SpentBudgets {
    fn on_day<T>(&self, today: i64, look: impl FnOnce(&mut HashMap<Payer, SpentBudget>) -> T) -> T {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.0 != today {
            *cached = (today, HashMap::new());
            publish_spent(&cached.1);
        }
        look(&mut cached.1)
    }

    /// Marks that a budget was reached: `tokens` are spent with a cost of `at_ms`. Returns whether that is new at
    /// `now_ms`. A cost of an earlier day does not count against today.
    fn mark(&self, payer: Payer, tokens: u64, at_ms: i64, now_ms: i64) -> bool {
        let today = utc_day(now_ms);
        if utc_day(at_ms) != today {
            return false;
        }
        self.on_day(today, |exhausted| {
            let is_new = !exhausted.contains_key(&payer);
            let spent = exhausted.entry(payer).or_insert(SpentBudget {
                since_ms: now_ms,
                tokens,
            });
            spent.tokens = spent.tokens.max(tokens);
            publish_spent(exhausted);
            is_new
        })
    }

    /// Forgets those that have tokens left under these limits.
    fn compare_with(&self, limits: DailyLimits, now_ms: i64) {
        self.on_day(utc_day(now_ms), |exhausted| {
            exhausted.retain(|payer, spent| {
                let limit = match payer {
                    Payer::Account(_) => limits.account,
                    Payer::All => limits.all,
                };
                limit.is_some_and(|limit| spent.tokens >= limit)
            });
            publish_spent(exhausted);
        });
    }
}

/// Tells the metrics which budgets are spent today.
fn publish_spent(budgets: &HashMap<Payer, SpentBudget>) {
    let rest = |spent: &SpentBudget| (spent.since_ms, end_of_day(spent.since_ms));
    resting::publish("budget", budgets.values().map(rest));
}

/// When the UTC day of this time ends. Both in milliseconds since 1970.
fn end_of_day(at_ms: i64) -> i64 {
    at_ms - at_ms.rem_euclid(DAY_MS) + DAY_MS
}

/// The most owners with unbilled costs. With one more, all others are forgotten.
const MAX_OWNERS: usize = 256;

/// The most separate costs of one owner. Later ones are added to the last of their kind: the sum
/// must be right, while the conversation of each cost only matters to a person who reads the list.
const MAX_COSTS_PER_OWNER: usize = 64;

/// The last link of the request, the cost, and its time.
type UnbilledCost = (Link, Cost, i64);

/// Costs that the store does not have yet.
#[derive(Debug, Default)]
struct UnbilledCosts(Mutex<HashMap<Scope, Vec<UnbilledCost>>>);

impl UnbilledCosts {
    fn lock(&self) -> MutexGuard<'_, HashMap<Scope, Vec<UnbilledCost>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a cost. Returns the unbilled tokens since the UTC day of `at_ms` began; `same_account` says
    /// which owners have the account of `scope`.
    fn add(
        &self,
        scope: &Scope,
        (tip, cost, at_ms): UnbilledCost,
        same_account: impl Fn(&Scope) -> bool,
    ) -> Spent {
        let mut costs = self.lock();
        if costs.len() >= MAX_OWNERS && !costs.contains_key(scope) {
            costs.clear();
        }
        push_or_merge(costs.entry(scope.clone()).or_default(), (tip, cost, at_ms));
        let mut spent = Spent::default();
        for (owner, costs) in costs.iter() {
            let today = costs
                .iter()
                .filter(|(_, _, then)| utc_day(*then) == utc_day(at_ms));
            let tokens = today.fold(0_u64, |sum, (_, cost, _)| {
                sum.saturating_add(cost.prompt_tokens)
                    .saturating_add(cost.completion_tokens)
            });
            spent.all = spent.all.saturating_add(tokens);
            if same_account(owner) {
                spent.account = spent.account.saturating_add(tokens);
            }
        }
        spent
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
        // The oldest cost goes if it is of another day, which no budget asks for any more. So at most one of each kind is
        // kept beyond the bound.
        let oldest = costs.first();
        let is_over = oldest.is_some_and(|(_, _, then)| utc_day(*then) != utc_day(*at_ms));
        costs.drain(..usize::from(full && is_over));
        costs.push(new);
    }
}

/// The cost of memory's model calls: which budgets are spent, and what is not billed yet.
pub(super) struct Budget {
    base: Base,
    exhausted: SpentBudgets,
    unbilled: UnbilledCosts,
}

impl Budget {
    pub(super) fn new(base: &Base) -> Self {
        Self {
            base: base.clone(),
            exhausted: SpentBudgets::default(),
            unbilled: UnbilledCosts::default(),
        }
    }

    /// Bills the costs that waited until a request of `scope` was recorded, or until the store took them. At the first
    /// that the store refuses, the rest goes on waiting: each try may take as long as a write waits for a lock.
    pub(super) async fn bill_pending(&self, scope: &Scope) {
        let unbilled = self.unbilled.lock().remove(scope);
        let mut unbilled = unbilled.into_iter().flatten();
        while let Some((tip, cost, at_ms)) = unbilled.next() {
            if !self.bill(scope, tip, cost, at_ms).await {
                // They count against the budgets already.
                for cost in unbilled {
                    self.unbilled.add(scope, cost, |_| false);
                }
                return;
            }
        }
    }

    /// Whether a call may be made for `scope`.
    ///
    /// # Errors
    /// If the budget of its account, or that of all, is spent, with the time until the next UTC day.
    pub(super) fn admit(&self, scope: &Scope) -> Result<(), CallError> {
        let now = self.base.now_ms();
        let Some((_, until)) = self.spent(&scope.tenant, now) else {
            return Ok(());
        };
        let left = u64::try_from(until - now).unwrap_or_default();
        Err(CallError::NotMade {
            retry_after: Duration::from_millis(left),
            message: "the tokens that memory may cost today are spent".to_owned(),
        })
    }

    /// Since when the budget of the account of `tenant`, or that of all, is spent, and until when: the next UTC day.
    pub(super) fn rest(&self, tenant: &[u8; 32]) -> Option<Rest> {
        let (since, until) = self.spent(tenant, self.base.now_ms())?;
        Rest::from_millis(since, until)
    }

    /// Other limits may be in force: what is spent under a lower one may not be spent under them.
    pub(super) fn limits_changed(&self) {
        self.exhausted
            .compare_with(self.base.settings().daily, self.base.now_ms());
    }

    /// Forgets the budgets of a day that is over.
    pub(super) fn expire(&self) {
        self.exhausted.on_day(utc_day(self.base.now_ms()), |_| ());
    }

    fn spent(&self, tenant: &[u8; 32], now: i64) -> Option<(i64, i64)> {
        let limits = self.base.settings().daily;
        if !limits.any() {
            return None;
        }
        let account = Payer::Account(self.base.accounts.account_of(tenant));
        let since = self.exhausted.on_day(utc_day(now), |spent| {
            let account = limits.account.and_then(|_| spent.get(&account));
            let all = limits.all.and_then(|_| spent.get(&Payer::All));
            account.into_iter().chain(all).map(|it| it.since_ms).min()
        })?;
        Some((since, end_of_day(now)))
    }

    /// Records the cost of a call: the usage that the endpoint reported, or our own count if it
    /// reported none. A failed call costs nothing, unless it reports usage or a model worked on it.
    pub(super) async fn record_cost(
        &self,
        job: &Job,
        prompt: &Prompt,
        answer: &Result<Reply, FailedCall>,
    ) {
        let (reported, text) = match answer {
            Ok(reply) => (reply.usage.tokens, reply.text.as_str()),
            Err(failed) => match &failed.usage {
                Some(usage) => (usage.tokens, ""),
                None if failed.error.is_billed() => (ReportedUsage::default().tokens, ""),
                None => return,
            },
        };
        let mut guessed = 0;
        let sent = match reported.prompt {
            Some(tokens) => tokens,
            None => {
                self.estimate_tokens(&[&prompt.system, &prompt.user], &mut guessed)
                    .await
            }
        };
        let written = match reported.completion {
            Some(tokens) => tokens,
            None => self.estimate_tokens(&[text], &mut guessed).await,
        };
        let cost = Cost {
            kind: job.spec.kind,
            prompt_tokens: sent,
            cached_tokens: reported.cached.unwrap_or_default(),
            completion_tokens: written,
            estimated_tokens: guessed,
        };
        emit_metrics(&cost);
        let now = self.base.now_ms();
        let (scope, tip) = (&job.scope, job.spec.tip);
        if job.is_queued() {
            self.bill(scope, tip, cost, now).await;
        } else {
            self.keep(scope, (tip, cost, now)).await;
        }
    }

    /// Keeps a cost that cannot be stored now. It counts against the budgets all the same.
    async fn keep(&self, scope: &Scope, cost: UnbilledCost) {
        let at_ms = cost.2;
        let account_of = |owner: &Scope| self.base.accounts.account_of(&owner.tenant);
        let account = account_of(scope);
        let same_account = |owner: &Scope| account_of(owner) == account;
        let unbilled = self.unbilled.add(scope, cost, same_account);
        let billed = self.billed_today(scope, at_ms).await;
        let total = Spent {
            account: unbilled.account.saturating_add(billed.account),
            all: unbilled.all.saturating_add(billed.all),
        };
        self.check(scope, total, at_ms);
    }

    /// Tokens that the store has billed today; 0 if no budget is configured.
    async fn billed_today(&self, scope: &Scope, now: i64) -> Spent {
        if !self.base.settings().daily.any() {
            return Spent::default();
        }
        let total = self.base.store.spent_tokens(scope, now).await;
        total.unwrap_or_else(|error| {
            if !error.is_logged() {
                tracing::warn!(%error, "the tokens that were spent today could not be read");
            }
            Spent::default()
        })
    }

    /// Stores a cost, or keeps it if the store refuses it. Returns whether it is stored.
    async fn bill(&self, scope: &Scope, tip: Link, cost: Cost, at_ms: i64) -> bool {
        match self.base.store.record_cost(scope, tip, cost, at_ms).await {
            Ok(total) => {
                self.check(scope, total, at_ms);
                true
            }
            Err(error) => {
                metrics::counter!(telemetry::STORE_FAILURES).increment(1);
                if !error.is_logged() {
                    tracing::warn!(%error, "the cost of a model call could not be stored: it is kept");
                }
                self.keep(scope, (tip, cost, at_ms)).await;
                false
            }
        }
    }

    async fn estimate_tokens(&self, texts: &[&str], guessed: &mut u64) -> u64 {
        let mut tokens = 0;
        for text in texts.iter().filter(|text| !text.is_empty()) {
            tokens += u64::from(self.base.count_tokens(text).await);
        }
        *guessed += tokens;
        tokens
    }

    /// Compares what was spent on the day of `at_ms` with the budgets, and warns the first time that one is
    /// reached.
    fn check(&self, scope: &Scope, spent: Spent, at_ms: i64) {
        let limits = self.base.settings().daily;
        let account = self.base.accounts.account_of(&scope.tenant);
        if self.is_newly_spent(
            Payer::Account(account),
            spent.account,
            limits.account,
            at_ms,
        ) {
            tracing::warn!(
                account = Scope::format_tenant_label(&account),
                spent = spent.account,
                daily_tokens = limits.account,
                "the tokens that memory may cost this account today are spent: its jobs wait until \
                 tomorrow (UTC). Requests are not affected"
            );
        }
        if self.is_newly_spent(Payer::All, spent.all, limits.all, at_ms) {
            tracing::warn!(
                spent = spent.all,
                daily_tokens_total = limits.all,
                "the tokens that memory may cost today, for all accounts, are spent: all jobs wait until \
                 tomorrow (UTC). Requests are not affected"
            );
        }
    }

    fn is_newly_spent(&self, payer: Payer, spent: u64, limit: Option<u64>, at_ms: i64) -> bool {
        let reached = limit.is_some_and(|budget| spent >= budget)
            && self.exhausted.mark(payer, spent, at_ms, self.base.now_ms());
        if reached {
            metrics::counter!(telemetry::BUDGETS_SPENT).increment(1);
        }
        reached
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

    /// Unbilled costs are billed when the owner's next request is recorded, possibly after
    /// midnight.
    #[test]
    fn a_budget_spent_yesterday_is_not_exhausted_today() {
        let cache = SpentBudgets::default();
        let (yesterday, today) = (DAY_MS - 1, DAY_MS + 1);
        let is_exhausted =
            |payer| cache.on_day(utc_day(today), |exhausted| exhausted.contains_key(&payer));
        let account = Payer::Account([1; 32]);
        assert!(cache.mark(account, 10, today, today));
        assert!(!cache.mark(account, 11, today, today), "no news");
        assert!(!cache.mark(Payer::All, 10, yesterday, today));
        assert!(
            is_exhausted(account),
            "what is known of today is not forgotten"
        );
        assert!(!is_exhausted(Payer::All));
    }

    #[test]
    fn a_raised_budget_is_no_longer_exhausted() {
        let (cache, now) = (SpentBudgets::default(), DAY_MS + 1);
        let account = Payer::Account([1; 32]);
        let marked = || cache.on_day(utc_day(now), |spent| spent.contains_key(&account));
        let limits = |account| DailyLimits {
            account: Some(account),
            all: None,
        };
        assert!(cache.mark(account, 10, now, now));
        assert!(!cache.mark(account, 12, now, now));
        cache.compare_with(limits(12), now);
        assert!(marked(), "it is spent under this limit, too");
        cache.compare_with(limits(13), now);
        assert!(!marked());
        assert!(cache.mark(account, 13, now, now), "spent again");
    }

    #[test]
    fn unbilled_costs_of_an_owner_are_bounded_without_losing_tokens_of_today() {
        let (unbilled, scope) = (UnbilledCosts::default(), Scope::new(b"tenant", None));
        let tip = Link::root(&scope);
        let calls = 10 * u64::try_from(MAX_COSTS_PER_OWNER).expect("small");
        let mut total = 0;
        let own = |owner: &Scope| *owner == scope;
        for _ in 0..calls {
            total = unbilled.add(&scope, (tip, cost(10), 0), own).account;
        }
        assert_eq!(total, 11 * calls);
        assert_eq!(unbilled.lock()[&scope].len(), MAX_COSTS_PER_OWNER);
        // Costs of yesterday do not count, and give way if there are too many.
        for more in 1..=calls {
            let spent = unbilled.add(&scope, (tip, cost(10), DAY_MS), own);
            assert_eq!(spent.account, 11 * more);
        }
        assert_eq!(unbilled.lock()[&scope].len(), MAX_COSTS_PER_OWNER);
        let other = Scope::new(b"other", None);
        let spent = unbilled.add(&other, (tip, cost(1), DAY_MS), |owner| *owner == other);
        assert_eq!((spent.account, spent.all), (2, 2 + 11 * calls));
    }
    #[test]
    fn costs_of_two_kinds_on_one_day_are_both_kept() {
        let (unbilled, scope) = (UnbilledCosts::default(), Scope::new(b"tenant", None));
        let tip = Link::root(&scope);
        let add = |cost| unbilled.add(&scope, (tip, cost, 0), |_| true).all;
        let all = u64::try_from(MAX_COSTS_PER_OWNER).expect("small");
        for _ in 0..all {
            add(cost(10));
        }
        let reflection = Cost {
            kind: PartKind::Reflection,
            ..cost(10)
        };
        assert_eq!(add(reflection), 11 * (all + 1));
        assert_eq!(add(reflection), 11 * (all + 2));
        assert_eq!(unbilled.lock()[&scope].len(), MAX_COSTS_PER_OWNER + 1);
        let next_day = unbilled.add(&scope, (tip, cost(10), DAY_MS), |_| true);
        assert_eq!(next_day.all, 11);
        assert_eq!(unbilled.lock()[&scope].len(), MAX_COSTS_PER_OWNER + 1);
    }
}
