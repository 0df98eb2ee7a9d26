//! The routes to the upstream that jobs may borrow from their conversations.
//!
//! A borrowed credential lives only here, in memory, while its conversations are active. Jobs that
//! need a route that is not held wait until the next request brings it. A job uses only the route
//! of its own conversation, never another one of the same credential: another path, organisation or
//! project is another account. `proxy` registers routes, the worker uses them.
//!
//! A borrowed credential yields to its client. If a rate limit is reached and the upstream says for how
//! long, its jobs rest as long. If it does not say, they *slow down*: one job at a time, after a pause that
//! grows with each further limit and shrinks with each job that ends without one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock::{Clock, millis};
use super::model_health::ModelHealth;
use crate::history::Scope;
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

/// The first pause of a tenant whose upstream limits the rate without saying for how long, and the longest.
const FIRST_SLOW_PAUSE: Duration = Duration::from_millis(200);
const MAX_SLOW_PAUSE: Duration = Duration::from_secs(30);

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
    slow: HashMap<Tenant, Slow>,
    /// How many running jobs borrow the credential of a tenant.
    borrowing_jobs: HashMap<Tenant, usize>,
}

/// A tenant whose jobs slow down.
#[derive(Clone, Copy, Debug)]
struct Slow {
    pause: Duration,
    /// The next call begins no earlier.
    next_call: Instant,
}

/// Borrowed routes by tenant and [`UpstreamRoute::hash`].
#[derive(Debug)]
pub struct Routes {
    table: Mutex<RouteTable>,
    clock: Clock,
    health: ModelHealth,
}

/// A job that borrows the credential of a tenant. The borrowing ends when this is dropped.
#[derive(Debug)]
pub(super) struct BorrowedCredential {
    routes: Arc<Routes>,
    tenant: Tenant,
}

impl Drop for BorrowedCredential {
    fn drop(&mut self) {
        self.routes.borrowing_ended(&self.tenant);
    }
}

impl Routes {
    /// An empty table.
    pub(super) fn new(clock: &Clock, health: &ModelHealth) -> Self {
        Self {
            table: Mutex::default(),
            clock: clock.clone(),
            health: health.clone(),
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

    /// Holds the route with this hash for longer. `false` if it is not held.
    pub fn renew(&self, tenant: Tenant, hash: RouteHash) -> bool {
        let last_used = self.clock.instant();
        let mut table = self.lock();
        let entry = table.routes.get_mut(&(tenant, hash));
        entry.map(|entry| entry.last_used = last_used).is_some()
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
        let known = table.paused_until.insert(*tenant, until);
        if let Some(known) = known.filter(|known| *known >= until) {
            table.paused_until.insert(*tenant, known);
            return;
        }
        drop(table);
        let until_ms = self.clock.now_ms().saturating_add(millis(until - now));
        self.health.record_rest(tenant, until_ms);
        if known.is_none() {
            let until = jiff::Timestamp::from_millisecond(until_ms).unwrap_or_default();
            tracing::info!(
                tenant = Scope::format_tenant_label(tenant),
                until = format!("{until:.0}"),
                "the rate limit of a client's credential is used up or more than half used: memory's calls with it wait"
            );
        }
    }

    /// The upstream has limited the rate of this tenant. `retry_after` is how long, if it says so.
    pub fn limited(&self, tenant: &Tenant, retry_after: Option<Duration>) {
        match retry_after {
            Some(pause) => self.pause(tenant, pause),
            None => self.slow_down(tenant),
        }
    }

    fn slow_down(&self, tenant: &Tenant) {
        let mut table = self.lock();
        let now = self.clock.instant();
        if !table.routes.keys().any(|(owner, _)| owner == tenant) {
            return;
        }
        table
            .slow
            .retain(|_, slow| now < slow.next_call + MAX_SLOW_PAUSE);
        let known = table.slow.get(tenant).copied();
        let pause = match known {
            // Requests that were under way together are limited together.
            Some(slow) if now < slow.next_call => return,
            Some(slow) => slow.pause.saturating_mul(2).min(MAX_SLOW_PAUSE),
            None => FIRST_SLOW_PAUSE,
        };
        let next_call = now + pause;
        table.slow.insert(*tenant, Slow { pause, next_call });
        if known.is_none() {
            tracing::info!(
                tenant = Scope::format_tenant_label(tenant),
                "the upstream limits the rate of a client's credential: memory's calls with it slow down"
            );
        }
    }

    /// How long until the next tenant that waits may be called again; `None` if nobody waits.
    pub(super) fn next_end_of_wait(&self) -> Option<Duration> {
        let table = self.lock();
        let now = self.clock.instant();
        let slow = table.slow.values().map(|slow| slow.next_call);
        let ends = table.paused_until.values().copied().chain(slow);
        ends.filter_map(|end| end.checked_duration_since(now))
            .filter(|left| !left.is_zero())
            .min()
    }

    /// A job begins to borrow the credential of `tenant`, until the result is dropped.
    pub(super) fn borrow(self: &Arc<Self>, tenant: Tenant) -> BorrowedCredential {
        *self.lock().borrowing_jobs.entry(tenant).or_default() += 1;
        BorrowedCredential {
            routes: Arc::clone(self),
            tenant,
        }
    }

    fn borrowing_ended(&self, tenant: &Tenant) {
        let mut table = self.lock();
        let now = self.clock.instant();
        if let Some(count) = table.borrowing_jobs.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                table.borrowing_jobs.remove(tenant);
            }
        }
        // No limit was reached while it ran.
        if let Some(slow) = table
            .slow
            .get_mut(tenant)
            .filter(|slow| now >= slow.next_call)
        {
            slow.pause /= 2;
            slow.next_call = now + slow.pause;
            if slow.pause < FIRST_SLOW_PAUSE {
                table.slow.remove(tenant);
            }
        }
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
            .filter(|(tenant, _)| !table.is_paused(tenant, now) && !table.must_wait(tenant, now))
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

    /// Whether a tenant that slows down may begin no call now.
    fn must_wait(&self, tenant: &Tenant, now: Instant) -> bool {
        self.slow
            .get(tenant)
            .is_some_and(|slow| now < slow.next_call || self.borrowing_jobs.contains_key(tenant))
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
        Arc::new(UpstreamRoute::new(
            &url,
            &http::HeaderMap::new(),
            &crate::llm::CredentialHeaders::default(),
            blake3::Hasher::new(),
        ))
    }

    fn empty_routes() -> Routes {
        let clock = Clock::default();
        let health = ModelHealth::new(clock.clone(), &crate::tasks::Readiness::new());
        Routes::new(&clock, &health)
    }

    fn routes_with_one() -> Routes {
        let routes = empty_routes();
        routes.register(TENANT, route("v1/chat/completions"));
        routes
    }

    fn pause_left(routes: &Routes) -> Duration {
        let until = routes.lock().paused_until[&TENANT];
        until.saturating_duration_since(Instant::now())
    }

    #[test]
    fn an_endless_pause_is_cut_to_the_maximum() {
        let routes = routes_with_one();
        routes.pause(&TENANT, Duration::from_secs(u64::MAX));
        assert!(pause_left(&routes) <= MAX_PAUSE);
        assert_eq!(routes.usable(), Vec::new());
    }

    #[test]
    fn a_short_pause_does_not_end_a_long_one() {
        let routes = routes_with_one();
        routes.pause(&TENANT, Duration::from_mins(5));
        routes.pause(&TENANT, Duration::from_secs(15));
        assert!(pause_left(&routes) > Duration::from_secs(200));
    }

    #[test]
    fn a_job_borrows_only_the_route_of_its_own_conversation() {
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
        assert!(routes.renew(TENANT, other.hash()));
        routes.withdraw(&TENANT, Some(other.hash()));
        assert!(routes.get(&TENANT, Some(other.hash())).is_none());
        assert!(!routes.renew(TENANT, other.hash()), "it has to come again");
        assert!(routes.get(&TENANT, Some(one.hash())).is_some());
    }

    #[test]
    fn a_route_is_kept_while_requests_use_it() {
        let clock = Clock::manual(0);
        let health = ModelHealth::new(clock.clone(), &crate::tasks::Readiness::new());
        let routes = Routes::new(&clock, &health);
        let one = route("v1/chat/completions");
        routes.register(TENANT, Arc::clone(&one));
        for _ in 0..3 {
            clock.advance(ROUTE_TTL / 2);
            assert!(routes.renew(TENANT, one.hash()));
        }
        clock.advance(ROUTE_TTL / 2);
        assert_eq!(routes.usable().len(), 1);
        clock.advance(ROUTE_TTL / 2);
        assert_eq!(routes.usable(), Vec::new());
    }

    #[test]
    fn a_rate_limit_without_a_time_allows_one_call_at_a_time() {
        let clock = Clock::manual(0);
        let health = ModelHealth::new(clock.clone(), &crate::tasks::Readiness::new());
        let routes = Arc::new(Routes::new(&clock, &health));
        routes.register(TENANT, route("v1/chat/completions"));
        let waits = |routes: &Routes| routes.usable().is_empty();
        let two = [routes.borrow(TENANT), routes.borrow(TENANT)];
        assert!(!waits(&routes), "calls run side by side");
        // Requests that were under way together: one pause.
        for _ in 0..5 {
            routes.limited(&TENANT, None);
        }
        drop(two);
        assert!(waits(&routes));
        clock.advance(FIRST_SLOW_PAUSE);
        assert!(!waits(&routes));
        let one = routes.borrow(TENANT);
        assert!(waits(&routes), "one at a time");
        routes.limited(&TENANT, None);
        drop(one);
        clock.advance(FIRST_SLOW_PAUSE);
        assert!(waits(&routes), "the pause has grown");
        clock.advance(FIRST_SLOW_PAUSE);
        drop(routes.borrow(TENANT));
        clock.advance(FIRST_SLOW_PAUSE);
        drop(routes.borrow(TENANT));
        let _several = [routes.borrow(TENANT), routes.borrow(TENANT)];
        assert!(
            !waits(&routes),
            "no limit was reached for two calls: as before"
        );
    }

    #[test]
    fn a_pause_holds_for_every_route_of_a_credential() {
        let routes = routes_with_one();
        let other = route("eu/v1/chat/completions");
        routes.pause(&TENANT, Duration::from_mins(5));
        routes.register(TENANT, Arc::clone(&other));
        assert!(routes.get(&TENANT, Some(other.hash())).is_none());
    }

    #[test]
    fn a_tenant_with_many_routes_drops_only_its_own_routes() {
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
