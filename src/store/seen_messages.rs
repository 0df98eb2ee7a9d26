//! What a process has seen of its tenants, kept over an ordinary restart: values, the trait that each backend implements, and
//! which of it is kept if it is too much.

use std::collections::{HashMap, HashSet};

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
    /// Whether something that was seen of the tenant before is gone, because of what other tenants said.
    pub has_lost: bool,
}

/// In place of a tenant: those of which everything that was seen is gone.
pub const DROPPED_TENANTS: [u8; 32] = [0; 32];

impl SeenMessages {
    /// How many bytes the lists have.
    pub fn bytes(&self) -> usize {
        self.messages.len() + self.answers.len() + self.summary_answers.len()
    }
}

/// Which rows fit into `room`: of each tenant its newest, and less of those that have most. So one that has little loses
/// nothing. `rows` are tenants and sizes, the newest first.
pub fn fitting_rows(
    rows: impl IntoIterator<Item = ([u8; 32], usize)>,
    room: usize,
) -> HashSet<usize> {
    let mut of_tenants: HashMap<[u8; 32], usize> = HashMap::new();
    let with_newer = rows.into_iter().enumerate().map(|(at, (tenant, size))| {
        let newer = of_tenants.entry(tenant).or_default();
        *newer += size;
        (*newer, at, size)
    });
    let mut with_newer: Vec<(usize, usize, usize)> = with_newer.collect();
    with_newer.sort_unstable();
    let mut held = 0;
    let fits = |(_, _, size): &(usize, usize, usize)| {
        held += size;
        held <= room
    };
    let fitting = with_newer.into_iter().take_while(fits);
    fitting.map(|(_, at, _)| at).collect()
}

/// Keeps what processes have seen.
#[async_trait]
pub trait SeenMessagesStore: Send + Sync {
    /// Adds what a process has seen, the oldest of each tenant first. `times` are when it began, and now. Nothing is stored of
    /// a tenant if it, or one of its users, was forgotten in between. If there are more than `max_bytes` then, the tenants that
    /// have most lose their oldest ones.
    async fn put_seen_messages(
        &self,
        entries: Vec<SeenMessages>,
        times: (i64, i64),
        max_bytes: usize,
    ) -> StoreResult<()>;

    /// What all processes before this one have seen, the newest first.
    async fn seen_messages(&self) -> StoreResult<Vec<SeenMessages>>;

    /// Deletes what was stored before this time.
    async fn expire_seen_messages(&self, before_ms: i64) -> StoreResult<()>;
}
