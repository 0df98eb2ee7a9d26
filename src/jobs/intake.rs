//! The entrance for finished exchanges: a bounded queue for which no request waits. The proxy
//! offers, the recorder takes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::base::Base;
use super::exchange::Exchange;
use super::first_requests::FirstRequests;
use crate::history::{Link, Message};
use crate::tasks::Losses;
use crate::telemetry;

/// The most bytes in the queue, in KiB (16 MiB in all): bodies, and what hangs on them. An exchange counts as one
/// KiB at least, so this bounds their number too.
const KIB: u32 = 16 * 1_024;

/// What one message of an exchange holds beside its bytes in the body: itself, parsed, in the request and on
/// its chain, and the ids of its tool calls.
const MESSAGE_BYTES: usize = 2 * size_of::<Message>() + size_of::<Link>() + 64;

/// An exchange, and its place in the queue, which it keeps until it is recorded.
pub(super) type QueuedExchange = (Exchange, Place);

/// A place in the queue. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place(OwnedSemaphorePermit);

impl Place {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        let place = Self(permit);
        metrics::gauge!(telemetry::INTAKE_BYTES).increment(place.bytes());
        place
    }

    fn bytes(&self) -> f64 {
        f64::from(u32::try_from(self.0.num_permits()).unwrap_or(KIB)) * 1_024.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!(telemetry::INTAKE_BYTES).decrement(self.bytes());
    }
}

/// The sending side of the queue.
#[derive(Clone, Debug)]
pub struct Intake {
    slots: mpsc::Sender<QueuedExchange>,
    bytes: Arc<Semaphore>,
    first_requests: Arc<FirstRequests>,
    recording: Losses,
}

pub(super) fn channel(base: &Base) -> (Intake, mpsc::Receiver<QueuedExchange>) {
    let (slots, exchanges) = mpsc::channel(KIB as usize);
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
        self.bytes.available_permits() > 2_048
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
        let kib = u32::try_from((body + message_bytes(&exchange)) / 1_024 + 1)
            .unwrap_or(KIB)
            .min(KIB);
        let offered = Arc::clone(&self.bytes)
            .try_acquire_many_owned(kib)
            .ok()
            .is_some_and(|permit| self.slots.try_send((exchange, Place::new(permit))).is_ok());
        if !offered {
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
