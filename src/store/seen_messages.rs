//! What a process has seen of its tenants, kept over an ordinary restart. Values and the trait only; each backend implements
//! it.

use async_trait::async_trait;

use super::StoreResult;

/// What a process has seen of one tenant. `lookup` writes and reads the lists; they hold only hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenMessages {
    /// The hash of the tenant.
    pub tenant: [u8; 32],
    /// Messages, and where each was first said.
    pub messages: Vec<u8>,
    /// Answers of the upstream, the message before each, and where each was given.
    pub answers: Vec<u8>,
    /// Answers that may come back as summaries.
    pub summary_answers: Vec<u8>,
}

impl SeenMessages {
    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.answers.is_empty() && self.summary_answers.is_empty()
    }
}

/// Keeps what processes have seen.
#[async_trait]
pub trait SeenMessagesStore: Send + Sync {
    /// Adds what a process has seen, and deletes the oldest of all until `max_bytes` are left. Nothing is stored of a tenant
    /// of which anything is forgotten.
    async fn put_seen_messages(
        &self,
        entries: Vec<SeenMessages>,
        at_ms: i64,
        max_bytes: i64,
    ) -> StoreResult<()>;

    /// What all processes before this one have seen, the newest first.
    async fn seen_messages(&self) -> StoreResult<Vec<SeenMessages>>;

    /// Deletes what was stored before this time.
    async fn expire_seen_messages(&self, before_ms: i64) -> StoreResult<()>;
}
