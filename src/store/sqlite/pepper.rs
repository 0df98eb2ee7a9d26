//! Whether the pepper is the one of the database. The database holds a check value of it, never the pepper.
//!
//! Decides when a database gets its check value: before its first row. A database with rows and without a check
//! value has no pepper, for good. Called when a server opens the database, and by commands that read it.

use std::path::Path;

use sqlx::sqlite::SqliteConnection;

use super::error::OpenError;
use crate::history::Pepper;
use crate::store::StoreResult;
use crate::store::pepper_file::KeptPepper;
use crate::store::rows::hex_text;

const CHECK_VALUE: &str = "SELECT check_value FROM pepper";

/// Whether it holds a hash of a credential.
const HAS_HASHES: &str = "
SELECT EXISTS (SELECT 1 FROM lineages) OR EXISTS (SELECT 1 FROM aliases)
    OR EXISTS (SELECT 1 FROM tombstones) OR EXISTS (SELECT 1 FROM tenant_accounts)";

/// The first pepper stays.
const SET_CHECK_VALUE: &str =
    "INSERT INTO pepper (id, check_value) VALUES (1, $1) ON CONFLICT (id) DO NOTHING";

/// The check value of the database in hexadecimal, if it has a pepper.
pub(super) async fn check_value(conn: &mut SqliteConnection) -> StoreResult<Option<String>> {
    let value: Option<Vec<u8>> = sqlx::query_scalar(CHECK_VALUE).fetch_optional(conn).await?;
    Ok(value.map(|value| hex_text(&value)))
}

/// Compares the pepper with the database. Returns whether the database has its check value.
pub(super) async fn verify(
    conn: &mut SqliteConnection,
    path: &Path,
    pepper: &Pepper,
) -> Result<bool, OpenError> {
    let failed = |error: sqlx::Error| OpenError::from_sqlx(path, &error);
    let stored: Option<Vec<u8>> = sqlx::query_scalar(CHECK_VALUE)
        .fetch_optional(&mut *conn)
        .await
        .map_err(failed)?;
    match (stored, pepper.check_value()) {
        (Some(stored), Some(value)) if stored == value => Ok(true),
        (Some(_), Some(_)) => Err(OpenError::OtherPepper(path.to_owned())),
        (Some(_), None) => Err(OpenError::NoPepper(path.to_owned())),
        (None, None) => Ok(false),
        (None, Some(_)) => {
            let has_hashes: bool = sqlx::query_scalar(HAS_HASHES)
                .fetch_one(conn)
                .await
                .map_err(failed)?;
            if has_hashes {
                return Err(OpenError::Unpeppered(path.to_owned()));
            }
            Ok(false)
        }
    }
}

/// As [`verify`], for the process that serves: a database without a row gets this pepper. Its file comes first, also if
/// it was deleted together with an earlier database.
pub(super) async fn settle(
    conn: &mut SqliteConnection,
    path: &Path,
    pepper: &KeptPepper,
) -> Result<(), OpenError> {
    // A database that cannot be written is still read.
    if verify(&mut *conn, path, &pepper.value).await? {
        return Ok(());
    }
    let Some(value) = pepper.value.check_value() else {
        return Ok(());
    };
    if let Some(file) = &pepper.file {
        match file.ensure() {
            Ok(true) => {}
            // Another process has made it since.
            Ok(false) => return Err(OpenError::OtherPepper(path.to_owned())),
            Err(error) => {
                return Err(OpenError::Inaccessible {
                    path: file.path.clone(),
                    reason: error.to_string(),
                });
            }
        }
    }
    sqlx::query(SET_CHECK_VALUE)
        .bind(value.as_slice())
        .execute(&mut *conn)
        .await
        .map_err(|error| OpenError::from_sqlx(path, &error))?;
    verify(conn, path, &pepper.value).await.map(drop)
}
