//! First requests wait: a conversation is recorded when its second request comes.
//!
//! Most requests that pass a gateway are never continued. Nothing can follow from them: what a request
//! confirms is the request before it. So an accepted request of which nothing is known, and that was sent as
//! the client wrote it, waits here with its hashes. The second request carries all its words again, and both
//! are recorded. A process that ends forgets what waits; the next request of such a conversation counts as
//! its first one, and is sent as it would have been. Decides before the queue of the recorder, so that a flood of
//! such requests takes no place in it. Owned by [`super::intake`].

use std::sync::{Arc, Mutex, PoisonError};

use foldhash::{HashMap, HashSet};
use jiff::tz::TimeZone;

use super::exchange::Exchange;
use crate::history::{AnswerHash, Link, ScopedHash};
use crate::lookup::anchors;
use crate::store::{LookupKeys, SentWith, Store};
use crate::telemetry;

/// What waits may use this many bytes. It is kept in two halves; when the younger one is full, the older one
/// is dropped. 16 MiB are some 20,000 to 40,000 requests.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The size of an entry without its text: the entry itself, its key, and the space that the table keeps free.
const ENTRY_BYTES: usize =
    size_of::<FirstRequest>() + 2 * (size_of::<Key>() + size_of::<Box<FirstRequest>>());

/// The size of a mark, with the space that the table keeps free.
const MARK_BYTES: usize = 2 * size_of::<ScopedHash>();

type Key = ([u8; 32], Link);

/// A request that waits: what its successor does not carry.
#[derive(Debug)]
struct FirstRequest {
    thread_key: Option<String>,
    sub_agent: bool,
    allows_peer_memory: bool,
    answer: Option<AnswerHash>,
    sent_with: SentWith,
    model: String,
    route: Option<[u8; 32]>,
    zone: Option<TimeZone>,
    at_ms: i64,
    answered_ms: i64,
}

impl FirstRequest {
    fn new(exchange: &Exchange) -> Self {
        Self {
            thread_key: exchange.thread_key.clone(),
            sub_agent: exchange.sub_agent,
            allows_peer_memory: exchange.allows_peer_memory,
            answer: exchange.answer,
            sent_with: exchange.sent_with.clone(),
            model: exchange.model.clone(),
            route: exchange.route,
            zone: exchange.zone.clone(),
            at_ms: exchange.at_ms,
            answered_ms: exchange.answered_ms,
        }
    }

    /// The exchange that waited: the first `len` messages of its successor `next`.
    fn into_exchange(self, next: &Exchange, len: usize) -> Exchange {
        Exchange {
            scope: next.scope.clone(),
            account: next.account,
            thread_key: self.thread_key,
            sub_agent: self.sub_agent,
            held_out: next.held_out,
            allows_peer_memory: self.allows_peer_memory,
            parsed: Arc::clone(&next.parsed),
            history: Arc::new(next.history.prefix(len)),
            alignment: None,
            origins: next.origins.iter().take(len).copied().collect(),
            system: next.system,
            answer: self.answer,
            answers_in_progress: None,
            sent_with: self.sent_with,
            model: self.model,
            growth: None,
            route: self.route,
            zone: self.zone,
            at_ms: self.at_ms,
            answered_ms: self.answered_ms,
        }
    }

    fn bytes(&self) -> usize {
        let key = self.thread_key.as_ref().map_or(0, String::len);
        ENTRY_BYTES + key + self.model.len()
    }
}

#[derive(Debug, Default)]
struct Generation {
    /// Boxed, because a table that grows moves its entries.
    requests: HashMap<Key, Box<FirstRequest>>,
    /// The anchors of the requests that waited here: by these a request is recognised that carries some of
    /// their messages without continuing them.
    marks: HashSet<ScopedHash>,
    bytes: usize,
}

/// The requests that wait for a second one.
#[derive(Debug)]
pub(super) struct FirstRequests {
    store: Arc<dyn Store>,
    waiting: Mutex<Waiting>,
}

impl FirstRequests {
    pub(super) fn new(store: &Arc<dyn Store>) -> Self {
        Self {
            store: Arc::clone(store),
            waiting: Mutex::default(),
        }
    }

    /// The exchanges to record now that `exchange` has come, in order: none if it waits; before it, the one
    /// that it continues.
    pub(super) fn admit(&self, exchange: Exchange) -> Vec<Exchange> {
        // No code panics between two changes that belong together.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let due = waiting.admit(exchange, &*self.store);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let count = waiting.len() as f64;
        metrics::gauge!(telemetry::EXCHANGES_WAITING).set(count);
        due
    }

    /// Drops what waits, because something was forgotten. A conversation whose first request waited is recorded
    /// from its next two requests on.
    pub(super) fn clear(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Waiting::default();
    }
}

#[derive(Debug, Default)]
struct Waiting {
    young: Generation,
    old: Generation,
}

impl Waiting {
    fn admit(&mut self, exchange: Exchange, store: &dyn Store) -> Vec<Exchange> {
        if exchange.alignment.is_none()
            && let Some((len, first)) = self.take_prefix(&exchange)
        {
            return vec![first.into_exchange(&exchange, len), exchange];
        }
        if was_sent_as_written(&exchange) {
            let chain: Vec<Link> = exchange
                .history
                .turns()
                .iter()
                .map(|turn| turn.link)
                .collect();
            let mut keys = LookupKeys {
                // A request under the name of a recorded conversation belongs to it.
                thread_key: exchange.thread_key.clone(),
                ..LookupKeys::default()
            };
            // Most requests continue a recorded conversation. Anchors are hashes, which these need not make.
            if store.may_know(&exchange.scope, &chain, &keys) {
                return vec![exchange];
            }
            keys.anchors = anchors(&exchange.history, 0).collect();
            // A request that shares messages with one that waits, but does not continue it, may belong to a
            // client that drops its oldest messages. All its requests would begin anew.
            let mut marks = keys.anchors.iter().map(|(anchor, _)| anchor);
            let overlaps = marks.any(|mark| self.has_mark(mark));
            if !overlaps && !store.may_know(&exchange.scope, &chain, &keys) {
                self.insert(&exchange, &keys);
                return Vec::new();
            }
        }
        vec![exchange]
    }

    /// How many requests wait.
    fn len(&self) -> usize {
        self.young.requests.len() + self.old.requests.len()
    }

    /// Takes the longest waiting request that `exchange` continues or repeats, with its number of messages.
    fn take_prefix(&mut self, exchange: &Exchange) -> Option<(usize, Box<FirstRequest>)> {
        if self.len() == 0 {
            return None;
        }
        let turns = exchange.history.turns().iter().enumerate().rev();
        for (index, turn) in turns {
            let key = (exchange.scope.tenant, turn.link);
            for generation in [&mut self.young, &mut self.old] {
                if let Some(first) = generation.requests.remove(&key) {
                    generation.bytes -= first.bytes();
                    return Some((index + 1, first));
                }
            }
        }
        None
    }

    fn has_mark(&self, mark: &ScopedHash) -> bool {
        self.young.marks.contains(mark) || self.old.marks.contains(mark)
    }

    fn insert(&mut self, exchange: &Exchange, keys: &LookupKeys) {
        let Some(tip) = exchange.history.tip() else {
            return;
        };
        let first = Box::new(FirstRequest::new(exchange));
        let new_bytes = first.bytes() + MARK_BYTES * keys.anchors.len();
        if self.young.bytes + new_bytes > MAX_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += new_bytes;
        let marks = keys.anchors.iter().map(|(anchor, _)| *anchor);
        self.young.marks.extend(marks);
        self.young
            .requests
            .insert((exchange.scope.tenant, tip), first);
    }
}

/// Whether `exchange` was sent as its client wrote it, on its own chain. Then nothing is lost if it is recorded
/// later: it would be sent alike again. Where a user's conversations share memory it might not be: another
/// conversation may be told about meanwhile, and what began without that must go on without it (INV-PREFIX).
fn was_sent_as_written(exchange: &Exchange) -> bool {
    let sent_with = &exchange.sent_with;
    exchange.alignment.is_none()
        && sent_with.snapshot.is_none()
        && sent_with.trim.is_none()
        && !exchange.allows_peer_memory
}
