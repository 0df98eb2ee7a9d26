//! One process for each database: the lock that the serving process holds.
//!
//! Memory is decided from what the process knows. If two processes wrote to one SQLite file, each would
//! decide without what the other has just written. So the second one serves without memory, says why, and
//! takes over when the first one ends. The system releases the lock when its process ends, however it ends.
//! The command line takes no lock: it adds no messages. Called by [`super::connection`].

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use super::error::OpenError;
use super::place::file_identity;

/// A lock on a file beside the database. Dropping it releases it.
#[derive(Debug)]
pub(super) struct ProcessLock {
    file: File,
}

impl Drop for ProcessLock {
    /// To close the file is not enough: a child process that this one is starting has a duplicate of it until its
    /// program runs, and the lock would be held as long.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

impl ProcessLock {
    /// Whether its file is still the one of the database at `database`: nobody deleted it or put another one in its place.
    pub(super) fn is_for(&self, database: &Path) -> bool {
        let identity =
            |metadata: std::io::Result<Metadata>| metadata.ok().as_ref().map(file_identity);
        let held = identity(self.file.metadata());
        held.is_some() && held == identity(std::fs::metadata(lock_path(database)))
    }

    /// Takes the lock for the database at `database`. `None` if no file can be made there: such a database is only
    /// read.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another process holds it. [`OpenError::LockFile`] if there is a lock that this process
    /// cannot open: another process may hold it.
    pub(super) fn acquire(database: &Path) -> Result<Option<Self>, OpenError> {
        let path = lock_path(database);
        let file = match open(database, &path) {
            Ok(file) => file,
            Err(error) if path.exists() => {
                let reason = error.to_string();
                return Err(OpenError::LockFile { path, reason });
            }
            Err(_) => return Ok(None),
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file })),
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

/// Opens the lock at `path`, and makes it if there is none. To take a lock, reading is enough.
fn open(database: &Path, path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    match options.open(path) {
        Ok(file) => {
            give_to_owner_of(database, &file);
            Ok(file)
        }
        Err(_) => File::open(path),
    }
}

/// Gives a lock that was just made to the user who owns the database, as SQLite does with its journals: a command that
/// root runs would otherwise leave a lock that the server cannot open. A file that was there before stays as it is: it may
/// be a link to another user's file.
#[cfg(unix)]
fn give_to_owner_of(database: &Path, lock: &File) {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    if let Ok(database) = database.metadata() {
        // Only root may give a file to another user. For all others the database is their own, or the lock stays theirs.
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
    fn a_lock_file_that_cannot_be_opened_is_an_error() {
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

    /// Root may give files away, and a user may put a link in the place of the lock.
    #[cfg(unix)]
    #[test]
    fn only_a_newly_made_lock_file_is_given_to_the_database_owner() {
        use std::os::unix::fs::{MetadataExt as _, chown, symlink};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["made.db", "linked.db", "secret"] {
            std::fs::write(at(name), "").unwrap();
        }
        let own = at("secret").metadata().unwrap().uid();
        if own != 0 {
            eprintln!("SKIPPED: only root can give a database to another user");
            return;
        }
        let other = 12_345;
        for name in ["made.db", "linked.db"] {
            chown(at(name), Some(other), None).unwrap();
        }
        let _made = ProcessLock::acquire(&at("made.db")).unwrap().unwrap();
        assert_eq!(at("made.db.lock").metadata().unwrap().uid(), other);
        symlink(at("secret"), at("linked.db.lock")).unwrap();
        let _linked = ProcessLock::acquire(&at("linked.db")).unwrap().unwrap();
        assert_eq!(at("secret").metadata().unwrap().uid(), own);
    }

    #[test]
    fn a_second_process_lock_is_refused_until_the_first_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let first = ProcessLock::acquire(&database).unwrap().unwrap();
        let second = ProcessLock::acquire(&database);
        assert!(matches!(second, Err(OpenError::InUse(_))), "{second:?}");
        drop(first);
        assert!(ProcessLock::acquire(&database).unwrap().is_some());
    }

    #[test]
    fn a_lock_whose_file_was_replaced_is_not_for_the_database_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let lock = ProcessLock::acquire(&database).unwrap().unwrap();
        assert!(lock.is_for(&database));
        assert!(!lock.is_for(&folder.path().join("other.db")));
        std::fs::rename(lock_path(&database), folder.path().join("away")).unwrap();
        assert!(!lock.is_for(&database));
        let second = ProcessLock::acquire(&database).unwrap().unwrap();
        assert!(second.is_for(&database) && !lock.is_for(&database));
    }

    /// As while a child process is started, which has a duplicate of every open file until its program runs.
    #[test]
    fn a_dropped_lock_is_free_despite_a_duplicate_file_handle() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let first = ProcessLock::acquire(&database).unwrap().unwrap();
        let _duplicate = first.file.try_clone().unwrap();
        drop(first);
        assert!(ProcessLock::acquire(&database).unwrap().is_some());
    }
}
