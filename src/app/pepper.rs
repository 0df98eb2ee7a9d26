//! Where the configuration says that the pepper is, what to say if a database has none, and whether its file is still there.
//! Never reads the pepper itself. Called by `app`, and by commands.

use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::ExposeSecret as _;

use crate::admin::{Condition, Readiness};
use crate::config::{Config, Database};
use crate::store::PepperPlace;

/// Where the pepper of the configured database is.
pub fn pepper_place(config: &Config) -> PepperPlace<'_> {
    let secret = config.pepper.secret.as_ref();
    PepperPlace {
        secret: secret.map(|secret| secret.expose_secret().as_bytes()),
        file: config.pepper.file.as_deref(),
        database: match &config.database {
            Database::Sqlite(path) => Some(path),
            Database::SqliteInMemory => None,
        },
    }
}

/// What to do if the database has no pepper.
pub fn pepper_hint(config: &Config) -> Option<String> {
    let unkeyed = config.memory_enabled && pepper_place(config).is_unkeyed();
    unkeyed.then(|| {
        format!(
            "The database {} has no pepper: somebody who has a copy of it can check guesses of API keys, names and \
             messages. Stored hashes cannot be keyed anew; a new database (store.url) gets a pepper.",
            config.database
        )
    })
}

/// How long it is waited for a file system.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports that the file of the pepper was deleted. The next start needs it, and nothing notices before.
pub(super) struct PepperWatch {
    file: PathBuf,
    /// Whether it has been there since the start: a pipe can be gone once it is read.
    was_there: bool,
    is_missing: bool,
}

impl PepperWatch {
    pub(super) fn new(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            was_there: false,
            is_missing: false,
        }
    }

    pub(super) async fn check(&mut self, readiness: &Readiness) {
        // A file that cannot be looked for, or not in time, is not known to be gone.
        let looking = tokio::time::timeout(LOOK_TIMEOUT, tokio::fs::try_exists(&self.file));
        let Ok(Ok(is_there)) = looking.await else {
            return;
        };
        self.was_there |= is_there;
        let is_missing = self.was_there && !is_there;
        if std::mem::replace(&mut self.is_missing, is_missing) == is_missing {
            return;
        }
        let file = self.file.display();
        if is_missing {
            let problem = format!(
                "the pepper's file {file} was deleted: put it back from your copy. Without it, the next start ends with \
                 an error, and the memory in the database is lost"
            );
            tracing::error!("{problem}");
            readiness.set("pepper", Condition::Degraded(problem));
        } else {
            tracing::info!("the pepper's file {file} is there again");
            readiness.set("pepper", Condition::Up);
        }
    }
}
