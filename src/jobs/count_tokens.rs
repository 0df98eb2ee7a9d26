//! What new messages weigh: counted once, off the runtime's workers, and booked as tokenised.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Exchange, Shop};
use crate::memory::{Node, message_tokens, record};
use crate::store::StoreError;
use crate::telemetry;
use crate::tokens::TokenCounter;

/// The messages of `exchange` beyond the first `known`, the last of which was answered at `answered_ms`.
///
/// # Errors
/// Where the thread that counts died: the exchange is then not recorded, and comes again.
pub(super) async fn measure_new_messages(
    shop: &Shop,
    exchange: &Exchange,
    known_count: usize,
    answered_ms: Option<i64>,
) -> Result<Vec<Node>, StoreError> {
    let indices: Vec<Option<usize>> = (known_count..exchange.history.len())
        .map(|place| exchange.request_index(place))
        .collect();
    if indices.iter().any(Option::is_none) {
        // It stands on what was forgotten meanwhile.
        return Err(StoreError::Forgotten);
    }
    let parsed = Arc::clone(&exchange.parsed);
    let counter = Arc::clone(&shop.counter);
    let model = exchange.model.clone();
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
        &exchange.history,
        known_count,
        &tokens,
        exchange.at_ms,
        answered_ms,
    ))
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
