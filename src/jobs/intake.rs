//! The door from the request path: bounded, never waited for.

use std::sync::Arc;

use jiff::tz::TimeZone;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::history::{History, Mark, Scope};
use crate::memory::place::{Origin, Sighting};
use crate::store::Used;
use crate::wire::chat::Parsed;

/// Exchanges waiting at most. The recorder needs about a millisecond for each.
const SLOTS: usize = 1_024;

/// Bodies waiting at most, in KiB (64 MiB in all).
const KIB: u32 = 64 * 1_024;

/// One accepted and finished request.
#[derive(Debug)]
pub struct Exchange {
    /// Whose it is.
    pub scope: Scope,
    /// The conversation's key, where the client names one.
    pub thread_key: Option<String>,
    /// Whether a sub-agent asked: it does not write into the conversation it works for.
    pub child: bool,
    /// Whether the operator vouches for whose it is: only then may its conversations be told of each
    /// other.
    pub shared: bool,
    /// The request as received.
    pub parsed: Arc<Parsed>,
    /// The chain that memory knows it by.
    pub history: Arc<History>,
    /// How its messages stand on that, where it is not its own chain.
    pub seen: Option<Arc<Sighting>>,
    /// Where each message that the client sent was first said.
    pub origins: Vec<Origin>,
    /// What its first leading system message is known by.
    pub system: Option<Mark>,
    /// What the model answered, where that may come back in the place of what it was asked.
    pub answer: Option<Mark>,
    /// What it was sent with.
    pub used: Used,
    /// The model it asked for.
    pub model: String,
    /// Hash of the way it lent its memory, if any (see `BorrowedRoute::hash`).
    pub way: Option<[u8; 32]>,
    /// The zone its client lives in, where it said so.
    pub zone: Option<TimeZone>,
    /// When it came, in milliseconds since 1970.
    pub at_ms: i64,
    /// When its answer ended.
    pub answered_ms: i64,
}

pub(super) type Waiting = (Exchange, OwnedSemaphorePermit);

/// The sending side.
#[derive(Clone, Debug)]
pub struct Intake {
    slots: mpsc::Sender<Waiting>,
    bytes: Arc<Semaphore>,
}

pub(super) fn queue() -> (Intake, mpsc::Receiver<Waiting>) {
    let (slots, exchanges) = mpsc::channel(SLOTS);
    (
        Intake {
            slots,
            bytes: Arc::new(Semaphore::new(KIB as usize)),
        },
        exchanges,
    )
}

impl Exchange {
    /// The message of the request that stands at `place` of the chain; `None` where it is not sent.
    pub(super) fn sent(&self, place: usize) -> Option<usize> {
        match &self.seen {
            None => Some(place),
            Some(seen) => seen.view.sent(place),
        }
    }

    /// The message of the request that stands at `place` of the chain; `None` where it is not sent, or
    /// is not what it first was.
    pub(super) fn words(&self, place: usize) -> Option<usize> {
        self.sent(place).filter(|_| !self.is_degraded(place))
    }

    /// Whether the message at `place` of the chain is not what it first was: a result that came back
    /// as a placeholder.
    fn is_degraded(&self, place: usize) -> bool {
        let turns = self.history.turns();
        let before = match place.checked_sub(1) {
            Some(before) => turns[before].link,
            None => self.history.root(),
        };
        turns[place].link != before.next(&turns[place].message.fingerprint)
    }
}

impl Intake {
    /// Whether everything handed over was recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.available_permits() == KIB as usize
    }

    /// Hands an exchange over. `false` where it was dropped: the room is full or closing. Nothing
    /// is lost by that, the next request carries the same history.
    pub fn offer(&self, exchange: Exchange) -> bool {
        let size = u32::try_from(exchange.parsed.body().len() / 1_024 + 1)
            .unwrap_or(KIB)
            .min(KIB);
        let offered = Arc::clone(&self.bytes)
            .try_acquire_many_owned(size)
            .ok()
            .is_some_and(|permit| self.slots.try_send((exchange, permit)).is_ok());
        if !offered {
            metrics::counter!(crate::telemetry::EXCHANGES_DROPPED).increment(1);
        }
        offered
    }
}
