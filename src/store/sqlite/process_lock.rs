//! One process for each database: the lock that the serving process holds.
//!
//! Memory is decided from what the process knows. If two processes wrote to one SQLite file, each would
//! decide without what the other has just written. So the second one serves without memory, says why, and
//! takes over when the first one ends. The system releases the lock when its process ends, however it ends.
//! The command line takes no lock: it adds no messages. Called by [`super::connection`].

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use super::error::OpenError;

/// A lock on a file beside the database. Dropping it releases it.
#[derive(Debug)]
pub(super) struct ProcessLock {
    _file: File,
}

impl ProcessLock {
    /// Takes the lock for the database at `database`. `None` if no file can be written there: such a database
    /// is only read.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another process holds it.
    pub(super) fn acquire(database: &Path) -> Result<Option<Self>, OpenError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(0o600);
        }
        let Ok(file) = options.open(lock_path(database)) else {
            return Ok(None);
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse(database.to_owned())),
            // Some network file systems have no locks.
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }
}

/// `diarist.db.lock` for `diarist.db`.
fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_until_the_first_one_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let first = ProcessLock::acquire(&database).unwrap().unwrap();
        let second = ProcessLock::acquire(&database);
        assert!(matches!(second, Err(OpenError::InUse(_))), "{second:?}");
        drop(first);
        assert!(ProcessLock::acquire(&database).unwrap().is_some());
    }
}
