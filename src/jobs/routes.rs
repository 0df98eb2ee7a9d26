//! The ways to the upstream that conversations lend their memory.
//!
//! A borrowed credential lives here and nowhere else, in memory, for as long as its conversation is
//! alive; jobs that need it wait where it is not held and come again with the next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::llm::BorrowedRoute;

/// How long after its last request a conversation's credential is held. Long enough for the jobs of
/// its last turn and their retries.
const HELD: Duration = Duration::from_mins(30);

/// Tenants held at most; the longest unused goes first.
const TENANTS: usize = 10_000;

/// An upstream that asks for more is taken at this, as in [`crate::llm::backoff`]: the next answer can
/// ask again.
const LONGEST_REST: Duration = Duration::from_hours(1);

#[derive(Debug)]
struct Held {
    route: Arc<BorrowedRoute>,
    used: Instant,
    resting_until: Option<Instant>,
}

/// Borrowed ways by tenant.
#[derive(Debug, Default)]
pub struct Routes {
    held: Mutex<HashMap<[u8; 32], Held>>,
}

impl Routes {
    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of this tenant was accepted on this way.
    pub fn lend(&self, tenant: [u8; 32], route: Arc<BorrowedRoute>) {
        let mut held = self.locked();
        if held.len() >= TENANTS && !held.contains_key(&tenant) {
            let oldest = held
                .iter()
                .min_by_key(|(_, held)| held.used)
                .map(|(tenant, _)| *tenant);
            oldest.map(|tenant| held.remove(&tenant));
        }
        let resting_until = held.get(&tenant).and_then(|held| held.resting_until);
        held.insert(
            tenant,
            Held {
                route,
                used: Instant::now(),
                resting_until,
            },
        );
    }

    /// The client needs what is left of its rate limit: jobs of this tenant wait.
    pub fn rest(&self, tenant: &[u8; 32], pause: Duration) {
        if let Some(held) = self.locked().get_mut(tenant) {
            let until = Instant::now() + pause.min(LONGEST_REST);
            // What is left of a rate limit says nothing about a rest that was asked for.
            held.resting_until = held.resting_until.max(Some(until));
        }
    }

    /// The upstream refused this credential.
    pub fn withdraw(&self, tenant: &[u8; 32]) {
        self.locked().remove(tenant);
    }

    /// The way of `tenant`, if it may be used now.
    pub(super) fn of(&self, tenant: &[u8; 32]) -> Option<Arc<BorrowedRoute>> {
        self.locked()
            .get(tenant)
            .filter(|held| held.usable())
            .map(|held| Arc::clone(&held.route))
    }

    /// Tenants whose way may be used now.
    pub(super) fn usable(&self) -> Vec<[u8; 32]> {
        let mut held = self.locked();
        held.retain(|_, held| held.used.elapsed() < HELD);
        held.iter()
            .filter(|(_, held)| held.usable())
            .map(|(tenant, _)| *tenant)
            .collect()
    }
}

impl Held {
    fn usable(&self) -> bool {
        self.used.elapsed() < HELD
            && self
                .resting_until
                .is_none_or(|until| Instant::now() >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: [u8; 32] = [7; 32];

    fn lent() -> Routes {
        let routes = Routes::default();
        let url = url::Url::parse("http://localhost/v1/chat/completions").expect("a URL");
        let route = BorrowedRoute::new(&url, &http::HeaderMap::new());
        routes.lend(TENANT, Arc::new(route));
        routes
    }

    fn rests(routes: &Routes) -> Duration {
        let held = routes.locked();
        let until = held[&TENANT].resting_until.expect("it rests");
        until.saturating_duration_since(Instant::now())
    }

    #[test]
    fn no_upstream_can_ask_for_a_rest_without_end() {
        let routes = lent();
        routes.rest(&TENANT, Duration::from_secs(u64::MAX));
        assert!(rests(&routes) <= LONGEST_REST);
        assert_eq!(routes.usable(), Vec::<[u8; 32]>::new());
    }

    #[test]
    fn a_short_rest_does_not_end_a_long_one() {
        let routes = lent();
        routes.rest(&TENANT, Duration::from_mins(5));
        routes.rest(&TENANT, Duration::from_secs(15));
        assert!(rests(&routes) > Duration::from_secs(200));
    }
}
