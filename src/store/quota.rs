//! What the quota of an account (`store.max_account_bytes`) needs from the store: sums of bytes, and the deletion of
//! the longest silent conversations. Values and the trait only; each backend implements it.
//!
//! The deletion leaves no tombstone, unlike an operator's: a conversation that goes on begins anew. Only the
//! housekeeping of the server calls these verbs; no request waits for them.

use async_trait::async_trait;

use super::StoreResult;
use crate::history::Scope;

/// Sums what tenants hold, and deletes what is too much.
#[async_trait]
pub trait Quota: Send + Sync {
    /// The bytes that each tenant holds. Reads the whole database, one table after the other. What is written
    /// meanwhile counts or not.
    async fn bytes_of_tenants(&self) -> StoreResult<Vec<([u8; 32], i64)>>;

    /// The conversations of a tenant, at most `limit`, in the order in which they are to be deleted: the longest
    /// silent first. Those with a request since `used_since_ms`, or with a running job at `now_ms`, are last.
    async fn longest_silent(
        &self,
        tenant: [u8; 32],
        (used_since_ms, now_ms): (i64, i64),
        limit: u32,
    ) -> StoreResult<Vec<SilentThread>>;

    /// Deletes the first of `threads`, in one short transaction, and leaves no tombstone. Ends when `bytes` are free,
    /// when so much is deleted that others should write before the next call, or with the last of `threads`. A
    /// conversation that has had a request since it was read stays.
    async fn delete_silent(
        &self,
        threads: Vec<SilentThread>,
        bytes: i64,
    ) -> StoreResult<QuotaDeletion>;
}

/// A conversation that a quota may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentThread {
    pub lineage: i64,
    pub scope: Scope,
    /// When its last request came.
    pub last_ms: i64,
    /// Whether it has had a request lately, or has a running job.
    pub in_use: bool,
}

/// What one transaction has done with a list of conversations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaDeletion {
    /// How many are deleted.
    pub threads: u64,
    /// How many bytes they held.
    pub bytes: i64,
    /// How many of the list are done with: deleted, or in use again.
    pub handled: usize,
}
