//! First requests wait: a conversation is recorded when its second request comes.
//!
//! Most requests that pass a gateway are never continued. To record them would be of no use: a message is
//! observed only after a second, longer request has carried it. So an accepted request of which nothing is known, and
//! that was sent as the client wrote it, waits here with its hashes. The second request carries all its words again,
//! and both are recorded. A process that ends forgets what waits; the next request of such a conversation counts as its
//! first one, and is sent as it would have been. Decides before the queue of the recorder, so that a flood of such
//! requests takes no place in it. Owned by [`super::intake`].
//!
//! All that waits has a bound. At the bound the account that holds most loses its oldest requests, so a flood of one
//! account pushes out nothing of another that holds less.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jiff::tz::TimeZone;
use metrics::Gauge;

use super::exchange::Exchange;
use crate::history::{AnswerHash, Link, ScopedHash};
use crate::lookup::{HashKeyMap, HashKeySet, anchors};
use crate::store::{LookupKeys, SentWith, Store};
use crate::telemetry::{self, kept};

/// What waits may use this many bytes. 16 MiB are some 20,000 to 40,000 requests of few accounts.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Below this share, 16 KiB, accounts count as equal when room is needed: of those the one that was silent for longest
/// loses first.
const SMALL_BYTES: usize = MAX_BYTES / 1024;

/// The size of an account without requests: itself, and its tables with the space that they keep free.
const ACCOUNT_BYTES: usize = 1024;

/// The size of an entry without its text: the entry itself, its two keys, and the space that the tables keep free.
const ENTRY_BYTES: usize = size_of::<FirstRequest>()
    + 2 * (2 * size_of::<Key>() + size_of::<Box<FirstRequest>>() + size_of::<usize>());

/// The size of a mark, with the space that the table keeps free.
const MARK_BYTES: usize = 2 * size_of::<ScopedHash>();

static WAITING: LazyLock<Gauge> =
    LazyLock::new(|| kept(|| metrics::gauge!(telemetry::EXCHANGES_WAITING)));

type Key = ([u8; 32], Link);

type Account = [u8; 32];

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

/// Requests that came at about one time. They are dropped together.
#[derive(Debug, Default)]
struct Generation {
    /// Boxed, because a table that grows moves its entries.
    requests: HashKeyMap<Key, Box<FirstRequest>>,
    /// The first links of these, and how many have each: a request that begins with none of them continues none.
    beginnings: HashKeyMap<Key, usize>,
    /// The anchors of the requests that waited here: by these a request is recognised that carries some of
    /// their messages without continuing them.
    marks: HashKeySet<ScopedHash>,
    bytes: usize,
}

impl Generation {
    fn insert(&mut self, key: Key, begin: Key, first: Box<FirstRequest>) {
        self.requests.insert(key, first);
        *self.beginnings.entry(begin).or_default() += 1;
    }

    /// Takes the request with this tip, which begins with `begin`.
    fn take(&mut self, tip: &Key, begin: &Key) -> Option<Box<FirstRequest>> {
        let first = self.requests.remove(tip)?;
        self.bytes -= first.bytes();
        if let Some(count) = self.beginnings.get_mut(begin) {
            *count -= 1;
            if *count == 0 {
                self.beginnings.remove(begin);
            }
        }
        Some(first)
    }
}

/// The first link of a request.
fn beginning(exchange: &Exchange) -> Option<Key> {
    let first = exchange.history.messages().first()?;
    Some((exchange.scope.tenant, first.link))
}

/// The requests of one account.
#[derive(Debug, Default)]
struct Share {
    /// The youngest first.
    generations: VecDeque<Generation>,
    bytes: usize,
    /// When something was added, in additions of all accounts.
    last_added: u64,
}

impl Share {
    /// The generation for a new request. One is full when it holds half of the share, so that never more than about half
    /// is lost at once; it is never so small that a small account loses all, nor larger than a quarter of all.
    fn youngest(&mut self) -> &mut Generation {
        let most = (self.bytes / 2).clamp(SMALL_BYTES / 2, MAX_BYTES / 4);
        if self
            .generations
            .front()
            .is_none_or(|youngest| youngest.bytes >= most)
        {
            self.generations.push_front(Generation::default());
        }
        &mut self.generations[0]
    }

    /// Takes the longest waiting request that `exchange` continues or repeats, with its number of messages.
    fn take_prefix(&mut self, exchange: &Exchange) -> Option<(usize, Box<FirstRequest>)> {
        let begin = beginning(exchange)?;
        let mut generations: Vec<_> = self
            .generations
            .iter_mut()
            .filter(|generation| generation.beginnings.contains_key(&begin))
            .collect();
        if generations.is_empty() {
            return None;
        }
        let messages = exchange.history.messages().iter().enumerate().rev();
        for (index, chained) in messages {
            let key = (exchange.scope.tenant, chained.link);
            for generation in &mut generations {
                if let Some(first) = generation.take(&key, &begin) {
                    self.bytes -= first.bytes();
                    return Some((index + 1, first));
                }
            }
        }
        None
    }

    fn has_mark(&self, mark: &ScopedHash) -> bool {
        let mut generations = self.generations.iter();
        generations.any(|generation| generation.marks.contains(mark))
    }

    /// How it stands when room is needed; the first one to lose is the greatest.
    fn rank(&self) -> (usize, Reverse<u64>) {
        (self.bytes.max(SMALL_BYTES), Reverse(self.last_added))
    }
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
        let count = waiting.count as f64;
        WAITING.set(count);
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
    shares: HashKeyMap<Account, Share>,
    /// How many requests wait.
    count: usize,
    /// Bytes of all shares, with the accounts themselves.
    bytes: usize,
    additions: u64,
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
                .messages()
                .iter()
                .map(|chained| chained.link)
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
            let share = self.shares.get(&exchange.account);
            let overlaps = share.is_some_and(|share| marks.any(|mark| share.has_mark(mark)));
            if !overlaps && !store.may_know(&exchange.scope, &chain, &keys) {
                self.insert(&exchange, &keys);
                return Vec::new();
            }
        }
        vec![exchange]
    }

    fn take_prefix(&mut self, exchange: &Exchange) -> Option<(usize, Box<FirstRequest>)> {
        let share = self.shares.get_mut(&exchange.account)?;
        let (len, first) = share.take_prefix(exchange)?;
        self.bytes -= first.bytes();
        self.count -= 1;
        Some((len, first))
    }

    fn insert(&mut self, exchange: &Exchange, keys: &LookupKeys) {
        let (Some(tip), Some(begin)) = (exchange.history.tip(), beginning(exchange)) else {
            return;
        };
        let first = Box::new(FirstRequest::new(exchange));
        let new_bytes = first.bytes() + MARK_BYTES * keys.anchors.len();
        let all = &mut self.bytes;
        let share = self.shares.entry(exchange.account).or_insert_with(|| {
            *all += ACCOUNT_BYTES;
            Share::default()
        });
        self.additions += 1;
        share.last_added = self.additions;
        let generation = share.youngest();
        generation.bytes += new_bytes;
        let marks = keys.anchors.iter().map(|(anchor, _)| *anchor);
        generation.marks.extend(marks);
        generation.insert((exchange.scope.tenant, tip), begin, first);
        share.bytes += new_bytes;
        self.bytes += new_bytes;
        self.count += 1;
        if self.bytes > MAX_BYTES {
            self.make_room();
        }
    }

    /// Drops an eighth of all, so that the search for those that hold most is rare: the oldest requests of the account
    /// that holds most, again and again.
    fn make_room(&mut self) {
        let shares = self.shares.iter();
        let mut largest: BinaryHeap<_> = shares
            .map(|(account, share)| (share.rank(), *account))
            .collect();
        let mut forgotten = 0;
        while self.bytes > MAX_BYTES - MAX_BYTES / 8
            && let Some((_, account)) = largest.pop()
            && let Some(share) = self.shares.get_mut(&account)
        {
            if let Some(oldest) = share.generations.pop_back() {
                share.bytes -= oldest.bytes;
                self.bytes -= oldest.bytes;
                forgotten += oldest.requests.len();
            }
            if share.generations.is_empty() {
                self.shares.remove(&account);
                self.bytes -= ACCOUNT_BYTES;
            } else {
                largest.push((share.rank(), account));
            }
        }
        self.count -= forgotten;
        metrics::counter!(telemetry::FIRST_REQUESTS_FORGOTTEN).increment(forgotten as u64);
    }
}

/// Whether `exchange` was sent as its client wrote it, on its own chain. Then nothing is lost if it is recorded
/// later: the same request would go out as the same bytes. Where a user's conversations share memory it might not:
/// memory of another conversation may be there meanwhile, and what began without it must go on without it (INV-PREFIX).
fn was_sent_as_written(exchange: &Exchange) -> bool {
    let sent_with = &exchange.sent_with;
    exchange.alignment.is_none()
        && sent_with.snapshot.is_none()
        && sent_with.trim.is_none()
        && !exchange.allows_peer_memory
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Scope;
    use crate::store::SqliteStore;
    use crate::wire;

    /// A request of an account with `count` messages of `name`, for a model with a name of so many bytes.
    fn exchange(account: &str, name: &str, count: usize, model_bytes: usize) -> Exchange {
        let scope = Scope::new(account.as_bytes(), None);
        let message = |place| match place % 2 {
            0 => serde_json::json!({"role": "user", "content": format!("{name} {place}")}),
            _ => serde_json::json!({"role": "assistant", "content": format!("Yes, {place}")}),
        };
        let messages: Vec<_> = (0..count).map(message).collect();
        let body = serde_json::json!({"model": "m", "messages": messages}).to_string();
        let parsed = wire::Request::parse_chat(&body.into()).expect("a request");
        let history = Arc::new(parsed.history(&scope));
        Exchange {
            account: scope.tenant,
            scope,
            thread_key: None,
            sub_agent: false,
            held_out: false,
            allows_peer_memory: false,
            parsed: Arc::new(parsed),
            history,
            alignment: None,
            origins: Vec::new(),
            system: None,
            answer: None,
            answers_in_progress: None,
            sent_with: SentWith::default(),
            model: "m".repeat(model_bytes),
            growth: None,
            route: None,
            zone: None,
            at_ms: 0,
            answered_ms: 0,
        }
    }

    struct Rig {
        waiting: Waiting,
        store: Arc<dyn Store>,
        _folder: tempfile::TempDir,
    }

    impl Rig {
        async fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
            let store = SqliteStore::open_alone(&url).await.expect("a store");
            let store: Arc<dyn Store> = Arc::new(store);
            // Until its keys are read, it may know everything.
            let unknown = exchange("nobody", "nothing", 1, 1);
            let chain = [unknown.history.tip().expect("a message")];
            while store.may_know(&unknown.scope, &chain, &LookupKeys::default()) {
                tokio::task::yield_now().await;
            }
            let waiting = Waiting::default();
            Self {
                waiting,
                store,
                _folder: folder,
            }
        }

        /// How many exchanges are to be recorded now.
        fn admit(&mut self, exchange: Exchange) -> usize {
            self.waiting.admit(exchange, &*self.store).len()
        }

        /// How many messages each exchange has that is to be recorded now.
        fn lengths(&mut self, exchange: Exchange) -> Vec<usize> {
            let due = self.waiting.admit(exchange, &*self.store);
            due.iter().map(|exchange| exchange.history.len()).collect()
        }

        /// The sums are those of the parts.
        fn check(&self) {
            let waiting = &self.waiting;
            assert!(waiting.bytes <= MAX_BYTES);
            let shares = || waiting.shares.values();
            let bytes: usize = shares().map(|share| share.bytes + ACCOUNT_BYTES).sum();
            assert_eq!(waiting.bytes, bytes);
            let generations = || shares().flat_map(|share| &share.generations);
            let held: usize = generations().map(|generation| generation.bytes).sum();
            assert_eq!(held + waiting.shares.len() * ACCOUNT_BYTES, bytes);
            let count: usize = generations().map(|it| it.requests.len()).sum();
            assert_eq!(waiting.count, count);
        }
    }

    /// In a table of generations for all, 16 MiB of one account dropped what waited of the others.
    #[tokio::test]
    async fn a_flood_of_one_account_drops_no_first_request_of_another() {
        let mut rig = Rig::new().await;
        assert_eq!(rig.admit(exchange("quiet", "ada", 1, 9)), 0);
        for number in 0..500 {
            let name = format!("once {number}");
            assert_eq!(rig.admit(exchange("flood", &name, 1, 100_000)), 0);
        }
        assert!(rig.waiting.count < 200, "most are forgotten");
        assert_eq!(rig.admit(exchange("quiet", "ada", 3, 9)), 2);
        // Of its own it has lost the oldest.
        assert_eq!(rig.admit(exchange("flood", "once 499", 3, 9)), 2);
        assert_eq!(rig.admit(exchange("flood", "once 0", 3, 9)), 0);
        rig.check();
    }

    #[tokio::test]
    async fn many_accounts_stay_within_a_bound_and_the_longest_idle_is_dropped() {
        let mut rig = Rig::new().await;
        for number in 0..3_000 {
            let account = format!("account {number}");
            assert_eq!(rig.admit(exchange(&account, "ada", 1, 9_000)), 0);
        }
        assert_eq!(rig.admit(exchange("account 2999", "ada", 3, 9)), 2);
        assert_eq!(rig.admit(exchange("account 0", "ada", 3, 9)), 0);
        rig.check();
    }

    #[tokio::test]
    async fn each_first_request_is_recorded_before_its_second_one() {
        let mut rig = Rig::new().await;
        for name in ["one", "two", "three"] {
            assert_eq!(rig.admit(exchange("a", name, 1, 1)), 0, "{name}");
        }
        assert_eq!(rig.lengths(exchange("a", "one", 3, 1)), [1, 3]);
        assert_eq!(rig.admit(exchange("a", "nothing like it", 3, 1)), 0);
        for name in ["three", "two"] {
            assert_eq!(rig.lengths(exchange("a", name, 3, 1)), [1, 3], "{name}");
        }
        let share = rig.waiting.shares.values().next().expect("a share");
        let beginnings = share.generations.iter();
        let beginnings: usize = beginnings.map(|it| it.beginnings.len()).sum();
        assert_eq!(beginnings, 1, "that of the one that waits");
        rig.check();
    }
}
