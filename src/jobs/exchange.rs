//! One accepted and finished request, as the proxy hands it to the recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::tz::TimeZone;

use crate::history::{History, Scope, ScopedHash};
use crate::memory::alignment::{Alignment, Origin};
use crate::memory::{Node, message_tokens, record};
use crate::store::{SentWith, StoreError};
use crate::telemetry;
use crate::tokens::TokenCounter;
use crate::wire::chat::ChatRequest;

/// One accepted and finished request.
#[derive(Debug)]
pub struct Exchange {
    /// Whose it is.
    pub scope: Scope,
    /// The conversation's key, where the client names one.
    pub thread_key: Option<String>,
    /// Whether a sub-agent asked: it does not write into the conversation it works for.
    pub sub_agent: bool,
    /// Whether the operator vouches for whose it is: only then may its conversations be told of each
    /// other.
    pub allows_peer_memory: bool,
    /// The request as received.
    pub parsed: Arc<ChatRequest>,
    /// The chain that memory knows it by.
    pub history: Arc<History>,
    /// How its messages stand on that, where it is not its own chain.
    pub alignment: Option<Arc<Alignment>>,
    /// Where each message that the client sent was first said.
    pub origins: Vec<Origin>,
    /// What its first leading system message is known by.
    pub system: Option<ScopedHash>,
    /// What the model answered, where that may come back in the place of what it was asked.
    pub answer: Option<ScopedHash>,
    /// What it was sent with.
    pub sent_with: SentWith,
    /// The model it asked for.
    pub model: String,
    /// Hash of the way it lent its memory, if any (see `BorrowedRoute::hash`).
    pub route: Option<[u8; 32]>,
    /// The zone its client lives in, where it said so.
    pub zone: Option<TimeZone>,
    /// When it came, in milliseconds since 1970.
    pub at_ms: i64,
    /// When its answer ended.
    pub answered_ms: i64,
}

impl Exchange {
    /// The IANA name of its client's zone, under which the store keeps it.
    pub(super) fn zone_name(&self) -> Option<String> {
        let zone = self.zone.as_ref()?;
        zone.iana_name().map(str::to_owned)
    }

    /// The message of the request that stands at `place` of the chain; `None` where it is not sent.
    pub(super) fn request_index(&self, place: usize) -> Option<usize> {
        match &self.alignment {
            None => Some(place),
            Some(alignment) => alignment.positions.request_index(place),
        }
    }

    /// The message of the request that stands at `place` of the chain; `None` where it is not sent, or
    /// is not what it first was.
    pub(super) fn original_index(&self, place: usize) -> Option<usize> {
        self.request_index(place)
            .filter(|_| !self.is_degraded(place))
    }

    /// Whether the message at `place` of the chain is not what it first was: a result that came back
    /// as a placeholder.
    fn is_degraded(&self, place: usize) -> bool {
        let turns = self.history.turns();
        let previous = match place.checked_sub(1) {
            Some(previous_place) => turns[previous_place].link,
            None => self.history.root(),
        };
        turns[place].link != previous.next(&turns[place].message.fingerprint)
    }

    /// The messages of `exchange` beyond the first `known`, the last of which was answered at `answered_ms`.
    ///
    /// # Errors
    /// Where the thread that counts died: the exchange is then not recorded, and comes again.
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
            // It stands on what was forgotten meanwhile.
            return Err(StoreError::Forgotten);
        }
        let parsed = Arc::clone(&self.parsed);
        let counter = Arc::clone(counter);
        let model = self.model.clone();
        let (tokens, bytes) = tokio::task::spawn_blocking(move || {
            let tally = Tally::new(&*counter);
            let count = |index: Option<usize>| {
                let message = index.and_then(|index| parsed.plain_text(index));
                message.map_or(0, |message| {
                    message_tokens::count_message(&message, &model, &tally)
                })
            };
            let tokens: Vec<u32> = indices.into_iter().map(count).collect();
            (tokens, tally.counted_bytes())
        })
        .await
        .map_err(|_| StoreError::Unavailable("the thread that counts tokens died".to_owned()))?;
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

/// Sums up what goes through a counter here; workers use the same one at the same time.
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
