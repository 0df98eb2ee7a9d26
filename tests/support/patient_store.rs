//! A store and its cache whose reads may take long. On a busy machine some do, and what a test sees must
//! not depend on that; what the product does then has tests of its own.

use std::sync::Arc;
use std::time::Duration;

use diarist::lookup::SnapshotCache;
use diarist::store::{SqliteStore, Store};

/// Far beyond anything but a hang. A process that could not give its jobs back when it ended leaves them leased for a minute,
/// and a busy machine needs its time after that.
pub const PATIENCE: Duration = Duration::from_mins(3);

pub async fn open(url: &str) -> SqliteStore {
    SqliteStore::open_with(url, PATIENCE)
        .await
        .expect("the database opens")
}

pub fn cache(store: &Arc<dyn Store>) -> Arc<SnapshotCache> {
    Arc::new(SnapshotCache::new(Arc::clone(store)).with_read_timeout(PATIENCE))
}
