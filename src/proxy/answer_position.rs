//! Records what the model answered, before the last byte of the answer goes to the client.
//!
//! An answer proves later that a request belongs to the conversation that got it, unless another conversation
//! got the same one (`memory::alignment`). So every answer is marked in this process at once: also if the
//! request has no memory, if nothing is recorded, and if the recorder has no room. Called by `chat_completions`.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tee::AnswerMessage;
use crate::history::{AnswerHash, History, Pepper, Scope, without_thinking};
use crate::lookup::{AnswersInProgress, Sender, SnapshotCache};
use crate::memory::alignment::Origin;
use crate::store::Tombstones;
use crate::wire::chat;

/// The least length of a summary, in bytes. A shorter text may be one that a model gives in any conversation: a greeting,
/// a refusal, a goodbye. A summary is nearly the only evidence there is, so it must be longer than an answer that
/// counts within a run of messages.
pub(super) const MIN_SUMMARY_BYTES: usize = 256;

/// The length of a summary, in bytes.
const SUMMARY_BYTES: Range<usize> = MIN_SUMMARY_BYTES..256 * 1024;

/// Whether `text` has the length of a summary. Thinking does not count: clients leave it out or change it, so it is not
/// compared, and what is left may be "Done." or nothing.
pub(super) fn may_be_summary(text: &str) -> bool {
    SUMMARY_BYTES.contains(&without_thinking(text).len())
}

/// Where the answer to a request stands in its conversation.
#[derive(Debug)]
pub(super) struct AnswerPosition {
    cache: Arc<SnapshotCache>,
    pepper: Pepper,
    scope: Scope,
    /// Who sent the request; a stranger if the upstream had not accepted the tenant before it.
    sender: Sender,
    /// The history as the client sent it.
    client_history: Arc<History>,
    /// Where each of its messages was said first.
    origins: Vec<Origin>,
    /// The chain that memory knows it by.
    chain: Arc<History>,
    /// Those of its answers that may come back as summaries. `None` for a request that is not recorded.
    in_progress: Option<AnswersInProgress>,
    /// For a request of a forgotten conversation: the tombstones, and the receipt.
    forgotten: Option<(Tombstones, i64)>,
    /// The length of the first choice's text, if that may be a summary, and its hash.
    first_answer: Mutex<Option<(usize, AnswerHash)>>,
}

impl AnswerPosition {
    pub(super) fn new(
        (cache, pepper): (&Arc<SnapshotCache>, Pepper),
        (scope, sender): (&Scope, Sender),
        (client_history, origins): (&Arc<History>, Vec<Origin>),
        chain: &Arc<History>,
    ) -> Self {
        Self {
            cache: Arc::clone(cache),
            pepper,
            scope: scope.clone(),
            sender,
            client_history: Arc::clone(client_history),
            origins,
            chain: Arc::clone(chain),
            in_progress: None,
            forgotten: None,
            first_answer: Mutex::default(),
        }
    }

    /// Makes requests that bring one of its answers back as a summary wait until its exchange is recorded.
    pub(super) fn hold_answers(&mut self) {
        self.in_progress = Some(self.cache.answers_in_progress());
    }

    /// Keeps its answers from bringing back a forgotten conversation as summaries of it.
    pub(super) fn forget_answers(&mut self, tombstones: &Tombstones, receipt: i64) {
        self.forgotten = Some((tombstones.clone(), receipt));
    }

    /// The answers that are held, for the exchange that ends the hold when it is recorded.
    pub(super) fn in_progress(&self) -> Option<AnswersInProgress> {
        self.in_progress.clone()
    }

    /// The hash of the first choice's whole `text`, if that may be a summary. It was hashed when it was recorded, unless
    /// that failed.
    pub(super) fn answer_hash(&self, text: &str) -> Option<AnswerHash> {
        let recorded = *self.first_answer();
        match recorded {
            Some((bytes, hash)) if bytes == text.len() => Some(hash),
            _ => may_be_summary(text).then(|| self.hash(text)),
        }
    }

    fn hash(&self, text: &str) -> AnswerHash {
        AnswerHash::from_text(&self.pepper, &self.chain.root(), text)
    }

    fn first_answer(&self) -> MutexGuard<'_, Option<(usize, AnswerHash)>> {
        let guard = self.first_answer.lock();
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// The position for a request without memory. Its answer is tracked too.
    pub(super) fn without_memory(
        (cache, pepper): (&Arc<SnapshotCache>, Pepper),
        scope: &Scope,
        client_history: History,
        is_stranger: bool,
    ) -> Self {
        let sender = Sender {
            is_stranger,
            may_be_stored: false,
        };
        let origins = cache.track_passthrough(scope, &client_history, sender);
        let client_history = Arc::new(client_history);
        Self::new(
            (cache, pepper),
            (scope, sender),
            (&client_history, origins),
            &client_history,
        )
    }

    /// Marks what the model said, one message for each choice.
    pub(super) fn record_answers(&self, messages: &[&AnswerMessage]) {
        if self.sender.is_stranger && !messages.is_empty() {
            let (client, origins) = (&self.client_history, &self.origins);
            self.cache
                .track_accepted(&self.scope, client, origins, self.sender);
        }
        *self.first_answer() = None;
        for (place, message) in messages.iter().enumerate() {
            if let Some(parsed) = chat::message(&message.json(), &self.pepper) {
                let client = (&*self.client_history, self.origins.as_slice());
                self.cache
                    .track_answer(&self.scope, client, &self.chain, &parsed, self.sender);
            }
            for text in [message.text(), message.refusal()] {
                if may_be_summary(text) {
                    let hash = self.hash(text);
                    if place == 0 && text == message.text() {
                        *self.first_answer() = Some((text.len(), hash));
                    }
                    self.cache
                        .track_summary_answer(&self.scope, &self.chain, hash, self.sender);
                    if let Some((tombstones, receipt)) = &self.forgotten {
                        tombstones.add_answer(&self.scope, &hash.text, *receipt);
                    }
                    if let Some(in_progress) = &self.in_progress {
                        in_progress.add(hash.text);
                    }
                }
            }
        }
    }
}
