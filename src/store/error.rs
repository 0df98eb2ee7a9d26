//! What can go wrong in a verb of the store, for any backend. An error never carries message text.

/// The result of a verb.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer in time or is locked; the same call may work later.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// The database is gone, full or damaged.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The database can be read, but not written.
    #[error("the store is read-only: {0}")]
    ReadOnly(String),
    /// The database is not open.
    #[error("the database is not open: {0}")]
    NotOpen(String),
    /// A row has a value that Diarist cannot have written.
    #[error("the store holds something unreadable: {0}")]
    Corrupt(String),
    /// The call refers to a conversation that is not recorded under this owner, or no longer. Nothing
    /// was stored.
    #[error("the conversation is not recorded; it may have been forgotten")]
    Forgotten,
}

impl StoreError {
    /// Whether the cause is logged where the database is opened, once. Each task that misses it would say the same
    /// again.
    pub fn is_logged(&self) -> bool {
        matches!(self, Self::NotOpen(_) | Self::ReadOnly(_))
    }
}
