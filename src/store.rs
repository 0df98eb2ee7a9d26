//! Durable memory behind domain verbs. SQL stays inside this module.
//!
//! Every verb names the owner ([`Scope`](crate::history::Scope)), except the operator's lists and the
//! workers' claims. The owner is the first part of every key and of every WHERE (INV-OWN). Rows never
//! change, except `confirmed` of a link, the state of a job, and counters. `proxy` calls the verbs that
//! find and read, `jobs` the others, the command line the operator's.

mod admin;
pub mod aliases;
mod audit_lines;
mod chains;
mod error;
mod forgotten;
mod operator_request;
mod pepper_file;
mod queue;
mod quota;
mod rows;
mod seen_messages;
mod snapshots;
mod sqlite;
mod tenant_accounts;
mod tenants;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;

pub use admin::{
    Admin, Event, LongestChain, MAX_EVENTS_PER_KIND, ThreadDetail, ThreadRow, WaitingRanges,
};
pub use aliases::{AddAliasOutcome, Alias, Aliases, TenantRow};
pub use audit_lines::{AuditLines, AuditPage, AuditRequest, NewAuditLine, StoredTokenRatio};
pub use chains::{
    Candidates, Chains, LARGE_REQUEST, LookupEntries, LookupKeys, MessageMarks,
    NewOverflowObservation, PrefixTrim, RecordedChain, RecordedRequest, RequestRecord, SentPrefix,
    SentWith, SharedContent, StoredOverflowObservation,
};
pub use error::{StoreError, StoreResult};
pub use forgotten::{
    ForgetTarget, Forgetting, ImportOutcome, Receipt, TombstoneVersion, Tombstones,
};
pub use operator_request::OperatorRequest;
pub use pepper_file::{KeptPepper, PepperError, PepperPlace};
pub use queue::{
    ClaimFilter, EnqueueOutcome, Job, NewJob, Queue, Release, RequestedJobOutcome, RequeuedJobs,
    Urgency,
};
pub use quota::{Quota, QuotaDeletion, SilentThread};
pub use seen_messages::{DROPPED_TENANTS, SeenMessages, SeenMessagesStore, fitting_rows};
pub use snapshots::{EarlierLog, LogBounds, NewSnapshot, Snapshots};
pub use sqlite::{OpenError, SqliteStore};
pub use tenant_accounts::{TenantAccount, TenantAccounts};
pub use tenants::{
    CallTotals, Cost, DailyLimits, LIVE_MS, LineageCosts, SHARED_KEY_THRESHOLD, Spent,
    TenantBacklog, Tenants, utc_day,
};
pub use timer::{Alarms, NewTimer, Timer};

/// A whole store, in five parts. Every type that implements the parts is one.
pub trait Store: Chains + Queue + Snapshots + Admin + Tenants + std::fmt::Debug {}

impl<T> Store for T where T: Chains + Queue + Snapshots + Admin + Tenants + std::fmt::Debug {}
