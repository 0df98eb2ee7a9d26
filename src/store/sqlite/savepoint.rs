//! The savepoint of one request, or of several that are written together, in the transaction of a batch. Called by
//! [`super::record_batch`] and [`super::record_group`].

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use crate::store::{StoreError, StoreResult};

pub(super) const SAVEPOINT: &str = "SAVEPOINT request;";
pub(super) const RELEASE: &str = "RELEASE request;";
const ROLLBACK_TO: &str = "ROLLBACK TO request;";

/// Runs `work` under a savepoint, and goes back to it if that fails.
///
/// # Errors
/// The transaction cannot go on.
pub(super) async fn under_savepoint<T>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> StoreResult<T>,
) -> StoreResult<StoreResult<T>> {
    query(SAVEPOINT).execute(&mut *conn).await?;
    match work(&mut *conn).await {
        Ok(done) => {
            query(RELEASE).execute(conn).await?;
            Ok(Ok(done))
        }
        Err(error) => Ok(Err(roll_back(conn, error).await?)),
    }
}

/// Goes back to the savepoint after `error`, which it returns.
///
/// # Errors
/// The same error. After a full disk or an I/O error SQLite has ended the whole transaction by itself. Then there is
/// nothing to go back to, and what was written before the savepoint is gone too.
pub(super) async fn roll_back(
    conn: &mut SqliteConnection,
    error: StoreError,
) -> StoreResult<StoreError> {
    if query(ROLLBACK_TO).execute(&mut *conn).await.is_err() {
        return Err(error);
    }
    query(RELEASE).execute(conn).await?;
    Ok(error)
}
