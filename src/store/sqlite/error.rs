//! SQLite's result codes as errors of the store. Each message says what is wrong and what to do.

use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// Why a database could not be opened. Every message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not a SQLite URL.
    #[error("`{0}` is not a database URL; write sqlite:///absolute/path/diarist.db")]
    Url(String),
    /// The linked SQLite has a bug that corrupts databases in WAL mode.
    #[error(
        "SQLite {found} is older than {required}, the first without the WAL-reset corruption bug; \
         build Diarist with its bundled SQLite"
    )]
    OldSqlite {
        /// The version that is linked.
        found: String,
        /// The oldest version that is accepted.
        required: &'static str,
    },
    /// The folder or the file cannot be created or read.
    #[error(
        "cannot open {}: {reason}; check that the folder exists, and that this user may write the folder and the file",
        path.display()
    )]
    Inaccessible {
        /// The database.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// The lock of the serving process cannot be opened.
    #[error(
        "cannot open {} ({reason}), so another Diarist may be serving with this database; give the file to this user, with chown",
        path.display()
    )]
    LockFile {
        /// The lock.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// A folder has this name.
    #[error("{place} is a folder; name a file in it, such as {place}/diarist.db", place = .0.display())]
    Folder(PathBuf),
    /// There is no such file, and this command must not create one.
    #[error("there is no database at {}; `diarist serve` makes it when it starts", .0.display())]
    Missing(PathBuf),
    /// An older Diarist made the database, and this command must not change it.
    #[error(
        "{} was made by an older Diarist; start `diarist serve` once, which brings it up to date",
        .0.display()
    )]
    Older(PathBuf),
    /// The file is not a database.
    #[error("{} is not a SQLite database; move it away or set store.url to another file", .0.display())]
    NotADatabase(PathBuf),
    /// The file is a database of another program.
    #[error("{} is a database of another program; set store.url to another file", .0.display())]
    Foreign(PathBuf),
    /// A newer Diarist made the database.
    #[error(
        "{} was made by a newer Diarist (schema {found}, this one knows {known}); start that \
         version, or set store.url to another file", path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema this program knows.
        known: i64,
    },
    /// An applied migration differs from the one of this program.
    #[error("the schema of {} is not Diarist's ({reason}); restore a backup", path.display())]
    Schema {
        /// The database.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({reason}); stop Diarist and restore a backup, or move the file away to \
         start with an empty memory", path.display()
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// The error of SQLite.
        reason: String,
    },
    /// The database cannot be written.
    #[error(
        "{} is read-only; give this user write access to the file, to those with -wal and -shm behind its name, and to the folder",
        .0.display()
    )]
    ReadOnly(PathBuf),
    /// The disk has no room for the schema.
    #[error("the disk of {} is full; free some space", .0.display())]
    Full(PathBuf),
    /// The database was made with another pepper.
    #[error(
        "{} was made with another pepper; restore the pepper that belongs to it (store.pepper or the pepper \
         file, by default {}.pepper), or set store.url to a new database", .0.display(), .0.display()
    )]
    OtherPepper(PathBuf),
    /// The database was made with a pepper, and there is none.
    #[error(
        "{} was made with a pepper, and there is none; restore it (store.pepper or the pepper file, by default \
         {}.pepper), or set store.url to a new database", .0.display(), .0.display()
    )]
    NoPepper(PathBuf),
    /// The database was made without a pepper, and there is one.
    #[error(
        "{} was made without a pepper, and its hashes cannot be keyed anew; remove the pepper (store.pepper, \
         store.pepper_file or the file {}.pepper), or set store.url to a new database", .0.display(), .0.display()
    )]
    Unpeppered(PathBuf),
    /// Another Diarist serves with this database.
    #[error(
        "another Diarist serves with {}; stop that one, or give each its own database with store.url",
        .0.display()
    )]
    InUse(PathBuf),
    /// Another process has locked the database.
    #[error("{} is locked by another process; close that program", .0.display())]
    Locked(PathBuf),
    /// Anything else.
    #[error("cannot open {}: {reason}", path.display())]
    Other {
        /// The database.
        path: PathBuf,
        /// The error of SQLite.
        reason: String,
    },
}

/// What a result code means for a caller.
enum FailureKind {
    Locked,
    ReadOnly,
    Full,
    Damaged,
    NotADatabase,
    Inaccessible,
    Other,
}

/// The primary result code is the low byte of the extended one (<https://sqlite.org/rescode.html>).
fn failure_kind(error: &sqlx::Error) -> FailureKind {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .and_then(|code| code.parse::<u32>().ok());
    match code.map(|code| code & 0xff) {
        Some(5 | 6) => FailureKind::Locked,
        Some(8) => FailureKind::ReadOnly,
        Some(13) => FailureKind::Full,
        Some(11) => FailureKind::Damaged,
        Some(26) => FailureKind::NotADatabase,
        Some(10 | 14) => FailureKind::Inaccessible,
        _ => FailureKind::Other,
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::PoolTimedOut => {
                return Self::Busy("every connection is in use or stuck".to_owned());
            }
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::Decode(_)
            | sqlx::Error::TypeNotFound { .. } => return Self::Corrupt(error.to_string()),
            _ => {}
        }
        match failure_kind(&error) {
            FailureKind::Locked => Self::Busy(error.to_string()),
            FailureKind::ReadOnly => Self::ReadOnly(format!(
                "give this user write access to the file, to those with -wal and -shm behind its name, and to the folder ({error})"
            )),
            FailureKind::Full => {
                Self::Unavailable(format!("the disk is full; free some space ({error})"))
            }
            FailureKind::Damaged | FailureKind::NotADatabase => Self::Unavailable(format!(
                "the database is damaged; restore a backup or move it away ({error})"
            )),
            FailureKind::Inaccessible | FailureKind::Other => Self::Unavailable(error.to_string()),
        }
    }
}

impl OpenError {
    /// Whether the pepper is wrong: only another configuration helps.
    pub fn is_wrong_pepper(&self) -> bool {
        matches!(
            self,
            Self::OtherPepper(_) | Self::NoPepper(_) | Self::Unpeppered(_)
        )
    }

    pub(super) fn from_sqlx(path: &Path, error: &sqlx::Error) -> Self {
        let path = path.to_owned();
        let reason = error.to_string();
        match failure_kind(error) {
            FailureKind::Locked => Self::Locked(path),
            FailureKind::ReadOnly => Self::ReadOnly(path),
            FailureKind::Full => Self::Full(path),
            FailureKind::Damaged => Self::Damaged { path, reason },
            FailureKind::NotADatabase => Self::NotADatabase(path),
            FailureKind::Inaccessible => Self::Inaccessible { path, reason },
            FailureKind::Other => Self::Other { path, reason },
        }
    }
}
