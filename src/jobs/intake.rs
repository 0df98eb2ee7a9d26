//! The door from the request path: bounded, never waited for.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::exchange::Exchange;

/// Exchanges waiting at most. The recorder needs about a millisecond for each.
const SLOTS: usize = 1_024;

/// Bodies waiting at most, in KiB (64 MiB in all).
const KIB: u32 = 64 * 1_024;

pub(super) type QueuedExchange = (Exchange, OwnedSemaphorePermit);

/// The sending side.
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
    /// Whether everything handed over was recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.available_permits() == KIB as usize
    }

    /// Hands an exchange over. `false` where it was dropped: the room is full or closing. Nothing
    /// is lost by that, the next request carries the same history.
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
