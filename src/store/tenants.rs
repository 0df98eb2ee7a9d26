//! Tenants: what memory costs them, which tenant is served as another, and which thread keys stand for
//! too many conversations. Values and the trait only; each backend implements it.

use async_trait::async_trait;

use super::{AddAliasOutcome, Alias, StoreResult, TenantAccount, TenantRow};
use crate::history::{Link, Scope};
use crate::memory::PartKind;

/// Costs, aliases and lists of tenants.
#[async_trait]
pub trait Tenants: Send + Sync {
    /// Adds the cost of a call for the conversation of `tip`. Returns what was spent on that UTC day in all.
    /// Forgetting the conversation does not lower that sum.
    async fn record_cost(
        &self,
        scope: &Scope,
        tip: Link,
        cost: Cost,
        at_ms: i64,
    ) -> StoreResult<Spent>;

    /// What was spent on the UTC day of `at_ms`.
    async fn spent_tokens(&self, scope: &Scope, at_ms: i64) -> StoreResult<Spent>;

    /// From now on, what a tenant spends counts for this account.
    async fn set_account(&self, member: TenantAccount) -> StoreResult<()>;

    /// The tenants whose account was ever set. All others are their own.
    async fn tenant_accounts(&self) -> StoreResult<Vec<TenantAccount>>;

    /// Tenants with open jobs, and what their accounts spent on the UTC day of `at_ms`.
    async fn tenant_backlogs(&self, at_ms: i64) -> StoreResult<Vec<TenantBacklog>>;

    /// All aliases, the oldest first.
    async fn aliases(&self) -> StoreResult<Vec<Alias>>;

    /// From now on, requests of `name` belong to `tenant`. One transaction checks and stores the alias.
    async fn add_alias(
        &self,
        name: [u8; 32],
        tenant: [u8; 32],
        at_ms: i64,
    ) -> StoreResult<AddAliasOutcome>;

    /// From now on, requests of `name` are its own again. `false` if `name` had no alias.
    async fn remove_alias(&self, name: [u8; 32]) -> StoreResult<bool>;

    /// All tenants with memory.
    async fn tenants(&self) -> StoreResult<Vec<TenantRow>>;

    /// Thread keys of all owners that at least [`SHARED_KEY_THRESHOLD`] conversations have, counting
    /// those that were continued and whose last request came at `since_ms` or later. For a process that
    /// starts, and for the operator.
    async fn shared_thread_keys(&self, since_ms: i64) -> StoreResult<Vec<(Scope, String)>>;
}

/// What one model call of memory cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The kind of part that the call was for.
    pub kind: PartKind,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// How many of these came from the provider's cache.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// How many tokens of the prompt and the answer were estimated, because the endpoint reported none.
    pub estimated_tokens: u64,
}

/// Tokens that memory's model calls cost on one UTC day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// For all tenants of the account.
    pub account: u64,
    /// For all accounts.
    pub all: u64,
}

/// The most tokens that memory's model calls may cost on one UTC day; `None`: any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DailyLimits {
    /// For one account.
    pub account: Option<u64>,
    /// For all accounts.
    pub all: Option<u64>,
}

impl DailyLimits {
    /// Whether there is one.
    #[must_use]
    pub fn any(&self) -> bool {
        self.account.is_some() || self.all.is_some()
    }
}

impl Cost {
    /// Adds another cost of the same kind.
    pub fn merge(&mut self, other: &Self) {
        let sums = [
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.completion_tokens, other.completion_tokens),
            (&mut self.estimated_tokens, other.estimated_tokens),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
    }
}

/// What model calls of one kind cost a lineage. See [`Cost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTotals {
    /// How many calls.
    pub calls: u64,
    /// See [`Cost::prompt_tokens`].
    pub prompt_tokens: u64,
    /// See [`Cost::cached_tokens`].
    pub cached_tokens: u64,
    /// See [`Cost::completion_tokens`].
    pub completion_tokens: u64,
    /// See [`Cost::estimated_tokens`].
    pub estimated_tokens: u64,
}

/// What memory's own model calls cost a lineage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineageCosts {
    /// The Observer's.
    pub observer: CallTotals,
    /// The Reflector's.
    pub reflector: CallTotals,
}

/// A tenant with open jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantBacklog {
    /// Short hash of the tenant.
    pub tenant: String,
    /// Open jobs.
    pub open_jobs: u64,
    /// Tokens that model calls cost its account on the given day.
    pub spent_tokens: u64,
}

/// The UTC day of a time in milliseconds since 1970, counted from 1970-01-01.
#[must_use]
pub fn utc_day(at_ms: i64) -> i64 {
    at_ms.div_euclid(24 * 60 * 60 * 1_000)
}

/// From this many live conversations on, a thread key names none of them. Clients reuse a key for a new
/// conversation now and then; a key that all users of an application share has more at the same time.
pub const SHARED_KEY_THRESHOLD: u32 = 8;

/// A conversation is live for this long after its last request: a week.
pub const LIVE_MS: i64 = 7 * 24 * 60 * 60 * 1_000;
