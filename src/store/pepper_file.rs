//! Where the pepper comes from: a configured secret, or a file beside the database that the first start makes.
//!
//! Only a new database gets a pepper, because stored hashes cannot be keyed anew. Requests are identified before
//! the database is open, so the files alone decide: a pepper file is used; without one, a database that exists
//! has no pepper; with neither, the file is made. Whether the pepper is the one of the database is checked when
//! that is opened. Never prints or logs the pepper. Called by `app`, `cli` and the SQLite store.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::history::Pepper;

/// A shorter text is no pepper: somebody could try all of them.
const MIN_PEPPER_BYTES: usize = 32;

/// How often, and with which pauses, an empty file is read again: another process may be writing it.
const EMPTY_RETRIES: u32 = 50;
const EMPTY_PAUSE: Duration = Duration::from_millis(20);

/// Why there is no pepper to start with.
#[derive(Debug, thiserror::Error)]
pub enum PepperError {
    /// The file holds nothing or too little.
    #[error(
        "the pepper file {} holds fewer than {MIN_PEPPER_BYTES} bytes; restore it from a backup, or delete it if \
         there is no database yet",
        .0.display()
    )]
    Short(PathBuf),
    /// The file cannot be read.
    #[error(
        "the pepper file {} cannot be read: {reason}; give this user read access to it",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// A file that the configuration names is missing, and there is a database already.
    #[error(
        "there is no pepper file {} (store.pepper_file), but the database exists; restore the file, or unset the \
         key if the database has no pepper",
        .0.display()
    )]
    Missing(PathBuf),
}

/// The place of a pepper.
#[derive(Clone, Copy, Debug)]
pub struct PepperPlace<'a> {
    /// The configured secret.
    pub secret: Option<&'a [u8]>,
    /// The configured file.
    pub file: Option<&'a Path>,
    /// The database file; `None` in memory.
    pub database: Option<&'a Path>,
}

/// A pepper, and its file if it has one. The file may not be written yet, or be deleted later.
#[derive(Clone, Debug, Default)]
pub struct KeptPepper {
    /// The pepper.
    pub value: Pepper,
    pub(super) file: Option<Arc<PepperFile>>,
}

impl PepperPlace<'_> {
    /// The file of the pepper, if a file may hold it.
    pub fn path(&self) -> Option<PathBuf> {
        let beside = |database: &Path| {
            let mut path = database.as_os_str().to_owned();
            path.push(".pepper");
            PathBuf::from(path)
        };
        self.file
            .map(Path::to_owned)
            .or_else(|| self.database.map(beside))
            .filter(|_| self.secret.is_none() && self.database.is_some())
    }

    /// The pepper that there is.
    ///
    /// # Errors
    /// A file that is missing though it should be there, or holds no pepper.
    pub fn find(&self) -> Result<KeptPepper, PepperError> {
        if let Some(secret) = self.secret.filter(|_| self.database.is_some()) {
            return Ok(KeptPepper {
                value: Pepper::new(secret),
                file: None,
            });
        }
        let Some(path) = self.path() else {
            return Ok(KeptPepper::default());
        };
        match read(&path)? {
            Some(secret) => Ok(PepperFile::read_from(path, secret).into_kept()),
            None if self.file.is_some() && self.has_database() => Err(PepperError::Missing(path)),
            None => Ok(KeptPepper::default()),
        }
    }

    /// The pepper that there is, or a new one for a new database. If the file cannot be written, the store tries
    /// again before it makes the database.
    ///
    /// # Errors
    /// As [`PepperPlace::find`].
    pub fn find_or_make(&self) -> Result<KeptPepper, PepperError> {
        let found = self.find()?;
        let Some(path) = self.path() else {
            return Ok(found);
        };
        if found.value != Pepper::NONE || self.has_database() {
            return Ok(found);
        }
        let mut new = PepperFile {
            secret: Zeroizing::new(random_hex().into_bytes()),
            path,
            was_there: false,
        };
        match new.write() {
            // Another process was faster.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => self.find(),
            written => {
                new.was_there = written.is_ok();
                Ok(new.into_kept())
            }
        }
    }

    /// Whether there is a database of Diarist without a pepper: its hashes have no secret key. A database of another
    /// program holds none. Never call this, or another function of this file that looks at the database, while this process
    /// has the database open: it closes the file, and the locks of SQLite are gone.
    pub fn is_unkeyed(&self) -> bool {
        self.database.is_some_and(is_of_diarist)
            && self.find().is_ok_and(|found| found.value == Pepper::NONE)
    }

    /// Whether there is a database of SQLite. An empty file becomes a new one, and nothing else can be opened.
    fn has_database(&self) -> bool {
        self.database.is_some_and(is_sqlite)
    }
}

/// The first bytes of every database of SQLite (<https://sqlite.org/fileformat.html>).
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Where the application id stands in the file, and the one that the first migration writes.
const APPLICATION_ID: (usize, &[u8; 4]) = (68, b"DiAr");

/// Whether this user can read the file at `path`, and Diarist made it.
fn is_of_diarist(path: &Path) -> bool {
    let (at, id) = APPLICATION_ID;
    let mut head = [0; 100];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head.starts_with(SQLITE_MAGIC) && head[at..].starts_with(id)
}

fn is_sqlite(path: &Path) -> bool {
    let mut first = [0; SQLITE_MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    match read {
        Ok(()) => first == *SQLITE_MAGIC,
        // It may be one: nothing may take a new pepper for it.
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

/// The file of a pepper, and what it holds.
pub(super) struct PepperFile {
    secret: Zeroizing<Vec<u8>>,
    pub(super) path: PathBuf,
    /// Whether this process has read or made it.
    was_there: bool,
}

impl std::fmt::Debug for PepperFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PepperFile({})", self.path.display())
    }
}

impl PepperFile {
    fn read_from(path: PathBuf, secret: Zeroizing<Vec<u8>>) -> Self {
        Self {
            secret,
            path,
            was_there: true,
        }
    }

    fn into_kept(self) -> KeptPepper {
        KeptPepper {
            value: Pepper::new(&self.secret),
            file: Some(Arc::new(self)),
        }
    }

    /// Makes the file, for its owner only. It is on the disk when this returns: without it, the database would be
    /// lost.
    ///
    /// # Errors
    /// It exists already, or cannot be made.
    pub(super) fn write(&self) -> std::io::Result<()> {
        let folder = self.path.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            let mut builder = std::fs::DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.recursive(true).create(folder)?;
        }
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&self.path)?;
        let written = file
            .write_all(&self.secret)
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.sync_all());
        if written.is_err() {
            // Half a pepper would be taken for the pepper's file, and keep the next start from beginning.
            let _removed = std::fs::remove_file(&self.path);
        }
        written?;
        #[cfg(unix)]
        std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(())
    }

    /// Makes the file unless it is there. Returns whether it holds this pepper; one that this process has read or made does. It
    /// is not read again, because a pipe can be read only once.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn ensure(&self) -> std::io::Result<bool> {
        match self.write() {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(self.was_there
                || read(&self.path).is_ok_and(|found| found.as_ref() == Some(&self.secret))),
            written => written.map(|()| true),
        }
    }
}

/// 32 random bytes in hexadecimal.
fn random_hex() -> String {
    let bytes: Zeroizing<[u8; 32]> = Zeroizing::new(rand::random());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The secret in a file; `None` if there is no file.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, and only where two processes start together"
)]
fn read(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, PepperError> {
    for attempt in 0..=EMPTY_RETRIES {
        let text = match std::fs::read(path) {
            Ok(text) => Zeroizing::new(text),
            // Below a file there is none; opening the database says what is wrong there.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(error) => {
                return Err(PepperError::Unreadable {
                    path: path.to_owned(),
                    reason: error.to_string(),
                });
            }
        };
        let secret = text.trim_ascii();
        if secret.len() >= MIN_PEPPER_BYTES {
            return Ok(Some(Zeroizing::new(secret.to_owned())));
        }
        if !secret.is_empty() || attempt == EMPTY_RETRIES {
            break;
        }
        std::thread::sleep(EMPTY_PAUSE);
    }
    Err(PepperError::Short(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(database: &Path) -> PepperPlace<'_> {
        PepperPlace {
            secret: None,
            file: None,
            database: Some(database),
        }
    }

    #[test]
    fn a_new_database_gets_a_pepper_file_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("new/diarist.db");
        let place = place(&database);
        assert_eq!(place.find().unwrap().value, Pepper::NONE);
        let made = place.find_or_make().unwrap().value;
        assert_ne!(made, Pepper::NONE);
        // Now and after the database was made.
        assert_eq!(place.find_or_make().unwrap().value, made);
        std::fs::write(&database, "").unwrap();
        assert_eq!(place.find().unwrap().value, made);
        let path = place.path().unwrap();
        assert_eq!(path, folder.path().join("new/diarist.db.pepper"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim().len(), 64);
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn an_existing_database_gets_no_pepper_file() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        std::fs::write(&database, SQLITE_MAGIC).unwrap();
        let place = place(&database);
        assert_eq!(place.find_or_make().unwrap().value, Pepper::NONE);
        assert!(!place.path().unwrap().exists());
        assert!(!place.is_unkeyed(), "it may be of another program");
        let mut head = [0; 100];
        head[..16].copy_from_slice(SQLITE_MAGIC);
        head[68..72].copy_from_slice(b"DiAr");
        std::fs::write(&database, head).unwrap();
        assert!(place.is_unkeyed());
        let named = folder.path().join("named");
        let named = PepperPlace {
            file: Some(&named),
            ..place
        };
        assert!(matches!(named.find_or_make(), Err(PepperError::Missing(_))));
    }

    #[test]
    fn concurrent_starts_agree_on_one_pepper() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let found: Vec<Pepper> = std::thread::scope(|scope| {
            let start = || place(&database).find_or_make().unwrap().value;
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(found.iter().all(|pepper| *pepper == found[0]));
    }

    #[test]
    fn a_pepper_file_that_is_too_short_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let place = place(&database);
        std::fs::write(place.path().unwrap(), "too short\n").unwrap();
        assert!(matches!(place.find(), Err(PepperError::Short(_))));
    }

    #[test]
    fn the_configured_secret_is_used_and_no_pepper_file_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let secret = [7; 32];
        let place = PepperPlace {
            secret: Some(&secret),
            ..place(&database)
        };
        assert_eq!(place.find_or_make().unwrap().value, Pepper::new(&secret));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
