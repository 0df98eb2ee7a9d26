//! Conversations whose requests register a route to the upstream, and the jobs that may call through it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use diarist::llm::UpstreamRoute;
use diarist::store::Job;

use super::ledger::Ledger;
use super::rules::Rule;
use super::run::World;
use crate::properties::conversation::{Owner, Request};

/// For how long after its last request a route may be used.
const HELD_MS: i64 = 1_800_000;

type Tenant = [u8; 32];
type RouteHash = [u8; 32];

/// The routes that each process knows, and when each was registered last.
#[derive(Debug, Default)]
pub struct Routes {
    registered: HashMap<(usize, Tenant, RouteHash), i64>,
    resting_until: HashMap<(usize, Tenant), i64>,
}

impl Routes {
    /// Every route that was ever registered with `process`.
    pub fn all_registered(&self, process: usize) -> Vec<(Tenant, RouteHash)> {
        let registered = self
            .registered
            .keys()
            .filter(|(holder, ..)| *holder == process);
        let mut all: Vec<_> = registered
            .map(|(_, tenant, route_hash)| (*tenant, *route_hash))
            .collect();
        all.sort_unstable();
        all
    }
}

impl Ledger {
    /// A job is claimed where its own route is registered, alive and not resting, and nowhere else.
    pub fn check_claim(&mut self, process: usize, job: &Job, now_ms: i64) {
        let Some(routes) = &self.routes else { return };
        let tenant = job.scope.tenant;
        let key = job
            .spec
            .route_hash
            .map(|route_hash| (process, tenant, route_hash));
        let registered = key.and_then(|key| routes.registered.get(&key));
        let alive = registered.is_some_and(|at| now_ms - at < HELD_MS);
        let rests = routes.resting_until.get(&(process, tenant));
        let rests = rests.is_some_and(|until| now_ms < *until);
        if !alive || rests {
            let how = format!("a job is claimed: its route is alive: {alive}, rests: {rests}");
            self.breach(Rule::Route, how);
        }
    }
}

/// The route of `owner`'s requests. Now and then they take another one.
pub fn route(owner: &Owner, other: bool) -> UpstreamRoute {
    let path = if other { "v1/eu" } else { "v1" };
    let url = format!("http://upstream.test/{path}/{}", owner.label());
    let mut headers = http::HeaderMap::new();
    let credential = format!("Bearer {}", owner.tenant);
    headers.insert("authorization", credential.parse().unwrap());
    UpstreamRoute::new(
        &url.parse().unwrap(),
        &headers,
        &diarist::llm::CredentialHeaders::default(),
        diarist::history::Pepper::NONE
            .hasher(&diarist::history::HashPurpose::new("diarist 2026-11 way")),
    )
}

impl World {
    /// Whether memory has no endpoint of its own.
    pub fn borrows_credentials(&self) -> bool {
        self.ledger().routes.is_some()
    }

    /// Process `at` had a request of `tenant` accepted: its memory may use the same route.
    pub fn register_route(
        &self,
        at: usize,
        tenant: Tenant,
        route: UpstreamRoute,
    ) -> Option<RouteHash> {
        let route_hash = route.hash();
        self.note_registered(at, tenant, route_hash)?;
        let routes = self.processes[at].memory.jobs.routes();
        routes.register(tenant, Arc::new(route));
        Some(route_hash)
    }

    /// The same, where the product has done it.
    pub fn note_registered(&self, at: usize, tenant: Tenant, route_hash: RouteHash) -> Option<()> {
        let now_ms = self.ground.clock.now_ms();
        let process = self.processes[at].number;
        let mut ledger = self.ledger();
        ledger
            .routes
            .as_mut()?
            .registered
            .insert((process, tenant, route_hash), now_ms);
        Some(())
    }

    /// The upstream limited the client's rate: the client needs what is left for itself.
    pub fn rate_limited(&self, at: usize, tenant: Tenant) {
        let process = self.processes[at].number;
        let until = self.ground.clock.now_ms() + 30_000;
        let mut ledger = self.ledger();
        let Some(routes) = ledger.routes.as_mut() else {
            return;
        };
        if routes
            .registered
            .keys()
            .any(|(p, t, _)| (*p, *t) == (process, tenant))
        {
            let known = routes
                .resting_until
                .entry((process, tenant))
                .or_insert(until);
            *known = until.max(*known);
        }
        let jobs = &self.processes[at].memory.jobs;
        jobs.routes().pause(&tenant, Duration::from_secs(30));
    }

    /// Every conversation comes again, by each of its routes.
    pub fn register_all_again(&self) {
        if !self.borrows_credentials() {
            return;
        }
        for (owner, tenant) in &self.tenants {
            for other in [false, true] {
                let at = self.home(&owner.label());
                self.register_route(at, *tenant, route(owner, other));
            }
        }
    }

    /// Whose a request is.
    pub fn add_tenant(&mut self, request: &Request, tenant: Tenant) {
        let owner = &request.owner;
        if self.tenants.iter().all(|(known, _)| known != owner) {
            self.tenants.push((owner.clone(), tenant));
        }
    }
}
