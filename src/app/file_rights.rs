//! Warns of files with names or text of conversations, and of the pepper, that other users of this machine can read. Diarist makes such
//! files for their owner only; older ones, or ones that somebody else made, keep the rights they have. Called by
//! `app` at the start.

use super::pepper::pepper_place;
use crate::config::{AuditTarget, Config, Database, is_readable_by_others};

/// Logs a hint for each such file.
pub(super) fn warn_of_readable_files(config: &Config) {
    let database = match &config.database {
        Database::Sqlite(path) if config.memory_enabled => Some(path),
        Database::Sqlite(_) | Database::SqliteInMemory => None,
    };
    let audit = match &config.audit {
        AuditTarget::File(path) => Some(path),
        AuditTarget::Off | AuditTarget::Stdout => None,
    };
    let pepper = pepper_place(config).path();
    for path in database.into_iter().chain(audit).chain(pepper.as_ref()) {
        if is_readable_by_others(path) {
            tracing::warn!(
                file = %path.display(),
                "other users of this machine can read {}; to change that, run chmod 600 {}",
                path.display(),
                path.display()
            );
        }
    }
}
