//! Where the configuration says that the pepper is, and what to say if a database has none. Called by `app` at the
//! start, and by commands.

use secrecy::ExposeSecret as _;

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
