//! Keeps each account within its quota of bytes (`store.max_account_bytes`). Called by [`super::housekeeping`].
//!
//! Decides how much is deleted, and of whom; the store decides the order and deletes. An account that holds too much
//! loses its longest silent conversations until a tenth of the quota is free, so that not every round deletes.
//! Conversations in use are only deleted as far as the account is still above its quota without it. Leaves no
//! tombstones, and never counts on the way of a request.

use std::collections::HashMap;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::store::{Quota as _, SilentThread, SqliteStore, StoreResult, Tenants as _};
use crate::telemetry;

/// A conversation is in use for so long after its last request.
const IN_USE_MS: i64 = 60 * 60 * 1_000;

/// Conversations of one account that are read at one time.
const THREADS_READ: u32 = 1_000;

/// The most of them that one transaction deletes.
const THREADS_AT_ONCE: usize = 20;

/// The quota of every account.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccountQuota {
    pub(super) max_bytes: i64,
}

/// What one round has deleted.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    accounts: u64,
    threads: u64,
    in_use: u64,
    bytes: i64,
}

impl AccountQuota {
    /// `None` without a limit.
    pub(super) fn new(max_bytes: Option<u64>) -> Option<Self> {
        let max_bytes = i64::try_from(max_bytes?).unwrap_or(i64::MAX);
        Some(Self { max_bytes })
    }

    /// Deletes what is too much, and logs it. Adds the conversations to `deleted`, also before an error.
    pub(super) async fn enforce(
        self,
        store: &SqliteStore,
        stop: &CancellationToken,
        deleted: &mut u64,
    ) -> StoreResult<()> {
        let mut round = Round::default();
        let result = self.delete(store, stop, &mut round).await;
        *deleted += round.threads;
        self.report(round);
        result
    }

    async fn delete(
        self,
        store: &SqliteStore,
        stop: &CancellationToken,
        round: &mut Round,
    ) -> StoreResult<()> {
        let held = store.bytes_of_tenants().await?;
        let mut payers = HashMap::new();
        for member in store.tenant_accounts().await? {
            payers.insert(member.tenant, member.account);
        }
        let mut accounts: HashMap<[u8; 32], (i64, Vec<[u8; 32]>)> = HashMap::new();
        for (tenant, bytes) in held {
            // A tenant without an account of its own pays for itself.
            let account = payers.get(&tenant).copied().unwrap_or(tenant);
            let (sum, tenants) = accounts.entry(account).or_default();
            *sum += bytes;
            tenants.push(tenant);
        }
        for (sum, tenants) in accounts.into_values() {
            if sum > self.max_bytes {
                let before = round.threads;
                let result = self.delete_some(store, stop, (sum, &tenants), round).await;
                round.accounts += u64::from(round.threads > before);
                result?;
            }
        }
        Ok(())
    }

    /// Deletes conversations of an account with these tenants, which hold `held` bytes.
    async fn delete_some(
        self,
        store: &SqliteStore,
        stop: &CancellationToken,
        (mut held, tenants): (i64, &[[u8; 32]]),
        round: &mut Round,
    ) -> StoreResult<()> {
        loop {
            let threads = longest_silent(store, tenants).await?;
            let silent = threads.partition_point(|thread| !thread.in_use);
            let (silent, in_use) = threads.split_at(silent);
            let room = self.max_bytes - self.max_bytes / 10;
            let mut some = 0;
            for (mut list, target) in [(silent, room), (in_use, self.max_bytes)] {
                while held > target && !list.is_empty() && !stop.is_cancelled() {
                    let next = list[..list.len().min(THREADS_AT_ONCE)].to_vec();
                    let done = store.delete_silent(next, held - target).await?;
                    list = &list[done.handled..];
                    held -= done.bytes;
                    some += done.threads;
                    round.threads += done.threads;
                    round.bytes += done.bytes;
                    if target == self.max_bytes {
                        round.in_use += done.threads;
                    }
                }
                if !list.is_empty() {
                    // Enough is deleted, or the server stops.
                    return Ok(());
                }
            }
            // All that were read are deleted or in use again. Without a deletion, another look finds the same.
            if some == 0 {
                return Ok(());
            }
        }
    }

    fn report(self, round: Round) {
        let Round {
            accounts,
            threads,
            in_use,
            bytes,
        } = round;
        if threads == 0 {
            return;
        }
        metrics::counter!(telemetry::QUOTA_DELETED).increment(threads);
        let max_bytes = self.max_bytes;
        tracing::warn!(
            threads,
            in_use,
            bytes,
            accounts,
            max_bytes,
            "{threads} conversations ({bytes} bytes) of {accounts} accounts were deleted, the longest silent first, \
             because each of these accounts held more than store.max_account_bytes = {max_bytes}; raise it to keep \
             more. {in_use} of them were in use"
        );
    }
}

/// Conversations of an account with these tenants, in the order of [`crate::store::Quota::longest_silent`].
async fn longest_silent(
    store: &SqliteStore,
    tenants: &[[u8; 32]],
) -> StoreResult<Vec<SilentThread>> {
    let now_ms = Timestamp::now().as_millisecond();
    let times = (now_ms - IN_USE_MS, now_ms);
    let mut threads = Vec::new();
    for tenant in tenants {
        threads.extend(store.longest_silent(*tenant, times, THREADS_READ).await?);
        // An account may have many tenants: what is far behind is dropped at once.
        threads.sort_by_key(|thread| (thread.in_use, thread.last_ms));
        threads.truncate(THREADS_READ as usize);
    }
    Ok(threads)
}
