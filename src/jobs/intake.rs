//! The entrance for finished exchanges: a bounded queue for which no request waits. The proxy
//! offers, the recorder takes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::base::Base;
use super::exchange::Exchange;
use super::first_requests::FirstRequests;
use crate::history::{Link, Message};
use crate::tasks::Losses;

/// The most exchanges in the queue: eight batches of the recorder.
const SLOTS: usize = 1_024;

/// The most bytes in the queue, in KiB (16 MiB in all): bodies, and what hangs on them.
const KIB: u32 = 16 * 1_024;

/// What one message of an exchange holds beside its bytes in the body: itself, parsed, in the request and on
/// its chain, and the ids of its tool calls.
const MESSAGE_BYTES: usize = 2 * size_of::<Message>() + size_of::<Link>() + 64;

/// An exchange, and its place in the queue, which it keeps until it is recorded.
pub(super) type QueuedExchange = (Exchange, OwnedSemaphorePermit);

/// The sending side of the queue.
#[derive(Clone, Debug)]
pub struct Intake {
    slots: mpsc::Sender<QueuedExchange>,
    bytes: Arc<Semaphore>,
    first_requests: Arc<FirstRequests>,
    recording: Losses,
}

pub(super) fn channel(base: &Base) -> (Intake, mpsc::Receiver<QueuedExchange>) {
    let (slots, exchanges) = mpsc::channel(SLOTS);
    (
        Intake {
            slots,
            bytes: Arc::new(Semaphore::new(KIB as usize)),
            first_requests: Arc::new(FirstRequests::new(&base.store)),
            recording: base.recording.clone(),
        },
        exchanges,
    )
}

impl Intake {
    /// Whether every accepted exchange is recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.available_permits() == KIB as usize
    }

    /// Whether an exchange of up to a mebibyte would be accepted now.
    #[cfg(feature = "testing")]
    pub fn has_room(&self) -> bool {
        self.slots.capacity() > 0 && self.bytes.available_permits() > 2_048
    }

    /// The exchanges to record now that `exchange` has come (see [`FirstRequests::admit`]).
    pub(super) fn admit(&self, exchange: Exchange) -> Vec<Exchange> {
        self.first_requests.admit(exchange)
    }

    /// Offers an exchange, unless it is a first request, which waits for a second one. Returns `false` if it
    /// was dropped because the queue is full or closed. Nothing is lost by that: the next request carries the
    /// same history.
    pub fn offer(&self, exchange: Exchange) -> bool {
        let mut all = true;
        for due in self.admit(exchange) {
            all &= self.enqueue(due);
        }
        all
    }

    fn enqueue(&self, exchange: Exchange) -> bool {
        let kib = u32::try_from(bytes_held(&exchange) / 1_024 + 1)
            .unwrap_or(KIB)
            .min(KIB);
        let offered = Arc::clone(&self.bytes)
            .try_acquire_many_owned(kib)
            .ok()
            .is_some_and(|permit| self.slots.try_send((exchange, permit)).is_ok());
        if !offered {
            metrics::counter!(crate::telemetry::EXCHANGES_DROPPED).increment(1);
            self.recording.lost(
                "requests come faster than they can be recorded, and their exchanges are dropped; \
                 the next request of a conversation brings its messages again",
            );
        }
        offered
    }
}

/// The memory that `exchange` holds, in bytes.
fn bytes_held(exchange: &Exchange) -> usize {
    let aligned = exchange.alignment.as_ref();
    let messages = exchange.history.len() + aligned.map_or(0, |aligned| aligned.client.len());
    exchange.parsed.body().len() + messages * MESSAGE_BYTES
}
