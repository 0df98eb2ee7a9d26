//! What an answer is marked by before its last byte goes to the client.
//!
//! An answer proves that a later request belongs to the conversation it was given in, as long as no other
//! conversation was given the same (see `history::align`). So every answer is written down in this process
//! at once, whatever becomes of the exchange: also where the request asked for no memory, where nothing is
//! recorded, and where the recorder has no room. Called by the flow of a memory request.

use std::ops::Range;
use std::sync::Arc;

use super::tee::AnswerMessage;
use crate::history::{History, ScopedHash};
use crate::memory::alignment::Origin;
use crate::store::cache::SnapshotCache;
use crate::wire::chat;

/// Texts longer than this, in bytes, are no summaries; and shorter ones a model may give to anybody, as it
/// greets, refuses and says goodbye. It is nearly all the evidence there is, so it takes more than a long
/// answer in a run does.
pub(super) const SUMMARY_BYTES: Range<usize> = 256..256 * 1024;

/// Where the answer to a request stands in its conversation.
#[derive(Clone, Debug)]
pub(super) struct AnswerPosition {
    cache: Arc<SnapshotCache>,
    /// What the client sent.
    client_history: Arc<History>,
    /// Where each of its messages was first said.
    origins: Vec<Origin>,
    /// The chain that memory knows it by.
    chain: Arc<History>,
}

impl AnswerPosition {
    pub(super) fn new(
        cache: &Arc<SnapshotCache>,
        client_history: &Arc<History>,
        origins: Vec<Origin>,
        chain: &Arc<History>,
    ) -> Self {
        Self {
            cache: Arc::clone(cache),
            client_history: Arc::clone(client_history),
            origins,
            chain: Arc::clone(chain),
        }
    }

    /// The same of a request that gets no memory: what it says passes here all the same.
    pub(super) fn without_memory(cache: &Arc<SnapshotCache>, client_history: History) -> Self {
        let origins = cache.track_passthrough(&client_history);
        let client_history = Arc::new(client_history);
        Self::new(cache, &client_history, origins, &client_history)
    }

    /// Marks what the model said, one message for each choice.
    pub(super) fn record_answers(&self, messages: &[AnswerMessage]) {
        for message in messages {
            if let Some(parsed) = chat::message(&message.json()) {
                self.cache
                    .track_answer(&self.client_history, &self.origins, &self.chain, &parsed);
            }
            if SUMMARY_BYTES.contains(&message.text().len()) {
                let mark = ScopedHash::from_text(&self.chain.root(), message.text());
                self.cache.track_reply(&self.chain, mark);
            }
        }
    }
}
