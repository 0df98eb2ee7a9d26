//! Audit lines in the database (`audit.store_retention`), and the running figures of `memory.calibrate_tokens`. Values
//! and the trait only; each backend implements it.
//!
//! No request waits for these verbs. A line is stored as it is written to the file; the columns beside it say how it is
//! found and to whom it belongs.

use async_trait::async_trait;

use super::StoreResult;
use crate::history::Scope;
use crate::memory::SnapshotId;

/// Stores and reads lines and figures.
#[async_trait]
pub trait AuditLines: Send + Sync {
    /// Stores lines in this order, in one transaction.
    async fn append_audit_lines(&self, lines: Vec<NewAuditLine>) -> StoreResult<()>;

    /// The lines behind the line `after` (0: from the first one), in the order in which they were stored, at most
    /// `limit`. `None` if there are none.
    async fn audit_page(&self, after: i64, limit: u32) -> StoreResult<Option<AuditPage>>;

    /// The first and the last number of a line; zeros if there is none.
    async fn audit_range(&self) -> StoreResult<(i64, i64)>;

    /// The line of a request. If several have this id, the last one.
    async fn audit_request(&self, request_id: &str) -> StoreResult<Option<AuditRequest>>;

    /// As [`AuditLines::audit_page`], of the lines of the same owner with the same name of the conversation.
    async fn audit_page_of(
        &self,
        request: &AuditRequest,
        after: i64,
        limit: u32,
    ) -> StoreResult<Option<AuditPage>>;

    /// To whom a snapshot belongs and when it was made (milliseconds since 1970), for an operator who knows only its
    /// number.
    async fn snapshot_origin(&self, snapshot: SnapshotId) -> StoreResult<Option<(Scope, i64)>>;

    /// Deletes lines of requests that came before `before_ms`, at most `limit`. Returns how many.
    async fn expire_audit_lines(&self, before_ms: i64, limit: u32) -> StoreResult<u64>;

    /// All figures.
    async fn token_ratios(&self) -> StoreResult<Vec<StoredTokenRatio>>;

    /// Replaces the figures of these models; of all models, the `keep` that were replaced last stay.
    async fn put_token_ratios(
        &self,
        ratios: Vec<StoredTokenRatio>,
        at_ms: i64,
        keep: u32,
    ) -> StoreResult<()>;
}

/// A line that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuditLine {
    /// The time in it, in milliseconds since 1970.
    pub time_ms: i64,
    /// The id in it, if it is the line of a request.
    pub request_id: Option<String>,
    /// To whom it belongs, if that was decided.
    pub owner: Option<Scope>,
    /// The name of the conversation in it.
    pub thread: Option<String>,
    /// The line itself, without a line break.
    pub line: String,
}

/// Some lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPage {
    /// The number of the last one.
    pub last: i64,
    /// The lines, with a line break between two of them.
    pub lines: String,
}

/// The line of a request, and where others of its conversation are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRequest {
    pub line: String,
    pub(super) tenant: Vec<u8>,
    pub(super) resource: Vec<u8>,
    pub(super) thread: Option<String>,
}

impl AuditRequest {
    /// Whether the request is of this tenant and of this user.
    #[must_use]
    pub fn is_of(&self, owner: &Scope) -> bool {
        self.tenant == owner.tenant && self.resource == owner.resource_key()
    }
}

/// The running figure of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTokenRatio {
    pub model: String,
    /// Tokens that Diarist counted.
    pub counted: u64,
    /// Tokens that the provider counted for the same messages.
    pub reported: u64,
}
