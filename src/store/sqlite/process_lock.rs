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
    /// Takes the lock for the database at `database`. `None` if no file can be made there: such a database is only
    /// read.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another process holds it. [`OpenError::LockFile`] if there is a lock that this process
    /// cannot open: another process may hold it.
    pub(super) fn acquire(database: &Path) -> Result<Option<Self>, OpenError> {
        let path = lock_path(database);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(0o600);
        }
        let file = match options.open(&path) {
            Ok(file) => file,
            // A lock can be taken without the right to write.
            Err(error) if path.exists() => match File::open(&path) {
                Ok(file) => file,
                Err(_) => {
                    return Err(OpenError::LockFile {
                        path,
                        reason: error.to_string(),
                    });
                }
            },
            Err(_) => return Ok(None),
        };
        give_to_owner_of(database, &file);
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse(database.to_owned())),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(
                    "{} cannot be locked ({error}): make sure that no other Diarist serves with this database",
                    path.display()
                );
                Ok(None)
            }
        }
    }
}

/// Gives the lock to the user who owns the database, as SQLite does with its journals: a command that root runs would
/// otherwise leave a lock that the server cannot open. Others than root cannot, and need not.
#[cfg(unix)]
fn give_to_owner_of(database: &Path, lock: &File) {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    if let (Ok(database), Ok(now)) = (database.metadata(), lock.metadata())
        && database.uid() != now.uid()
    {
        // Whoever may not do this has a lock that is open, and that is enough.
        let _ = fchown(lock, Some(database.uid()), Some(database.gid()));
    }
}

#[cfg(not(unix))]
fn give_to_owner_of(_: &Path, _: &File) {}

/// `diarist.db.lock` for `diarist.db`.
fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_lock_that_cannot_be_opened_may_be_held() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        // Root may open the files of all users, but nobody opens a socket.
        let _socket = std::os::unix::net::UnixListener::bind(lock_path(&database)).unwrap();
        let locked = ProcessLock::acquire(&database);
        assert!(
            matches!(locked, Err(OpenError::LockFile { .. })),
            "{locked:?}"
        );
        // Without a folder to write in, the database is only read.
        let nowhere = folder.path().join("nowhere/diarist.db");
        assert!(matches!(ProcessLock::acquire(&nowhere), Ok(None)));
    }

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
