//! Conversations that lend their memory their own way to the upstream, and what a job may take of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use diarist::llm::UpstreamRoute;
use diarist::store::Job;

use super::ledger::Ledger;
use super::rules::Rule;
use super::run::World;
use crate::properties::talk::{Owner, Request};

/// For how long after its last request a way may be taken.
const HELD_MS: i64 = 1_800_000;

type Tenant = [u8; 32];
type RouteHash = [u8; 32];

/// What each process was lent, and when.
#[derive(Debug, Default)]
pub struct Routes {
    registered: HashMap<(usize, Tenant, RouteHash), i64>,
    resting_until: HashMap<(usize, Tenant), i64>,
}

impl Routes {
    /// Everything that `process` was ever lent.
    pub fn all_registered(&self, process: usize) -> Vec<(Tenant, RouteHash)> {
        let lent = self
            .registered
            .keys()
            .filter(|(holder, ..)| *holder == process);
        let mut all: Vec<_> = lent.map(|(_, tenant, way)| (*tenant, *way)).collect();
        all.sort_unstable();
        all
    }
}

impl Ledger {
    /// A job is taken where its own way is held, alive and not resting, and nowhere else.
    pub fn check_claim(&mut self, process: usize, job: &Job, now_ms: i64) {
        let Some(ways) = &self.routes else { return };
        let tenant = job.scope.tenant;
        let lent = job.spec.route_hash.map(|way| (process, tenant, way));
        let lent = lent.and_then(|key| ways.registered.get(&key));
        let alive = lent.is_some_and(|at| now_ms - at < HELD_MS);
        let rests = ways.resting_until.get(&(process, tenant));
        let rests = rests.is_some_and(|until| now_ms < *until);
        if !alive || rests {
            let how = format!("a job is taken: its way is alive: {alive}, rests: {rests}");
            self.breach(Rule::Route, how);
        }
    }
}

/// The way of `owner`'s requests; now and then they take another.
pub fn route(owner: &Owner, other: bool) -> UpstreamRoute {
    let path = if other { "v1/eu" } else { "v1" };
    let url = format!("http://upstream.test/{path}/{}", owner.label());
    let mut headers = http::HeaderMap::new();
    let credential = format!("Bearer {}", owner.tenant);
    headers.insert("authorization", credential.parse().unwrap());
    UpstreamRoute::new(
        &url.parse().unwrap(),
        &headers,
        diarist::history::Pepper::NONE.hasher("diarist 2026-11 way"),
    )
}

impl World {
    /// Whether memory has no endpoint of its own.
    pub fn borrows_credentials(&self) -> bool {
        self.ledger().routes.is_some()
    }

    /// A request of `tenant` was accepted by process `at`: its memory may go the same way.
    pub fn register_route(
        &self,
        at: usize,
        tenant: Tenant,
        route: UpstreamRoute,
    ) -> Option<RouteHash> {
        let way = route.hash();
        self.note_registered(at, tenant, way)?;
        let routes = self.processes[at].memory.jobs.routes();
        routes.register(tenant, Arc::new(route));
        Some(way)
    }

    /// The same, where the product has done it.
    pub fn note_registered(&self, at: usize, tenant: Tenant, way: RouteHash) -> Option<()> {
        let now_ms = self.ground.clock.now_ms();
        let process = self.processes[at].number;
        let mut ledger = self.ledger();
        ledger
            .routes
            .as_mut()?
            .registered
            .insert((process, tenant, way), now_ms);
        Some(())
    }

    /// The client was told that it asks too often: it needs what is left for itself.
    pub fn rate_limited(&self, at: usize, tenant: Tenant) {
        let process = self.processes[at].number;
        let until = self.ground.clock.now_ms() + 30_000;
        let mut ledger = self.ledger();
        let Some(ways) = ledger.routes.as_mut() else {
            return;
        };
        if ways
            .registered
            .keys()
            .any(|(p, t, _)| (*p, *t) == (process, tenant))
        {
            let known = ways.resting_until.entry((process, tenant)).or_insert(until);
            *known = until.max(*known);
        }
        let routes = self.processes[at].memory.jobs.routes();
        routes.pause(&tenant, Duration::from_secs(30));
    }

    /// Every conversation comes again, by each way it knows.
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
