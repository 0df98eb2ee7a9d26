//! One accepted and finished request, as the proxy hands it to the recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::tz::TimeZone;

use crate::history::{AnswerHash, History, Scope, ScopedHash};
use crate::lookup::AnswersInProgress;
use crate::memory::alignment::{Alignment, Origin};
use crate::memory::{Node, PromptGrowth, message_tokens, record};
use crate::store::{SentWith, StoreError};
use crate::telemetry;
use crate::tokens::TokenCounter;
use crate::wire;

/// One accepted and finished request.
#[derive(Debug)]
pub struct Exchange {
    /// The owner.
    pub scope: Scope,
    /// The account whose share of the queue it takes (see [`crate::store::TenantAccounts`]).
    pub account: [u8; 32],
    /// The thread key, if the client names one.
    pub thread_key: Option<String>,
    /// Whether a sub-agent sent it. A sub-agent does not write into the conversation that it works
    /// for.
    pub sub_agent: bool,
    /// Whether its conversation goes without memory, for comparison (`audit.holdout`). It is recorded, so that
    /// its later requests are recognised, but nothing of it is observed.
    pub held_out: bool,
    /// Whether the operator guarantees who the user is. Only then may the user's conversations
    /// share memory.
    pub allows_peer_memory: bool,
    /// The request as received.
    pub parsed: Arc<wire::Request>,
    /// The chain under which memory records it.
    pub history: Arc<History>,
    /// Where its messages stand on `history`, if that is not the request's own chain.
    pub alignment: Option<Arc<Alignment>>,
    /// Where each message of the request was first sent.
    pub origins: Vec<Origin>,
    /// The hash of its first leading system message.
    pub system: Option<ScopedHash>,
    /// The hash of the model's answer, if the client may send it back in place of the messages of this
    /// request (a summary).
    pub answer: Option<AnswerHash>,
    /// Makes a request that brings the answer back wait until this exchange is recorded.
    pub answers_in_progress: Option<AnswersInProgress>,
    /// The snapshot and placement it was sent with.
    pub sent_with: SentWith,
    /// The model it named.
    pub model: String,
    /// How much the provider's count of the prompt grew since the conversation's previous request, if the prompt only
    /// grew.
    pub growth: Option<PromptGrowth>,
    /// The hash of the route that its jobs may borrow, if any (see
    /// [`crate::llm::UpstreamRoute::hash`]).
    pub route: Option<[u8; 32]>,
    /// The time zone of its client, if the client names one.
    pub zone: Option<TimeZone>,
    /// When it arrived, in milliseconds since 1970.
    pub at_ms: i64,
    /// When its answer ended, in milliseconds since 1970.
    pub answered_ms: i64,
}

/// The most bytes of new messages that are counted where the recorder runs. That takes less than half a
/// millisecond; the way to another thread and back would cost more than a short message.
const FEW_BYTES: usize = 8 * 1_024;

impl Exchange {
    /// The IANA name of the client's time zone, as the store keeps it.
    pub(super) fn zone_name(&self) -> Option<String> {
        let zone = self.zone.as_ref()?;
        zone.iana_name().map(str::to_owned)
    }

    /// The index in the request of the message at `place` of the chain; `None` if it was not sent.
    pub(super) fn request_index(&self, place: usize) -> Option<usize> {
        match &self.alignment {
            None => Some(place),
            Some(alignment) => alignment.positions.request_index(place),
        }
    }

    /// The index in the request of the message at `place` of the chain; `None` if it was not sent,
    /// or not with its original text.
    pub(super) fn original_index(&self, place: usize) -> Option<usize> {
        self.request_index(place)
            .filter(|_| !self.is_degraded(place))
    }

    /// Whether the message at `place` of the chain came back changed: a tool result that the client
    /// replaced by a placeholder.
    fn is_degraded(&self, place: usize) -> bool {
        let messages = self.history.messages();
        let previous = match place.checked_sub(1) {
            Some(previous_place) => messages[previous_place].link,
            None => self.history.root(),
        };
        messages[place].link != previous.next(&messages[place].message.fingerprint)
    }

    /// Counts the tokens of the messages after the first `known_count`, off the runtime's workers
    /// unless there are few.
    /// The last of those first messages was answered at `answered_ms`.
    ///
    /// # Errors
    /// [`StoreError::Forgotten`] if a message on the chain is not in the request.
    /// [`StoreError::Unavailable`] if the computation panicked. In both cases the exchange is not
    /// recorded, and the next request offers it again.
    pub(super) async fn measure_new_messages(
        &self,
        counter: &Arc<dyn TokenCounter>,
        known_count: usize,
        answered_ms: Option<i64>,
    ) -> Result<Vec<Node>, StoreError> {
        let indices: Vec<Option<usize>> = (known_count..self.history.len())
            .map(|place| self.request_index(place))
            .collect();
        if indices.iter().any(Option::is_none) {
            // The messages in between were deleted after the request was aligned.
            return Err(StoreError::Forgotten);
        }
        let parsed = Arc::clone(&self.parsed);
        let counter = Arc::clone(counter);
        let model = self.model.clone();
        let bytes_to_count: usize = indices
            .iter()
            .flatten()
            .filter_map(|index| parsed.messages().get(*index))
            .map(|message| message.span.len())
            .sum();
        let count_all = move || {
            let tally = Tally::new(&*counter);
            let count = |index: Option<usize>| {
                let message = index.and_then(|index| parsed.plain_text(index));
                message.map_or(0, |message| {
                    message_tokens::count_message(&message, &model, &tally)
                })
            };
            let tokens: Vec<u32> = indices.into_iter().map(count).collect();
            (tokens, tally.counted_bytes())
        };
        let (tokens, bytes) = if bytes_to_count <= FEW_BYTES {
            count_all()
        } else {
            let counted = tokio::task::spawn_blocking(count_all).await;
            counted.map_err(|_| {
                StoreError::Unavailable(
                    "a fault in the program: tokens could not be counted".to_owned(),
                )
            })?
        };
        metrics::counter!(telemetry::TOKENIZED_BYTES).increment(bytes);
        Ok(record::new_nodes(
            &self.history,
            known_count,
            &tokens,
            self.at_ms,
            answered_ms,
        ))
    }
}

/// Counts the bytes of this one use of a counter. Workers use the same counter at the same time.
struct Tally<'a> {
    counter: &'a dyn TokenCounter,
    bytes: AtomicU64,
}

impl<'a> Tally<'a> {
    fn new(counter: &'a dyn TokenCounter) -> Self {
        Self {
            counter,
            bytes: AtomicU64::new(0),
        }
    }
}

impl TokenCounter for Tally<'_> {
    fn count(&self, text: &str) -> u32 {
        self.bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        self.counter.count(text)
    }

    fn counted_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
