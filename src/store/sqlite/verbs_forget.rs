//! The verbs of forgetting, expiry, quotas and shrinking. Like [`super::verbs`], it says which function each one runs.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::forget::Counts;
use super::held_tombstones::HeldTombstones;
use super::{SqliteStore, expiry, forgotten, quota, shrink, thread_export};
use crate::store::{
    ForgetTarget, Forgetting, ImportOutcome, Quota, QuotaDeletion, Receipt, SilentThread,
    StoreError, StoreResult, TombstoneVersion, Tombstones,
};

#[async_trait]
impl Forgetting for SqliteStore {
    async fn forget_target(
        &self,
        target: &ForgetTarget,
        at_ms: i64,
    ) -> StoreResult<Option<Receipt>> {
        let receipt = match *target {
            ForgetTarget::Thread(lineage) => {
                let pepper = self.pepper;
                let forgotten = self.write("store forgotten::forget_thread", move |conn| {
                    Box::pin(async move {
                        forgotten::forget_thread(conn, lineage, at_ms, &pepper).await
                    })
                });
                match forgotten.await? {
                    Some(receipt) => receipt,
                    None => return Ok(None),
                }
            }
            ForgetTarget::Owner { tenant, resource } => {
                self.forget_owner((tenant, resource), at_ms).await?
            }
        };
        self.refresh_tombstones().await?;
        let receipts = self.receipts().await?;
        Ok(receipts.into_iter().find(|found| found.id == receipt))
    }

    async fn owners_of_resources(
        &self,
        resources: &[[u8; 32]],
    ) -> StoreResult<Vec<([u8; 32], [u8; 32])>> {
        let resources = resources.to_vec();
        self.read("store forgotten::owners_of_resources", move |conn| {
            Box::pin(forgotten::owners_of_resources(conn, resources))
        })
        .await
    }

    async fn lift(&self, receipt: i64, at_ms: i64) -> StoreResult<bool> {
        let lifted = self.write("store forgotten::lift", move |conn| {
            Box::pin(forgotten::lift(conn, receipt, at_ms))
        });
        let lifted = lifted.await?;
        self.refresh_tombstones().await?;
        Ok(lifted)
    }

    async fn receipts(&self) -> StoreResult<Vec<Receipt>> {
        self.read("store forgotten::receipts", |conn| {
            Box::pin(forgotten::receipts(conn))
        })
        .await
    }

    async fn mark_audited(&self, receipt: i64) -> StoreResult<()> {
        self.write("store forgotten::mark_audited", move |conn| {
            Box::pin(forgotten::mark_audited(conn, receipt))
        })
        .await
    }

    async fn refresh_tombstones(&self) -> StoreResult<TombstoneVersion> {
        let held = Arc::clone(&self.held_tombstones);
        self.read("store tombstones", move |conn| {
            Box::pin(async move { held.refresh(conn).await })
        })
        .await
    }

    fn tombstones(&self) -> Tombstones {
        self.held_tombstones.tombstones.clone()
    }

    async fn save_tombstones(&self) -> StoreResult<()> {
        let tombstones = self.tombstones();
        let unsaved = tombstones.unsaved();
        if unsaved.is_empty() {
            return Ok(());
        }
        let stored = unsaved.iter().copied().collect();
        self.write("store tombstones", move |conn| {
            let unsaved = unsaved.clone();
            Box::pin(async move { forgotten::add_tombstones(conn, &unsaved).await })
        })
        .await?;
        tombstones.set_saved(&stored);
        Ok(())
    }

    async fn last_use_ms(&self) -> StoreResult<Option<i64>> {
        self.read("store expiry::last_use_ms", |conn| {
            Box::pin(expiry::last_use_ms(conn))
        })
        .await
    }

    async fn expire_threads(&self, before_ms: i64, limit: u32) -> StoreResult<u64> {
        self.write("store expiry::expire_threads", move |conn| {
            Box::pin(expiry::expire_threads(conn, before_ms, limit))
        })
        .await
    }

    async fn expire_jobs(&self, before_ms: i64, now_ms: i64, limit: u32) -> StoreResult<u64> {
        self.write("store expiry::expire_jobs", move |conn| {
            Box::pin(expiry::expire_jobs(conn, before_ms, now_ms, limit))
        })
        .await
    }

    async fn export_thread(&self, lineage: i64) -> StoreResult<Option<Value>> {
        self.read("store thread_export::export", move |conn| {
            Box::pin(thread_export::export(conn, lineage))
        })
        .await
    }

    async fn import_thread(&self, file: Value) -> StoreResult<ImportOutcome> {
        let pepper = self.pepper;
        self.write("store thread_export::import", move |conn| {
            Box::pin(async move {
                let held = HeldTombstones::new(pepper);
                held.refresh(conn).await?;
                thread_export::import(conn, &file, &held.tombstones).await
            })
        })
        .await
    }

    async fn shrink(&self) -> StoreResult<bool> {
        let database = self.connection.database()?;
        let writer = database.writer.clone();
        let shrunk = async {
            // Between two slices, others write.
            loop {
                let mut conn = writer.acquire().await.map_err(StoreError::from)?;
                if !shrink::give_back_some(&mut conn).await? {
                    break;
                }
            }
            let mut conn = writer.acquire().await.map_err(StoreError::from)?;
            shrink::empty_journal(&mut conn).await
        };
        let shrunk = shrunk.await;
        self.connection.check_result(&database, shrunk)
    }
}

#[async_trait]
impl Quota for SqliteStore {
    async fn bytes_of_tenants(&self) -> StoreResult<Vec<([u8; 32], i64)>> {
        let mut held = HashMap::new();
        for sum in quota::SUMS {
            let add = self.read("store quota::add_bytes", move |conn| {
                Box::pin(quota::add_bytes(conn, sum, held))
            });
            held = add.await?;
        }
        Ok(held.into_iter().collect())
    }

    async fn longest_silent(
        &self,
        tenant: [u8; 32],
        times: (i64, i64),
        limit: u32,
    ) -> StoreResult<Vec<SilentThread>> {
        self.read("store quota::longest_silent", move |conn| {
            Box::pin(quota::longest_silent(conn, tenant, times, limit))
        })
        .await
    }

    async fn delete_silent(
        &self,
        threads: Vec<SilentThread>,
        bytes: i64,
    ) -> StoreResult<QuotaDeletion> {
        self.write("store quota::delete_silent", move |conn| {
            Box::pin(async move { quota::delete_silent(conn, &threads, bytes).await })
        })
        .await
    }
}

impl SqliteStore {
    /// Forgets an owner in many short transactions: a server writes between them.
    async fn forget_owner(&self, owner: forgotten::Owner, at_ms: i64) -> StoreResult<i64> {
        let buried = self.write("store forgotten::bury_owner", move |conn| {
            Box::pin(forgotten::bury_owner(conn, owner, at_ms))
        });
        let receipt = buried.await?;
        let mut counts = Counts::new();
        loop {
            let some = self.write("store forgotten::forget_some", move |conn| {
                Box::pin(forgotten::forget_some(conn, (receipt, owner), counts))
            });
            let (sum, all) = some.await?;
            if all {
                return Ok(receipt);
            }
            counts = sum;
        }
    }
}
