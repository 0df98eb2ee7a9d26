//! Places for requests in progress, and how many of them one connection and one address may hold.
//!
//! A request that memory reads takes its place when its body is in: a body that drips in holds up nobody. A connection
//! may hold as many places as it leaves free for others, so a few HTTP/2 connections cannot take them all. An address
//! may hold a fixed number; addresses of this machine any: a reverse proxy there speaks for many clients. A request
//! that is streamed to the upstream takes its place before its body is in. At most half of the places are for bodies
//! that still come, so that uploads that never end do not take all. Where no place is left, answers that their clients
//! do not read make room. Called by [`super::flow`] and [`super::chat_completions`].

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::HashMap;

use super::error::ProxyError;
use super::unread_answers::Reading;

/// An answer of which its client has read nothing for so long gives its place to a request that finds none. A client
/// that reads slowly does so in lumps: curl at 400 KB a second opens its window every 12 seconds. One that pauses is safe
/// while places are free.
const MAKES_ROOM_AFTER: Duration = Duration::from_secs(15);

/// Who sends a request. `server` puts it into the extensions of each request.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// A number that no other connection of this process has.
    pub connection: u64,
    pub address: IpAddr,
}

/// Who holds places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Connection(u64),
    Address(IpAddr),
}

/// The connection and the address that hold a place.
type Holders = [Option<Holder>; 2];

#[derive(Debug)]
struct State {
    free: usize,
    /// Requests with a place whose body still comes.
    uploads: usize,
    held: HashMap<Holder, usize>,
    /// The requests with a place.
    requests: HashMap<u64, Holders>,
    /// Those of them over HTTP/2. Each refused request looks at all of these, so those over HTTP/1 are not here.
    readings: HashMap<u64, Arc<Reading>>,
    /// The number of the next request.
    next: u64,
}

impl State {
    fn held(&self, holder: Holder) -> usize {
        self.held.get(&holder).copied().unwrap_or(0)
    }

    /// Gives the place of a request back, unless it was given to another one.
    fn give_back(&mut self, number: u64) -> Option<Arc<Reading>> {
        let holders = self.requests.remove(&number)?;
        self.free += 1;
        for holder in holders.into_iter().flatten() {
            if let Some(held) = self.held.get_mut(&holder) {
                *held -= 1;
                if *held == 0 {
                    self.held.remove(&holder);
                }
            }
        }
        self.readings.remove(&number)
    }

    /// The requests whose clients do not read, of `holder` only if there is one. First those of the connection that has
    /// most of them, and the one that has waited longest.
    fn unread(&self, holder: Option<Holder>) -> Vec<u64> {
        let mut of_connection = HashMap::<_, usize>::default();
        let mut unread = Vec::new();
        for (number, reading) in &self.readings {
            let waited = reading.unread_for();
            if let Some(waited) = waited.filter(|waited| *waited >= MAKES_ROOM_AFTER)
                && let Some(holders) = self.requests.get(number)
                && (holder.is_none() || holders.contains(&holder))
            {
                *of_connection.entry(holders[0]).or_default() += 1;
                unread.push((holders[0], waited, *number));
            }
        }
        unread.sort_by_key(|(connection, waited, _)| Reverse((of_connection[connection], *waited)));
        unread.into_iter().map(|(.., number)| number).collect()
    }
}

/// The places of all requests. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Places {
    state: Arc<Mutex<State>>,
    limit: usize,
    per_address: usize,
}

/// A place. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    number: u64,
}

impl Places {
    pub(super) fn new(limit: usize, per_address: usize) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                free: limit,
                uploads: 0,
                held: HashMap::default(),
                requests: HashMap::default(),
                readings: HashMap::default(),
                next: 0,
            })),
            limit,
            per_address,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a place for a request of `peer` now.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn check(&self, peer: Option<Peer>) -> Result<(), ProxyError> {
        self.make_room(&mut self.lock(), peer)
    }

    /// Takes a place for a request of `peer`. To be called in the task that sends the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn take(&self, peer: Option<Peer>) -> Result<Place, ProxyError> {
        let mut state = self.lock();
        self.make_room(&mut state, peer)?;
        state.free -= 1;
        let holders = [
            peer.map(|peer| Holder::Connection(peer.connection)),
            peer.and_then(|peer| counted(peer.address)),
        ];
        for holder in holders.into_iter().flatten() {
            *state.held.entry(holder).or_default() += 1;
        }
        let number = state.next;
        state.next += 1;
        state.requests.insert(number, holders);
        if let Some(reading) = Reading::current() {
            state.readings.insert(number, reading);
        }
        drop(state);
        Ok(Place {
            places: self.clone(),
            number,
        })
    }

    /// Lets answers that their clients do not read make room for a request of `peer`, if it finds no place otherwise.
    fn make_room(&self, state: &mut State, peer: Option<Peer>) -> Result<(), ProxyError> {
        while let Some(refusal) = self.refusal(state, peer) {
            let connection = peer.map(|peer| Holder::Connection(peer.connection));
            let own = connection.map_or(0, |connection| state.held(connection));
            let (missing, holder) = match refusal {
                ProxyError::TooManyOfAddress(_) => (1, peer.and_then(|peer| counted(peer.address))),
                // Places are free: what it asks for more than its share is no reason to end the answer of another one.
                ProxyError::TooManyOfConnection(_) => {
                    ((own + 1 - state.free).div_ceil(2), connection)
                }
                _ => (own + 1 - state.free, None),
            };
            let unread = state.unread(holder);
            let Some(first) = unread.first().filter(|_| unread.len() >= missing) else {
                return Err(refusal);
            };
            if let Some(reading) = state.give_back(*first) {
                reading.end();
            }
        }
        Ok(())
    }

    /// Takes one of the places for bodies that still come, beside the place of the request itself. It is given back when
    /// the body is in.
    ///
    /// # Errors
    /// If half of all places are taken in this way.
    pub(super) fn take_upload(&self) -> Result<Upload, ProxyError> {
        let mut state = self.lock();
        let most = self.limit.div_ceil(2);
        if state.uploads >= most {
            return Err(ProxyError::TooManyUploads(most));
        }
        state.uploads += 1;
        drop(state);
        Ok(Upload(self.clone()))
    }

    fn refusal(&self, state: &State, peer: Option<Peer>) -> Option<ProxyError> {
        let address = peer.and_then(|peer| counted(peer.address));
        if address.is_some_and(|address| state.held(address) >= self.per_address) {
            return Some(ProxyError::TooManyOfAddress(self.per_address));
        }
        if state.free == 0 {
            return Some(ProxyError::TooManyRequests(self.limit));
        }
        let of_connection = state.held(Holder::Connection(peer?.connection));
        (of_connection >= state.free).then_some(ProxyError::TooManyOfConnection(of_connection))
    }
}

/// The holder that stands for an address; `None` for those of this machine.
fn counted(address: IpAddr) -> Option<Holder> {
    let network = network(address);
    (!network.is_loopback()).then_some(Holder::Address(network))
}

/// What counts as one address: of IPv6 the first 64 bits, because a host can use any of the addresses behind them.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(whole) if !whole.is_loopback() => {
            Ipv6Addr::from_bits(whole.to_bits() >> 64 << 64).into()
        }
        address => address,
    }
}

/// A place for a body that still comes. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Upload(Places);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.lock().uploads -= 1;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().give_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::{body, unread_answers};
    use crate::tasks::Tasks;

    fn peer(connection: u64, address: &str) -> Peer {
        Peer {
            connection,
            address: address.parse().expect("an address"),
        }
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let network_of = |text: &str| network(address(text));
        assert_eq!(network_of("2001:db8::1"), network_of("2001:db8::ffff:1"));
        assert_ne!(network_of("2001:db8::1"), network_of("2001:db8:0:1::1"));
        assert_eq!(network_of("::1"), address("::1"));
        assert_eq!(network_of("::ffff:192.0.2.1"), address("192.0.2.1"));
    }

    /// As many places as `peers` get in turn.
    fn fill(places: &Places, peers: impl IntoIterator<Item = Peer>) -> Vec<Place> {
        peers
            .into_iter()
            .flat_map(|peer| places.take(Some(peer)))
            .collect()
    }

    #[test]
    fn eleven_flooding_connections_leave_places_for_other_connections() {
        let places = Places::new(1024, 1024);
        let flood = (0..100).flat_map(|_| (0..11).map(|connection| peer(connection, "127.0.0.1")));
        let taken = fill(&places, flood);
        assert!(taken.len() > 900, "{}", taken.len());
        let others = fill(
            &places,
            (100..150).map(|connection| peer(connection, "127.0.0.1")),
        );
        assert_eq!(others.len(), 50);
    }

    #[test]
    fn unfinished_uploads_are_limited_to_half_of_the_places() {
        let places = Places::new(5, 9);
        let uploads: Vec<Upload> = (0..3).filter_map(|_| places.take_upload().ok()).collect();
        assert_eq!(uploads.len(), 3);
        let refused = places.take_upload();
        assert!(matches!(refused, Err(ProxyError::TooManyUploads(3))));
        drop(uploads);
        assert!(places.take_upload().is_ok());
    }

    #[test]
    fn a_remote_address_has_a_limit_and_loopback_has_none() {
        let places = Places::new(100, 3);
        let from = |address| (0..9).map(move |connection| peer(connection, address));
        let mut all = fill(&places, from("192.0.2.1"));
        assert_eq!(all.len(), 3);
        let refused = places.take(Some(peer(10, "192.0.2.1")));
        assert!(matches!(refused, Err(ProxyError::TooManyOfAddress(3))));
        all.extend(fill(&places, from("192.0.2.2")));
        assert_eq!(all.len(), 6);
        all.extend(fill(&places, from("127.0.0.1")));
        assert_eq!(all.len(), 15);
        let network = ["2001:db8::1", "2001:db8::2:3", "2001:db8::f", "2001:db8::9"];
        let network = network.into_iter().zip(20..);
        all.extend(fill(
            &places,
            network.map(|(address, at)| peer(at, address)),
        ));
        assert_eq!(all.len(), 18, "one network is one address");
        drop(all);
        assert!(places.check(Some(peer(10, "192.0.2.1"))).is_ok());
        assert_eq!(places.lock().free, 100);
        assert!(places.lock().held.is_empty());
    }

    #[test]
    fn a_request_is_refused_if_every_place_is_taken() {
        let places = Places::new(1, 9);
        let first = places.take(None).expect("a place");
        let refused = places.check(Some(peer(1, "127.0.0.1")));
        assert!(matches!(refused, Err(ProxyError::TooManyRequests(1))));
        drop(first);
        assert!(places.take(Some(peer(1, "127.0.0.1"))).is_ok());
    }

    /// A place of a stream whose client reads nothing, and what ends when the stream is cut.
    async fn take_unread(places: &Places, peer: Peer) -> tokio::task::JoinHandle<()> {
        let places = places.clone();
        let (taken, is_taken) = tokio::sync::oneshot::channel();
        let task = Tasks::new().spawn("stream", async move {
            let stream = async {
                let _place = places.take(Some(peer)).expect("a place");
                let _body = unread_answers::watch(body::full("x".into()));
                taken.send(()).expect("a listener");
                std::future::pending::<()>().await;
            };
            unread_answers::limited(stream, Duration::from_hours(1)).await;
        });
        is_taken.await.expect("a place");
        task
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_answer_ends_if_no_place_is_left() {
        let places = Places::new(5, 9);
        let honest = take_unread(&places, peer(1, "127.0.0.1")).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        let flood = [
            take_unread(&places, peer(2, "127.0.0.1")).await,
            take_unread(&places, peer(2, "127.0.0.1")).await,
        ];
        let busy = fill(&places, [peer(3, "127.0.0.1"), peer(4, "127.0.0.1")]);
        assert_eq!(busy.len(), 2);
        let ask = || places.check(Some(peer(9, "127.0.0.1")));
        assert!(matches!(ask(), Err(ProxyError::TooManyRequests(5))));
        tokio::time::advance(MAKES_ROOM_AFTER).await;
        assert!(ask().is_ok());
        let ended = || flood.iter().filter(|task| task.is_finished()).count();
        tokio::task::yield_now().await;
        assert_eq!((ended(), honest.is_finished()), (1, false));
        assert_eq!(places.lock().free, 1, "its own end gives no second one");
        let _first = places.take(Some(peer(9, "127.0.0.1"))).expect("a place");
        let second = places.take(Some(peer(8, "127.0.0.1")));
        tokio::task::yield_now().await;
        assert!(second.is_ok());
        // Both are left with one: now the longest counts.
        assert!(honest.is_finished());
        // A connection with one request needs two free places, and one can be had: nobody ends in vain.
        let greedy = places.take(Some(peer(8, "127.0.0.1")));
        assert!(matches!(greedy, Err(ProxyError::TooManyRequests(5))));
        assert_eq!(ended(), 1);
    }

    /// While places are free, nobody's answer ends because another connection asks for more than its share.
    #[tokio::test(start_paused = true)]
    async fn a_connection_over_its_share_ends_its_own_unread_answer() {
        let places = Places::new(8, 9);
        // Another one holds more, but asks for nothing.
        let mut others = Vec::new();
        for _ in 0..3 {
            others.push(take_unread(&places, peer(1, "127.0.0.1")).await);
        }
        let own = [
            take_unread(&places, peer(2, "127.0.0.1")).await,
            take_unread(&places, peer(2, "127.0.0.1")).await,
        ];
        let busy = fill(&places, [peer(3, "127.0.0.1")]);
        assert_eq!(busy.len(), 1);
        let ask = || places.check(Some(peer(2, "127.0.0.1")));
        assert!(matches!(ask(), Err(ProxyError::TooManyOfConnection(2))));
        tokio::time::advance(MAKES_ROOM_AFTER).await;
        assert!(ask().is_ok());
        tokio::task::yield_now().await;
        let ended = |tasks: &[tokio::task::JoinHandle<()>]| {
            tasks.iter().filter(|task| task.is_finished()).count()
        };
        assert_eq!((ended(&others), ended(&own)), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_over_its_limit_ends_its_own_unread_answer() {
        let places = Places::new(100, 2);
        let other = take_unread(&places, peer(1, "192.0.2.1")).await;
        let mut own = Vec::new();
        for connection in [2, 3] {
            own.push(take_unread(&places, peer(connection, "192.0.2.2")).await);
            tokio::time::advance(MAKES_ROOM_AFTER).await;
        }
        assert!(places.take(Some(peer(4, "192.0.2.2"))).is_ok());
        tokio::task::yield_now().await;
        let ended = [&other, &own[0], &own[1]].map(tokio::task::JoinHandle::is_finished);
        assert_eq!(ended, [false, true, false]);
    }
}
