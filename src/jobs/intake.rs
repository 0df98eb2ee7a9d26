//! The entrance for finished exchanges: a bounded queue for which no request waits. The proxy
//! offers, the recorder takes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::exchange::Exchange;

/// The most exchanges in the queue. The recorder needs about a millisecond for each.
const SLOTS: usize = 1_024;

/// The most bytes of bodies in the queue, in KiB (64 MiB in all).
const KIB: u32 = 64 * 1_024;

pub(super) type QueuedExchange = (Exchange, OwnedSemaphorePermit);

/// The sending side of the queue.
#[derive(Clone, Debug)]
pub struct Intake {
    slots: mpsc::Sender<QueuedExchange>,
    bytes: Arc<Semaphore>,
}

pub(super) fn channel() -> (Intake, mpsc::Receiver<QueuedExchange>) {
    let (slots, exchanges) = mpsc::channel(SLOTS);
    (
        Intake {
            slots,
            bytes: Arc::new(Semaphore::new(KIB as usize)),
        },
        exchanges,
    )
}

impl Intake {
    /// Whether every accepted exchange is recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.available_permits() == KIB as usize
    }

    /// Offers an exchange. Returns `false` if it was dropped because the queue is full or closed.
    /// Nothing is lost by that: the next request carries the same history.
    pub fn offer(&self, exchange: Exchange) -> bool {
        let kib = u32::try_from(exchange.parsed.body().len() / 1_024 + 1)
            .unwrap_or(KIB)
            .min(KIB);
        let offered = Arc::clone(&self.bytes)
            .try_acquire_many_owned(kib)
            .ok()
            .is_some_and(|permit| self.slots.try_send((exchange, permit)).is_ok());
        if !offered {
            metrics::counter!(crate::telemetry::EXCHANGES_DROPPED).increment(1);
        }
        offered
    }
}
