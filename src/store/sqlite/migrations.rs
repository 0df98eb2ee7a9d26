//! The steps from an empty database to the schema of this version. Called by [`super::open`] only.

use std::borrow::Cow;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType};

/// The files of `migrations/sqlite`, in order. `sqlx::migrate!` would need the `macros` feature, which
/// builds SQLite and the TLS stack a second time for the host.
pub(super) fn migrations() -> Vec<Migration> {
    [
        (
            1,
            "init",
            include_str!("../../../migrations/sqlite/0001_init.sql"),
        ),
        (
            2,
            "timers",
            include_str!("../../../migrations/sqlite/0002_timers.sql"),
        ),
        (
            3,
            "titles",
            include_str!("../../../migrations/sqlite/0003_titles.sql"),
        ),
        (
            4,
            "provenance",
            include_str!("../../../migrations/sqlite/0004_provenance.sql"),
        ),
        (
            5,
            "time",
            include_str!("../../../migrations/sqlite/0005_time.sql"),
        ),
        (
            6,
            "calls",
            include_str!("../../../migrations/sqlite/0006_calls.sql"),
        ),
        (
            7,
            "sent_with",
            include_str!("../../../migrations/sqlite/0007_sent_with.sql"),
        ),
        (
            8,
            "alignment",
            include_str!("../../../migrations/sqlite/0008_alignment.sql"),
        ),
        (
            9,
            "crowds",
            include_str!("../../../migrations/sqlite/0009_crowds.sql"),
        ),
        (
            10,
            "aliases",
            include_str!("../../../migrations/sqlite/0010_aliases.sql"),
        ),
        (
            11,
            "resource",
            include_str!("../../../migrations/sqlite/0011_resource.sql"),
        ),
        (
            12,
            "pins_by_model",
            include_str!("../../../migrations/sqlite/0012_pins_by_model.sql"),
        ),
        (
            13,
            "messages",
            include_str!("../../../migrations/sqlite/0013_messages.sql"),
        ),
        (
            14,
            "stopgaps",
            include_str!("../../../migrations/sqlite/0014_stopgaps.sql"),
        ),
        (
            15,
            "observe_focus",
            include_str!("../../../migrations/sqlite/0015_observe_focus.sql"),
        ),
        (
            16,
            "evidence",
            include_str!("../../../migrations/sqlite/0016_evidence.sql"),
        ),
        (
            17,
            "claims",
            include_str!("../../../migrations/sqlite/0017_claims.sql"),
        ),
        (
            18,
            "forgotten",
            include_str!("../../../migrations/sqlite/0018_forgotten.sql"),
        ),
        (
            19,
            "unsettled_claims",
            include_str!("../../../migrations/sqlite/0019_unsettled_claims.sql"),
        ),
        (
            20,
            "tenant_accounts",
            include_str!("../../../migrations/sqlite/0020_tenant_accounts.sql"),
        ),
        (
            21,
            "pepper",
            include_str!("../../../migrations/sqlite/0021_pepper.sql"),
        ),
        (
            22,
            "cache_key",
            include_str!("../../../migrations/sqlite/0022_cache_key.sql"),
        ),
        (
            23,
            "cache_breakpoint",
            include_str!("../../../migrations/sqlite/0023_cache_breakpoint.sql"),
        ),
        (
            24,
            "audit_lines",
            include_str!("../../../migrations/sqlite/0024_audit_lines.sql"),
        ),
        (
            25,
            "answer_ending",
            include_str!("../../../migrations/sqlite/0025_answer_ending.sql"),
        ),
        (
            26,
            "lost_items",
            include_str!("../../../migrations/sqlite/0026_lost_items.sql"),
        ),
        (
            27,
            "summary_start",
            include_str!("../../../migrations/sqlite/0027_summary_start.sql"),
        ),
    ]
    .into_iter()
    .map(|(version, name, text)| {
        Migration::new(
            version,
            Cow::Borrowed(name),
            MigrationType::Simple,
            SqlStr::from_static(text),
            false,
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::migrations;

    #[test]
    fn every_file_is_a_step() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|file| {
                file.expect("a file")
                    .file_name()
                    .into_string()
                    .expect("a name")
            })
            .collect();
        files.sort();
        let steps: Vec<String> = migrations()
            .iter()
            .map(|step| format!("{:04}_{}.sql", step.version, step.description))
            .collect();
        assert_eq!(files, steps);
    }
}
