//! Takes what waits in the intake and records it in batches: one transaction, and one COMMIT, for
//! many exchanges. Called by the recorder's loop only.
//!
//! Exchanges of one batch are prepared before the first of them is written. So a batch ends before an
//! exchange for which it matters what an earlier one of the batch leaves behind: one of the same
//! conversation, with the same thread key, or with the same words in a conversation of its own.

use std::collections::HashSet;

use super::record::PreparedExchange;
use super::state::Recorder;
use crate::history::{Link, Scope, ScopedHash};
use crate::jobs::exchange::Exchange;
use crate::jobs::intake::QueuedExchange;
use crate::steps::end_step;
use crate::store::StoreError;
use crate::tasks::Losses;
use crate::telemetry;

/// The most exchanges in one batch. With as many, a COMMIT costs each of them next to nothing, and
/// what an exchange leaves for the next request of its conversation waits some milliseconds.
const MAX_BATCH: usize = 128;

/// The most KiB in one batch; the exchange that reaches it is the last. Before a batch is written, its tokens are counted, a
/// megabyte in a quarter of a second or more: so long the exchanges of other accounts wait.
const MAX_BATCH_KIB: usize = 1_024;

/// How many exchanges, and of how many KiB, may still be added to those that wait for a batch; `None` if it is full.
pub(super) fn room_beside(waiting: &[QueuedExchange]) -> Option<(usize, usize)> {
    let kib: usize = waiting.iter().map(|(_, place)| place.kib()).sum();
    let (most, max_kib) = (
        MAX_BATCH.saturating_sub(waiting.len()),
        MAX_BATCH_KIB.saturating_sub(kib),
    );
    (most > 0 && max_kib > 0).then_some((most, max_kib))
}

/// Exchanges that are prepared and not written, and what the next one is compared with.
#[derive(Default)]
struct Batch {
    /// Each with its place in the intake, which it keeps until it is done.
    entries: Vec<(QueuedExchange, PreparedExchange)>,
    /// The first links of their chains. Chains with the same beginning share a track.
    first_links: HashSet<Link>,
    thread_keys: HashSet<(Scope, String)>,
    /// The contents of their new messages.
    contents: HashSet<ScopedHash>,
}

fn first_link(exchange: &Exchange) -> Option<Link> {
    exchange
        .history
        .messages()
        .first()
        .map(|chained| chained.link)
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether `exchange` belongs to a conversation of the batch, as far as one can tell before it is
    /// prepared. `key` is its thread key, if that may identify a conversation.
    fn continues(&self, exchange: &Exchange, key: Option<&str>) -> bool {
        let has_key = |key: &str| {
            self.thread_keys
                .contains(&(exchange.scope.clone(), key.to_owned()))
        };
        first_link(exchange).is_some_and(|link| self.first_links.contains(&link))
            || key.is_some_and(has_key)
    }

    /// Whether `prepared`, which starts a chain, says words of an exchange of the batch. It may then
    /// be a part of that conversation, which the cache cannot tell yet.
    fn repeats(&self, prepared: &PreparedExchange) -> bool {
        let mut marks = prepared.record.lookup_entries.marks.iter();
        let starts_chain = prepared.track.nodes.is_empty();
        starts_chain && marks.any(|marks| self.contents.contains(&marks.item.content))
    }

    fn push(&mut self, queued: QueuedExchange, prepared: PreparedExchange, key: Option<String>) {
        let exchange = &queued.0;
        self.first_links.extend(first_link(exchange));
        self.thread_keys
            .extend(key.map(|key| (exchange.scope.clone(), key)));
        let marks = prepared.record.lookup_entries.marks.iter();
        self.contents.extend(marks.map(|marks| marks.item.content));
        self.entries.push((queued, prepared));
    }
}

/// Counts the exchanges of a batch as lost if a fault in the program ends the recorder before all are written.
struct LostByFault {
    recording: Losses,
    count: u64,
}

impl Drop for LostByFault {
    fn drop(&mut self) {
        if std::thread::panicking() {
            metrics::counter!(telemetry::EXCHANGES_DROPPED).increment(self.count);
            self.recording.lost(
                "a fault in the program ended the recorder, and exchanges may not be recorded",
            );
        }
    }
}

impl Recorder {
    /// Records what was taken from the intake, in its order.
    pub(in crate::jobs) async fn handle_exchanges(&mut self, waiting: Vec<QueuedExchange>) {
        let _lost = LostByFault {
            recording: self.base.recording.clone(),
            count: waiting.len() as u64,
        };
        let mut batch = Batch::default();
        for queued in waiting {
            end_step();
            self.add_to_batch(&mut batch, queued).await;
        }
        self.record_batch(batch).await;
    }

    /// The thread key of `exchange`, unless many conversations share it: then it says nothing of any.
    fn identifying_key(&self, exchange: &Exchange) -> Option<String> {
        let key = exchange.thread_key.clone();
        let cache = &self.base.cache;
        key.filter(|key| !cache.is_shared_thread_key(&exchange.scope, key))
    }

    /// Prepares an exchange and adds it to `batch`, which is written before if that matters.
    async fn add_to_batch(&mut self, batch: &mut Batch, queued: QueuedExchange) {
        let exchange = &queued.0;
        let overflow = exchange.sent_with.snapshot;
        if self.shared.pending_overflows.get(overflow).is_some() {
            // What was observed while a client waited has a transaction of its own.
            self.record_batch(std::mem::take(batch)).await;
            self.record_alone(queued.0).await;
            return;
        }
        let key = self.identifying_key(exchange);
        // What is written does not wait until a large exchange is counted.
        if queued.1.kib() >= MAX_BATCH_KIB || batch.continues(exchange, key.as_deref()) {
            self.record_batch(std::mem::take(batch)).await;
        }
        let mut prepared = self.prepare(exchange).await;
        if !batch.is_empty() && prepared.as_ref().is_ok_and(|new| batch.repeats(new)) {
            self.record_batch(std::mem::take(batch)).await;
            prepared = self.prepare(exchange).await;
        }
        if let Ok(prepared) = prepared {
            batch.push(queued, prepared, key);
        } else {
            // Its track was of a chain that the store no longer has, or the store has failed.
            self.record_batch(std::mem::take(batch)).await;
            self.record_alone(queued.0).await;
        }
    }

    /// Writes a batch, lets requests know of it, and draws the consequences.
    async fn record_batch(&mut self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let entries = batch.entries.iter();
        let records = entries
            .map(|((exchange, _), prepared)| (exchange.scope.clone(), prepared.record.clone()))
            .collect();
        let results = match self.base.store.record_batch(records).await {
            Ok(results) => results,
            Err(error) => {
                // Nothing of it is stored. The tracks are dropped, so the next request of each
                // conversation loads its own from the store.
                self.base.cache.set_degraded(true);
                for _ in &batch.entries {
                    self.report_loss(&error);
                }
                return;
            }
        };
        let mut recorded = Vec::with_capacity(batch.entries.len());
        for ((queued, prepared), result) in batch.entries.into_iter().zip(results) {
            end_step();
            let outcome = result.map(|stored| self.publish(&queued.0, prepared, stored));
            recorded.push((queued, outcome));
        }
        for ((exchange, _permit), outcome) in recorded {
            end_step();
            match outcome {
                Ok(outcome) => self.follow_up(outcome, &exchange).await,
                // Its track was of a chain that the store no longer has.
                Err(StoreError::Forgotten) => self.record_alone(exchange).await,
                Err(error) => self.report_failure(&error),
            }
        }
    }
}
