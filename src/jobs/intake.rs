//! The door from the request path: bounded, never waited for.

use std::sync::Arc;

use jiff::tz::TimeZone;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::history::{History, Scope, ScopedHash};
use crate::memory::alignment::{Alignment, Origin};
use crate::store::SentWith;
use crate::wire::chat::ChatRequest;

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
