//! The ways to the upstream that conversations lend their memory.
//!
//! A borrowed credential lives here and nowhere else, in memory, for as long as its conversations are
//! alive; jobs that need it wait where it is not held and come again with the next request. A way is
//! lent to the jobs of conversations that took it, never to others of the same credential: another
//! path, organisation or project is another account. `proxy` lends, `worker` borrows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Clock;
use crate::llm::BorrowedRoute;

/// How long after its last request a conversation's credential is held. Long enough for the jobs of
/// its last turn and their retries.
const HELD: Duration = Duration::from_mins(30);

/// Ways held at most; the longest unused goes first.
const WAYS: usize = 10_000;

/// Ways of one tenant held at most, so that a client whose way changes with every request drives out
/// nobody but itself.
const WAYS_OF_TENANT: usize = 32;

/// An upstream that asks for more is taken at this, as in [`crate::llm::backoff`]: the next answer can
/// ask again.
const LONGEST_REST: Duration = Duration::from_hours(1);

type Tenant = [u8; 32];
type Way = [u8; 32];

#[derive(Debug)]
struct Held {
    route: Arc<BorrowedRoute>,
    used: Instant,
}

#[derive(Debug, Default)]
struct Lent {
    held: HashMap<(Tenant, Way), Held>,
    /// Limits are a credential's, whichever way it takes.
    resting_until: HashMap<Tenant, Instant>,
}

/// Borrowed ways by tenant and [`BorrowedRoute::hash`].
#[derive(Debug, Default)]
pub struct Routes {
    lent: Mutex<Lent>,
    clock: Clock,
}

impl Routes {
    /// None, by this clock.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            lent: Mutex::default(),
            clock,
        }
    }

    fn locked(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of this tenant was accepted on this way.
    pub fn lend(&self, tenant: Tenant, route: Arc<BorrowedRoute>) {
        let mut lent = self.locked();
        let key = (tenant, route.hash());
        if !lent.held.contains_key(&key) {
            lent.make_room(&tenant);
        }
        let used = self.clock.instant();
        lent.held.insert(key, Held { route, used });
    }

    /// The client needs what is left of its rate limit: jobs of this tenant wait.
    pub fn rest(&self, tenant: &Tenant, pause: Duration) {
        let mut lent = self.locked();
        let now = self.clock.instant();
        if !lent.held.keys().any(|(owner, _)| owner == tenant) {
            return;
        }
        lent.resting_until.retain(|_, until| *until > now);
        let until = now + pause.min(LONGEST_REST);
        // What is left of a rate limit says nothing about a rest that was asked for.
        let resting = lent.resting_until.entry(*tenant).or_insert(until);
        *resting = until.max(*resting);
    }

    /// The upstream refused this credential on this way.
    pub fn withdraw(&self, tenant: &Tenant, way: Option<Way>) {
        if let Some(way) = way {
            self.locked().held.remove(&(*tenant, way));
        }
    }

    /// This very way of `tenant`, if it may be used now; never another.
    pub(super) fn of(&self, tenant: &Tenant, way: Option<Way>) -> Option<Arc<BorrowedRoute>> {
        let lent = self.locked();
        let held = lent.held.get(&(*tenant, way?))?;
        let now = self.clock.instant();
        (held.alive(now) && !lent.rests(tenant, now)).then(|| Arc::clone(&held.route))
    }

    /// Tenants and those ways of theirs that may be used now.
    pub(super) fn usable(&self) -> Vec<(Tenant, Way)> {
        let now = self.clock.instant();
        let mut lent = self.locked();
        lent.held.retain(|_, held| held.alive(now));
        lent.held
            .keys()
            .filter(|(tenant, _)| !lent.rests(tenant, now))
            .copied()
            .collect()
    }
}

impl Lent {
    fn rests(&self, tenant: &Tenant, now: Instant) -> bool {
        self.resting_until
            .get(tenant)
            .is_some_and(|until| now < *until)
    }

    fn make_room(&mut self, tenant: &Tenant) {
        let own = self.held.keys().filter(|(owner, _)| owner == tenant);
        let crowded = own.count() >= WAYS_OF_TENANT;
        if !crowded && self.held.len() < WAYS {
            return;
        }
        let oldest = self
            .held
            .iter()
            .filter(|((owner, _), _)| !crowded || owner == tenant)
            .min_by_key(|(_, held)| held.used)
            .map(|(key, _)| *key);
        oldest.map(|key| self.held.remove(&key));
    }
}

impl Held {
    fn alive(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) < HELD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: Tenant = [7; 32];

    fn way(path: &str) -> Arc<BorrowedRoute> {
        let url = url::Url::parse(&format!("http://localhost/{path}")).expect("a URL");
        Arc::new(BorrowedRoute::new(&url, &http::HeaderMap::new()))
    }

    fn lent() -> Routes {
        let routes = Routes::default();
        routes.lend(TENANT, way("v1/chat/completions"));
        routes
    }

    fn rests(routes: &Routes) -> Duration {
        let until = routes.locked().resting_until[&TENANT];
        until.saturating_duration_since(Instant::now())
    }

    #[test]
    fn no_upstream_can_ask_for_a_rest_without_end() {
        let routes = lent();
        routes.rest(&TENANT, Duration::from_secs(u64::MAX));
        assert!(rests(&routes) <= LONGEST_REST);
        assert_eq!(routes.usable(), Vec::new());
    }

    #[test]
    fn a_short_rest_does_not_end_a_long_one() {
        let routes = lent();
        routes.rest(&TENANT, Duration::from_mins(5));
        routes.rest(&TENANT, Duration::from_secs(15));
        assert!(rests(&routes) > Duration::from_secs(200));
    }

    #[test]
    fn a_job_borrows_the_way_of_its_own_conversation_or_none() {
        let routes = lent();
        let (one, other) = (way("v1/chat/completions"), way("eu/v1/chat/completions"));
        assert!(routes.of(&TENANT, Some(one.hash())).is_some());
        assert!(routes.of(&TENANT, Some(other.hash())).is_none());
        assert!(routes.of(&TENANT, None).is_none());
        assert!(routes.of(&[8; 32], Some(one.hash())).is_none());
        routes.lend(TENANT, Arc::clone(&other));
        assert_eq!(routes.usable().len(), 2);
        routes.withdraw(&TENANT, Some(other.hash()));
        assert!(routes.of(&TENANT, Some(other.hash())).is_none());
        assert!(routes.of(&TENANT, Some(one.hash())).is_some());
    }

    #[test]
    fn a_rest_holds_for_every_way_of_a_credential() {
        let routes = lent();
        let other = way("eu/v1/chat/completions");
        routes.rest(&TENANT, Duration::from_mins(5));
        routes.lend(TENANT, Arc::clone(&other));
        assert!(routes.of(&TENANT, Some(other.hash())).is_none());
    }

    #[test]
    fn a_way_that_changes_with_every_request_drives_out_only_its_own() {
        let routes = lent();
        let neighbour = [8; 32];
        for number in 0..100 {
            routes.lend(neighbour, way(&format!("{number}")));
        }
        assert_eq!(routes.usable().len(), WAYS_OF_TENANT + 1);
        assert!(routes.of(&neighbour, Some(way("99").hash())).is_some());
        assert!(routes.of(&neighbour, Some(way("1").hash())).is_none());
    }
}
