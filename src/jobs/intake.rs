//! The entrance for finished exchanges: a bounded queue for which no request waits, with a share for each account. The
//! proxy offers, the recorder takes.

use std::sync::Arc;

use super::base::Base;
use super::exchange::Exchange;
use super::fair_queue::{FairQueue, Slot};
use super::first_requests::FirstRequests;
use crate::history::{Link, Message, MessageKey};
use crate::tasks::Losses;
use crate::telemetry;

/// The most bytes in the queue, in KiB (16 MiB in all): bodies, and what hangs on them. An exchange counts as one
/// KiB at least, so this bounds their number too.
const KIB: usize = 16 * 1_024;

/// The most that one exchange counts: what a single account that floods the queue leaves free. So an exchange of any
/// size is accepted beside it.
const MAX_KIB: usize = KIB / 2;

/// What one message of an exchange holds beside its bytes in the body: itself, parsed, its link and its key, in the
/// request and on its chain, and the ids of its tool calls.
const MESSAGE_BYTES: usize =
    2 * (size_of::<Message>() + size_of::<Link>() + size_of::<MessageKey>()) + 64;

/// An exchange, and its place in the queue, which it keeps until it is recorded.
pub(super) type QueuedExchange = (Exchange, Place);

/// A place in the queue. It is free again when this is dropped.
pub(super) struct Place(Slot<Exchange>);

impl Place {
    /// What it takes of the queue.
    pub(super) fn kib(&self) -> usize {
        self.0.size
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!(telemetry::INTAKE_BYTES).decrement(bytes(self.0.size));
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn bytes(kib: usize) -> f64 {
    kib as f64 * 1_024.0
}

/// The receiving side of the queue. Without it, nothing is accepted any more.
#[derive(Debug)]
pub(super) struct Exchanges(FairQueue<Exchange>);

impl Exchanges {
    /// The next exchanges, one of each account in turn, at most `most`, or as many as reach `max_kib`. Waits until there is
    /// one; none only after [`Self::close`].
    pub(super) async fn recv(&self, most: usize, max_kib: usize) -> Vec<QueuedExchange> {
        let taken = self.0.recv(most, max_kib).await.into_iter();
        taken
            .map(|(exchange, slot)| (exchange, Place(slot)))
            .collect()
    }

    pub(super) fn close(&self) {
        self.0.close();
    }
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.close();
    }
}

/// The sending side of the queue.
#[derive(Clone, Debug)]
pub struct Intake {
    queue: FairQueue<Exchange>,
    first_requests: Arc<FirstRequests>,
    recording: Losses,
}

pub(super) fn channel(base: &Base) -> (Intake, Exchanges) {
    let queue = FairQueue::new(KIB);
    let exchanges = Exchanges(queue.clone());
    let intake = Intake {
        queue,
        first_requests: Arc::new(FirstRequests::new(&base.store)),
        recording: base.recording.clone(),
    };
    (intake, exchanges)
}

impl Intake {
    /// Whether every accepted exchange is recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.free() == KIB
    }

    /// Whether an exchange of up to a mebibyte would be accepted now, also from an account that holds all that is
    /// taken.
    #[cfg(feature = "testing")]
    pub fn has_room(&self) -> bool {
        self.queue.free() > KIB / 2 + 2_048
    }

    /// Reports the exchanges that are accepted and not recorded as lost, because the process ends.
    pub(super) fn report_losses(&self) {
        let lost = self.queue.count();
        metrics::counter!(telemetry::EXCHANGES_DROPPED).increment(lost);
        for _ in 0..lost {
            self.recording.lost(
                "the process stops before all exchanges are recorded; the next request of a conversation brings its \
                 messages again, and a longer server.drain_timeout gives more time",
            );
        }
        self.recording.log_rest();
    }

    /// Drops the first requests that wait for a second one, because something was forgotten.
    pub(super) fn drop_first_requests(&self) {
        self.first_requests.clear();
    }

    /// The exchanges to record now that `exchange` has come (see [`FirstRequests::admit`]).
    pub(super) fn admit(&self, exchange: Exchange) -> Vec<Exchange> {
        self.first_requests.admit(exchange)
    }

    /// Offers an exchange, unless it is a first request, which waits for a second one. Returns `false` if it
    /// was dropped because the queue is full or closed. Nothing is lost by that: the next request carries the
    /// same history.
    pub fn offer(&self, exchange: Exchange) -> bool {
        let due = self.admit(exchange);
        let last = due.len().saturating_sub(1);
        let due = due.into_iter().enumerate();
        due.fold(true, |all, (index, exchange)| {
            // What waited shares the body of the request that continues it.
            let body = if index == last {
                exchange.parsed.body().len()
            } else {
                0
            };
            self.enqueue(exchange, body) && all
        })
    }

    /// Puts an exchange, of whose body `body` bytes are its own, into the queue if there is room.
    fn enqueue(&self, exchange: Exchange, body: usize) -> bool {
        let kib = ((body + message_bytes(&exchange)) / 1_024 + 1).min(MAX_KIB);
        // Before it is in the queue: it may be recorded at once.
        metrics::gauge!(telemetry::INTAKE_BYTES).increment(bytes(kib));
        let offered = self.queue.push(exchange.account, kib, exchange);
        if !offered {
            metrics::gauge!(telemetry::INTAKE_BYTES).decrement(bytes(kib));
            metrics::counter!(telemetry::EXCHANGES_DROPPED).increment(1);
            self.recording.lost(
                "requests come faster than they can be recorded, and their exchanges are dropped; \
                 the next request of a conversation brings its messages again",
            );
        }
        offered
    }
}

/// The memory that `exchange` holds beside its body, in bytes.
fn message_bytes(exchange: &Exchange) -> usize {
    let aligned = exchange.alignment.as_ref();
    let messages = exchange.history.len() + aligned.map_or(0, |aligned| aligned.client.len());
    messages * MESSAGE_BYTES
}
