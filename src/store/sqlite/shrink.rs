//! Makes the file smaller and empties its journal. Deleted text is overwritten in the database, but the journal
//! still has older pages until it is emptied. Called while nobody writes, and after something was deleted.

use sqlx::query;
use sqlx::sqlite::SqliteConnection;

use crate::store::StoreResult;
use crate::store::rows::get;

const FREE_PAGES: &str = "PRAGMA freelist_count";

const ALL_PAGES: &str = "PRAGMA page_count";

/// Gives free pages back, so many that others wait for some ten milliseconds. Does nothing in a database that was made
/// without `auto_vacuum`.
const GIVE_BACK_SOME: &str = "PRAGMA incremental_vacuum(1000)";

/// Copies the journal into the database and makes it empty. Waits for readers that need it.
const EMPTY_JOURNAL: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// Copies the journal into the database, as far as no reader needs the old pages. Waits for nobody.
const COPY_JOURNAL: &str = "PRAGMA wal_checkpoint(PASSIVE)";

const WAIT_FOR_NOBODY: &str = "PRAGMA busy_timeout = 0";

/// As `BUSY_TIMEOUT` of [`super::open`].
const WAIT_AGAIN: &str = "PRAGMA busy_timeout = 5000";

/// Free pages below this share of the file are kept: they are soon needed again.
const KEPT_SHARE: i64 = 4;

/// Free pages below this number are kept: 4 MiB.
const KEPT_PAGES: i64 = 1_024;

/// As [`give_back_some`], unless the free pages are few.
async fn give_back_of_many(conn: &mut SqliteConnection) -> StoreResult<bool> {
    let free: i64 = sqlx::query_scalar(FREE_PAGES).fetch_one(&mut *conn).await?;
    let all: i64 = sqlx::query_scalar(ALL_PAGES).fetch_one(&mut *conn).await?;
    if free < KEPT_PAGES || free < all / KEPT_SHARE {
        return Ok(false);
    }
    give_back_some(conn).await
}

/// Gives some free pages back to the file system. Returns whether there are more.
pub(super) async fn give_back_some(conn: &mut SqliteConnection) -> StoreResult<bool> {
    let free: i64 = sqlx::query_scalar(FREE_PAGES).fetch_one(&mut *conn).await?;
    query(GIVE_BACK_SOME).execute(&mut *conn).await?;
    let left: i64 = sqlx::query_scalar(FREE_PAGES).fetch_one(conn).await?;
    // In a database without `auto_vacuum`, as many are left.
    Ok(left > 0 && left < free)
}

/// Empties the journal. Returns whether it is empty.
pub(super) async fn empty_journal(conn: &mut SqliteConnection) -> StoreResult<bool> {
    let row = query(EMPTY_JOURNAL).fetch_one(conn).await?;
    Ok(get::<i64>(&row, 0)? == 0)
}

/// Copies the journal into the database. Returns whether all of it is copied: then the next commit begins the journal anew.
pub(super) async fn copy_journal(conn: &mut SqliteConnection) -> StoreResult<bool> {
    let row = query(COPY_JOURNAL).fetch_one(conn).await?;
    Ok(get::<i64>(&row, 1)? == get::<i64>(&row, 2)?)
}

/// Copies the journal, gives free pages back if they are many, then empties the journal. For pauses between writes: waits for nobody, and
/// takes some ten milliseconds. Returns whether there is nothing more to do.
pub(super) async fn tidy(conn: &mut SqliteConnection) -> StoreResult<bool> {
    // First, since on a full disk nothing can be given back before.
    if !copy_journal(&mut *conn).await? {
        return Ok(false);
    }
    if give_back_of_many(&mut *conn).await? {
        return Ok(false);
    }
    query(WAIT_FOR_NOBODY).execute(&mut *conn).await?;
    let emptied = empty_journal(&mut *conn).await;
    query(WAIT_AGAIN).execute(conn).await?;
    emptied
}
