//! Places for requests in progress, and how many of them one connection and one address may hold.
//!
//! A request that memory reads takes its place when its body is in: a body that drips in holds up nobody. A connection
//! may hold as many places as it leaves free for others, so a few HTTP/2 connections cannot take them all, and a new
//! connection always finds one. An address may hold a fixed number; addresses of this machine any: a reverse proxy
//! there speaks for many clients. A request that is streamed to the upstream takes its place before its body is in. At
//! most half of the places are for bodies that still come, so that uploads that never end do not take all.
//! Called by [`super::flow`] and [`super::chat_completions`].

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::ProxyError;

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

#[derive(Debug)]
struct State {
    free: usize,
    /// Requests with a place whose body still comes.
    uploads: usize,
    held: HashMap<Holder, usize>,
}

impl State {
    fn held(&self, holder: Holder) -> usize {
        self.held.get(&holder).copied().unwrap_or(0)
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
    holders: [Option<Holder>; 2],
}

impl Places {
    pub(super) fn new(limit: usize, per_address: usize) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                free: limit,
                uploads: 0,
                held: HashMap::new(),
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
        self.refusal(&self.lock(), peer).map_or(Ok(()), Err)
    }

    /// Takes a place for a request of `peer`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn take(&self, peer: Option<Peer>) -> Result<Place, ProxyError> {
        let mut state = self.lock();
        if let Some(refusal) = self.refusal(&state, peer) {
            return Err(refusal);
        }
        state.free -= 1;
        let holders = [
            peer.map(|peer| Holder::Connection(peer.connection)),
            peer.and_then(|peer| counted(peer.address)),
        ];
        for holder in holders.into_iter().flatten() {
            *state.held.entry(holder).or_default() += 1;
        }
        drop(state);
        Ok(Place {
            places: self.clone(),
            holders,
        })
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
        if state.free == 0 {
            return Some(ProxyError::TooManyRequests(self.limit));
        }
        let peer = peer?;
        let of_connection = state.held(Holder::Connection(peer.connection));
        if of_connection >= state.free {
            return Some(ProxyError::TooManyOfConnection(of_connection));
        }
        let holder = counted(peer.address)?;
        (state.held(holder) >= self.per_address)
            .then_some(ProxyError::TooManyOfAddress(self.per_address))
    }
}

/// The holder that stands for an address; `None` for those of this machine. A network of IPv6 counts as one address: a
/// host can use any of its 2^64.
fn counted(address: IpAddr) -> Option<Holder> {
    let address = address.to_canonical();
    if address.is_loopback() {
        return None;
    }
    Some(Holder::Address(match address {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }))
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
        let mut state = self.places.lock();
        state.free += 1;
        for holder in self.holders.into_iter().flatten() {
            if let Some(held) = state.held.get_mut(&holder) {
                *held -= 1;
                if *held == 0 {
                    state.held.remove(&holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(connection: u64, address: &str) -> Peer {
        Peer {
            connection,
            address: address.parse().expect("an address"),
        }
    }

    /// As many places as `peers` get in turn.
    fn fill(places: &Places, peers: impl IntoIterator<Item = Peer>) -> Vec<Place> {
        peers
            .into_iter()
            .flat_map(|peer| places.take(Some(peer)))
            .collect()
    }

    #[test]
    fn eleven_connections_of_a_hundred_streams_leave_places_for_others() {
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
    fn bodies_that_never_end_leave_half_of_the_places() {
        let places = Places::new(5, 9);
        let uploads: Vec<Upload> = (0..3).filter_map(|_| places.take_upload().ok()).collect();
        assert_eq!(uploads.len(), 3);
        let refused = places.take_upload();
        assert!(matches!(refused, Err(ProxyError::TooManyUploads(3))));
        drop(uploads);
        assert!(places.take_upload().is_ok());
    }

    #[test]
    fn an_address_has_a_share_and_this_machine_any() {
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
    fn a_full_house_is_full_for_everybody() {
        let places = Places::new(1, 9);
        let first = places.take(None).expect("a place");
        let refused = places.check(Some(peer(1, "127.0.0.1")));
        assert!(matches!(refused, Err(ProxyError::TooManyRequests(1))));
        drop(first);
        assert!(places.take(Some(peer(1, "127.0.0.1"))).is_ok());
    }
}
