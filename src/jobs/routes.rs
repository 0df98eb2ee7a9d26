//! The routes to the upstream that jobs may borrow from their conversations.
//!
//! A borrowed credential lives only here, in memory, while its conversations are active. Jobs that
//! need a route that is not held wait until the next request brings it. A job uses only the route
//! of its own conversation, never another one of the same credential: another path, organisation or
//! project is another account. `proxy` registers routes, the worker uses them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock::Clock;
use crate::llm::UpstreamRoute;

/// How long a route is held after its last request: long enough for the jobs of the last turn and
/// their retries.
const ROUTE_TTL: Duration = Duration::from_mins(30);

/// The most routes held. The least recently used goes first.
const MAX_ROUTES: usize = 10_000;

/// The most routes of one tenant, so that a client whose route changes with every request displaces
/// only its own.
const MAX_ROUTES_PER_TENANT: usize = 32;

/// A longer pause is cut to this, as in [`crate::llm::backoff()`]: the next answer can ask for
/// another.
const MAX_PAUSE: Duration = Duration::from_hours(1);

type Tenant = [u8; 32];
type RouteHash = [u8; 32];

#[derive(Debug)]
struct RouteEntry {
    route: Arc<UpstreamRoute>,
    last_used: Instant,
}

#[derive(Debug, Default)]
struct RouteTable {
    routes: HashMap<(Tenant, RouteHash), RouteEntry>,
    /// Until when each tenant's jobs pause. A rate limit applies to the credential, on every route.
    paused_until: HashMap<Tenant, Instant>,
}

/// Borrowed routes by tenant and [`UpstreamRoute::hash`].
#[derive(Debug, Default)]
pub struct Routes {
    table: Mutex<RouteTable>,
    clock: Clock,
}

impl Routes {
    /// An empty table.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            table: Mutex::default(),
            clock,
        }
    }

    fn lock(&self) -> MutexGuard<'_, RouteTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the route of a request that the upstream accepted.
    pub fn register(&self, tenant: Tenant, route: Arc<UpstreamRoute>) {
        let mut table = self.lock();
        let key = (tenant, route.hash());
        if !table.routes.contains_key(&key) {
            table.make_room(&tenant);
        }
        let last_used = self.clock.instant();
        table.routes.insert(key, RouteEntry { route, last_used });
    }

    /// Pauses the jobs of this tenant, because the client needs what is left of its rate limit.
    pub fn pause(&self, tenant: &Tenant, pause: Duration) {
        let mut table = self.lock();
        let now = self.clock.instant();
        if !table.routes.keys().any(|(owner, _)| owner == tenant) {
            return;
        }
        table.paused_until.retain(|_, until| *until > now);
        let until = now + pause.min(MAX_PAUSE);
        // A nearly used-up rate limit (a short pause) must not end a longer pause that the upstream
        // asked for.
        let current = table.paused_until.entry(*tenant).or_insert(until);
        *current = until.max(*current);
    }

    /// Forgets a route whose credential the upstream refused.
    pub fn withdraw(&self, tenant: &Tenant, hash: Option<RouteHash>) {
        if let Some(hash) = hash {
            self.lock().routes.remove(&(*tenant, hash));
        }
    }

    /// Exactly this route of `tenant`, if it may be used now.
    pub(super) fn get(
        &self,
        tenant: &Tenant,
        hash: Option<RouteHash>,
    ) -> Option<Arc<UpstreamRoute>> {
        let table = self.lock();
        let entry = table.routes.get(&(*tenant, hash?))?;
        let now = self.clock.instant();
        (entry.is_alive(now) && !table.is_paused(tenant, now)).then(|| Arc::clone(&entry.route))
    }

    /// Tenants and those of their routes that may be used now.
    pub(super) fn usable(&self) -> Vec<(Tenant, RouteHash)> {
        let now = self.clock.instant();
        let mut table = self.lock();
        table.routes.retain(|_, entry| entry.is_alive(now));
        table
            .routes
            .keys()
            .filter(|(tenant, _)| !table.is_paused(tenant, now))
            .copied()
            .collect()
    }
}

impl RouteTable {
    fn is_paused(&self, tenant: &Tenant, now: Instant) -> bool {
        self.paused_until
            .get(tenant)
            .is_some_and(|until| now < *until)
    }

    fn make_room(&mut self, tenant: &Tenant) {
        let tenant_routes = self.routes.keys().filter(|(owner, _)| owner == tenant);
        let over_quota = tenant_routes.count() >= MAX_ROUTES_PER_TENANT;
        if !over_quota && self.routes.len() < MAX_ROUTES {
            return;
        }
        let oldest = self
            .routes
            .iter()
            .filter(|((owner, _), _)| !over_quota || owner == tenant)
            .min_by_key(|(_, entry)| entry.last_used)
            .map(|(key, _)| *key);
        oldest.map(|key| self.routes.remove(&key));
    }
}

impl RouteEntry {
    fn is_alive(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_used) < ROUTE_TTL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: Tenant = [7; 32];

    fn route(path: &str) -> Arc<UpstreamRoute> {
        let url = url::Url::parse(&format!("http://localhost/{path}")).expect("a URL");
        Arc::new(UpstreamRoute::new(&url, &http::HeaderMap::new()))
    }

    fn routes_with_one() -> Routes {
        let routes = Routes::default();
        routes.register(TENANT, route("v1/chat/completions"));
        routes
    }

    fn pause_left(routes: &Routes) -> Duration {
        let until = routes.lock().paused_until[&TENANT];
        until.saturating_duration_since(Instant::now())
    }

    #[test]
    fn no_upstream_can_ask_for_a_rest_without_end() {
        let routes = routes_with_one();
        routes.pause(&TENANT, Duration::from_secs(u64::MAX));
        assert!(pause_left(&routes) <= MAX_PAUSE);
        assert_eq!(routes.usable(), Vec::new());
    }

    #[test]
    fn a_short_rest_does_not_end_a_long_one() {
        let routes = routes_with_one();
        routes.pause(&TENANT, Duration::from_mins(5));
        routes.pause(&TENANT, Duration::from_secs(15));
        assert!(pause_left(&routes) > Duration::from_secs(200));
    }

    #[test]
    fn a_job_borrows_the_way_of_its_own_conversation_or_none() {
        let routes = routes_with_one();
        let (one, other) = (
            route("v1/chat/completions"),
            route("eu/v1/chat/completions"),
        );
        assert!(routes.get(&TENANT, Some(one.hash())).is_some());
        assert!(routes.get(&TENANT, Some(other.hash())).is_none());
        assert!(routes.get(&TENANT, None).is_none());
        assert!(routes.get(&[8; 32], Some(one.hash())).is_none());
        routes.register(TENANT, Arc::clone(&other));
        assert_eq!(routes.usable().len(), 2);
        routes.withdraw(&TENANT, Some(other.hash()));
        assert!(routes.get(&TENANT, Some(other.hash())).is_none());
        assert!(routes.get(&TENANT, Some(one.hash())).is_some());
    }

    #[test]
    fn a_rest_holds_for_every_way_of_a_credential() {
        let routes = routes_with_one();
        let other = route("eu/v1/chat/completions");
        routes.pause(&TENANT, Duration::from_mins(5));
        routes.register(TENANT, Arc::clone(&other));
        assert!(routes.get(&TENANT, Some(other.hash())).is_none());
    }

    #[test]
    fn a_way_that_changes_with_every_request_drives_out_only_its_own() {
        let routes = routes_with_one();
        let neighbour = [8; 32];
        for number in 0..100 {
            routes.register(neighbour, route(&format!("{number}")));
        }
        assert_eq!(routes.usable().len(), MAX_ROUTES_PER_TENANT + 1);
        assert!(routes.get(&neighbour, Some(route("99").hash())).is_some());
        assert!(routes.get(&neighbour, Some(route("1").hash())).is_none());
    }
}
