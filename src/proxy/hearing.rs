//! What an answer is marked by before its last byte goes to the client.
//!
//! An answer proves that a later request belongs to the conversation it was given in, as long as no other
//! conversation was given the same (see `history::align`). So every answer is written down in this process
//! at once, whatever becomes of the exchange: also where the request asked for no memory, where nothing is
//! recorded, and where the recorder has no room. Called by the flow of a memory request.

use std::ops::Range;
use std::sync::Arc;

use super::tee::Said;
use crate::history::{History, Mark};
use crate::memory::place::Origin;
use crate::store::recall::Recall;
use crate::wire::chat;

/// Texts longer than this, in bytes, are no summaries; and shorter ones a model may give to anybody, as it
/// greets, refuses and says goodbye. It is nearly all the evidence there is, so it takes more than a long
/// answer in a run does.
pub(super) const SUMMARY: Range<usize> = 256..256 * 1024;

/// Where the answer to a request stands in its conversation.
#[derive(Clone, Debug)]
pub(super) struct AnswerPlace {
    recall: Arc<Recall>,
    /// What the client sent.
    client: Arc<History>,
    /// Where each of its messages was first said.
    origins: Vec<Origin>,
    /// The chain that memory knows it by.
    chain: Arc<History>,
}

impl AnswerPlace {
    pub(super) fn new(
        recall: &Arc<Recall>,
        client: &Arc<History>,
        origins: Vec<Origin>,
        chain: &Arc<History>,
    ) -> Self {
        Self {
            recall: Arc::clone(recall),
            client: Arc::clone(client),
            origins,
            chain: Arc::clone(chain),
        }
    }

    /// The same of a request that gets no memory: what it says passes here all the same.
    pub(super) fn overheard(recall: &Arc<Recall>, client: History) -> Self {
        let origins = recall.overhear(&client);
        let client = Arc::new(client);
        Self::new(recall, &client, origins, &client)
    }

    /// Marks what the model said, one message for each choice.
    pub(super) fn mark(&self, said: &[Said]) {
        for said in said {
            if let Some(message) = chat::message(&said.json()) {
                self.recall
                    .give(&self.client, &self.origins, &self.chain, &message);
            }
            if SUMMARY.contains(&said.text().len()) {
                let mark = Mark::of_text(&self.chain.root(), said.text());
                self.recall.reply(&self.chain, mark);
            }
        }
    }
}
