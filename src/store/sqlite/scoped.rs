//! Statements that belong to one owner.
//!
//! Each such statement names the tenant as `$1` and the resource as `$2` (INV-OWN). The functions here
//! bind both, so a caller binds only what comes after them.

use sqlx::query::{Query, QueryScalar};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{FromRow, Sqlite};

use crate::history::Scope;
use crate::store::StoreResult;

/// A statement for the owner `scope`; the caller binds from `$3` on.
pub(super) fn scoped_query<'q>(
    statement: &'static str,
    scope: &'q Scope,
) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(statement)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
}

/// As [`scoped_query`], for a statement that returns one column.
pub(super) fn scoped_scalar<'q, T>(
    statement: &'static str,
    scope: &'q Scope,
) -> QueryScalar<'q, Sqlite, T, SqliteArguments>
where
    (T,): for<'r> FromRow<'r, SqliteRow>,
{
    sqlx::query_scalar(statement)
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
}

/// All rows of a statement about one lineage (`$3`).
pub(super) async fn lineage_rows(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<Vec<SqliteRow>> {
    let rows = scoped_query(statement, scope).bind(lineage);
    Ok(rows.fetch_all(conn).await?)
}
