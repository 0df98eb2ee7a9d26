//! Stores audit lines in the database (`audit.store_retention`). `audit` writes them through this, and knows no database.

use std::sync::Arc;

use async_trait::async_trait;

use crate::audit::{LineStore, StoredLine};
use crate::store::{AuditLines as _, NewAuditLine, SqliteStore};

/// The database as the audit sees it.
#[derive(Debug)]
pub(super) struct AuditStore(pub(super) Arc<SqliteStore>);

#[async_trait]
impl LineStore for AuditStore {
    async fn append(&self, lines: &[StoredLine]) -> Result<(), String> {
        let lines = lines.iter().cloned().map(new_line).collect();
        let appended = self.0.append_audit_lines(lines).await;
        appended.map_err(|error| error.to_string())
    }
}

fn new_line(line: StoredLine) -> NewAuditLine {
    NewAuditLine {
        time_ms: line.time.as_millisecond(),
        request_id: line.request_id,
        owner: line.owner,
        thread: line.thread,
        line: line.line,
    }
}
