//! Verbs of the store in the form in which tests need them: one request at a time, looked up by its chain alone.

use super::{Candidates, Chains, LookupKeys, RequestRecord, StoreError, StoreResult};
use crate::history::{Link, Scope};

/// What the recorder does for a batch and the request path with more keys, for a single request.
pub trait SingleRequest: Chains {
    /// Records a request as a batch of one, and returns its lineage.
    fn record(
        &self,
        scope: &Scope,
        record: &RequestRecord,
    ) -> impl Future<Output = StoreResult<i64>> + Send {
        async move {
            let batch = vec![(scope.clone(), record.clone())];
            let recorded = self.record_batch(batch).await?.pop();
            recorded.map_or(Err(StoreError::Forgotten), |only| Ok(only?.lineage))
        }
    }

    /// What is found by the chain alone.
    fn find_on_chain(
        &self,
        scope: &Scope,
        chain: &[Link],
    ) -> impl Future<Output = StoreResult<Candidates>> + Send {
        async move {
            self.find_candidates(scope, chain, &LookupKeys::default())
                .await
        }
    }
}

impl<T: Chains + ?Sized> SingleRequest for T {}
