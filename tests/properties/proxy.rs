//! The decision path of the proxy, without sockets: parse, select, splice, ask the judge, step down
//! when refused, record, advance, observe. The decisions are the ones the product makes; only what
//! joins them is written here, in the order `proxy` and `jobs` join them, with a switch for each
//! planted bug.

use std::collections::HashMap;

use bytes::Bytes;
use diarist::history::{History, Link, Scope};
use diarist::memory::advance::{ChainState, JobState, overflow};
use diarist::memory::select::{PreviousSend, select};
use diarist::memory::{Policy, record};
use diarist::wire;
use diarist::wire::{Additions, Insert, Placement};
use diarist_provider::{Rules, judge};

use super::conversation::{Digest, Request};
use super::exchange::{Exchange, Shown, Used};
use super::planted::Bug;
use super::scripted_observer::Script;
use super::world::World;

/// What a request goes out as.
#[derive(Clone, Debug)]
struct Choice {
    body: Bytes,
    used: Used,
    /// No placement is left for what was selected.
    unplaced: bool,
}

/// A chain whose newest request is the longest of it.
#[derive(Debug)]
pub struct Track {
    pub scope: Scope,
    pub chain: Vec<Link>,
    pub digests: Vec<Digest>,
    pub owner: String,
}

/// What a process knows beside the store.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// How many placements were refused.
    steps: usize,
    /// What requests were decided to go out with.
    settled: HashMap<(Scope, Link), Used>,
}

/// The processes of one proxy, which take requests in turn, and their store.
#[derive(Debug)]
pub struct Proxy {
    pub world: World,
    pub policy: Policy,
    pub script: Script,
    pub rules: Rules,
    pub ladder: Vec<Placement>,
    pub processes: Vec<Process>,
    pub tracks: Vec<Track>,
    pub requests: usize,
    pub answers: usize,
    pub bug: Option<Bug>,
    pub shown: Vec<Shown>,
}

impl Proxy {
    pub fn new(
        policy: Policy,
        script: Script,
        rules: Rules,
        first: Placement,
        processes: usize,
        bug: Option<Bug>,
    ) -> Self {
        let ladder = [
            Placement::Segments,
            Placement::SystemMessage,
            Placement::AppendToSystem,
        ];
        let start = ladder.iter().position(|p| *p == first).unwrap();
        let mut world = World::default();
        world.any_branch = bug == Some(Bug::AnotherBranch);
        world.any_chain = bug == Some(Bug::ConfirmedByChain);
        world.any_length = bug == Some(Bug::EligibleIgnored);
        Self {
            world,
            policy,
            script,
            rules,
            ladder: ladder[start..].to_vec(),
            processes: vec![Process::default(); processes],
            tracks: Vec::new(),
            requests: 0,
            answers: 0,
            bug,
            shown: Vec::new(),
        }
    }

    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn scope(&self, request: &Request) -> Scope {
        let owner = &request.owner;
        let resource = match owner.resource {
            Some(_) if self.has(Bug::AnotherResource) => None,
            resource => resource,
        };
        let tenant = if self.has(Bug::AnotherTenant) {
            "everybody"
        } else {
            owner.tenant
        };
        Scope::new(tenant.as_bytes(), resource.map(str::as_bytes))
    }

    /// Forgets everything but the store.
    pub fn restart(&mut self) {
        for process in &mut self.processes {
            *process = Process::default();
        }
    }

    /// What `request` would go out as now.
    pub fn would_send(&self, request: &Request) -> Bytes {
        let parsed = wire::Request::parse_chat(&request.body).unwrap();
        let scope = self.scope(request);
        let history = parsed.history(&scope);
        self.choose(&scope, &parsed, &history, 0).body
    }

    /// What `request` would have gone out as with that snapshot, or with none.
    pub fn with(&self, request: &Request, used: Used) -> Bytes {
        let parsed = wire::Request::parse_chat(&request.body).unwrap();
        self.splice(&self.scope(request), &parsed, used)
    }

    /// The process that takes the request with this number.
    fn process(&self, turn: usize) -> &Process {
        &self.processes[turn % self.processes.len()]
    }

    fn process_mut(&mut self, turn: usize) -> &mut Process {
        let at = turn % self.processes.len();
        &mut self.processes[at]
    }

    fn choose(
        &self,
        scope: &Scope,
        parsed: &wire::Request,
        history: &History,
        turn: usize,
    ) -> Choice {
        let tip = history.tip();
        let pinned = tip.and_then(|tip| {
            let settled = self
                .process(turn)
                .settled
                .get(&(scope.clone(), tip))
                .copied();
            settled.or_else(|| self.world.pin(scope, tip))
        });
        let before = match pinned {
            _ if self.has(Bug::RetryNotPinned) => PreviousSend::NotSent,
            None => PreviousSend::NotSent,
            Some(None) => PreviousSend::Raw,
            Some(Some((id, _))) => PreviousSend::Snapshot(id),
        };
        let candidates = self.world.ending_on(scope, &links(history));
        let selection = select(history, &candidates, before);
        let placement = pinned
            .flatten()
            .map(|(_, placement)| placement)
            .or_else(|| self.ladder.get(self.process(turn).steps).copied());
        let used = selection
            .snapshot
            .as_ref()
            .and_then(|snapshot| Some((snapshot.id, placement?)));
        Choice {
            body: self.splice(scope, parsed, used),
            used,
            unplaced: selection.snapshot.is_some() && used.is_none(),
        }
    }

    fn splice(&self, scope: &Scope, parsed: &wire::Request, used: Used) -> Bytes {
        let ask_usage = parsed.stream();
        let Some((id, placement)) = used else {
            return joined(parsed, None, ask_usage);
        };
        let snapshot = self.world.snapshot(scope, id).unwrap().clone();
        super::planted::splice(
            self.bug,
            parsed,
            &snapshot,
            placement,
            self.requests,
            &|insert| joined(parsed, Some(insert), ask_usage),
        )
    }

    /// The whole way of one request.
    pub fn exchange(&mut self, request: &Request) -> Exchange {
        self.begin();
        let turn = self.requests;
        let (scope, parsed, history, choice) = self.start(request, turn);
        self.finish(request, &scope, &parsed, &history, &choice, turn)
    }

    /// Two equal requests: both are on their way before either is answered.
    pub fn exchange_twice(&mut self, request: &Request) -> [Exchange; 2] {
        self.begin();
        let turn = self.requests;
        let (scope, parsed, history, one) = self.start(request, turn);
        let (_, _, _, two) = self.start(request, turn + 1);
        let first = self.finish(request, &scope, &parsed, &history, &one, turn);
        let mut second = self.finish(request, &scope, &parsed, &history, &two, turn + 1);
        second.elsewhere = self.processes.len() > 1;
        [first, second]
    }

    /// Lets the Observer finish.
    pub fn rest(&mut self) -> Vec<Shown> {
        for job in &mut self.world.jobs {
            job.due = 0;
        }
        self.work();
        std::mem::take(&mut self.shown)
    }

    /// Whether the Observer or the Reflector has something to do.
    fn waiting(&self) -> bool {
        self.world
            .jobs
            .iter()
            .any(|job| job.state != JobState::Abandoned)
    }

    fn begin(&mut self) {
        self.requests += 1;
        self.work();
    }

    fn start(&mut self, request: &Request, turn: usize) -> (Scope, wire::Request, History, Choice) {
        let parsed = wire::Request::parse_chat(&request.body).unwrap();
        let scope = self.scope(request);
        let history = parsed.history(&scope);
        let mut choice = self.choose(&scope, &parsed, &history, turn);
        if let Some(tip) = history.tip().filter(|_| !self.has(Bug::RetryNotPinned)) {
            let used = *self
                .process_mut(turn)
                .settled
                .entry((scope.clone(), tip))
                .or_insert(choice.used);
            if used != choice.used {
                choice = Choice {
                    body: self.splice(&scope, &parsed, used),
                    used,
                    ..choice
                };
            }
        }
        (scope, parsed, history, choice)
    }

    fn finish(
        &mut self,
        request: &Request,
        scope: &Scope,
        parsed: &wire::Request,
        history: &History,
        choice: &Choice,
        turn: usize,
    ) -> Exchange {
        let mut exchange = Exchange {
            waiting: self.waiting() || self.world.paused(scope),
            unplaced: choice.unplaced,
            ..Exchange::default()
        };
        exchange.sent.push((choice.body.clone(), choice.used));
        let mut used = choice.used;
        match judge(&choice.body, &self.rules) {
            Ok(accepted) => exchange.accepted = Some(accepted),
            Err(refusal) => {
                let too_long = refusal.code == Some("context_length_exceeded");
                exchange.too_long = too_long;
                let original = (choice.body != request.body).then(|| Choice {
                    body: request.body.clone(),
                    used: None,
                    unplaced: false,
                });
                let again = if self.has(Bug::RefusalPassedOn) {
                    None
                } else if too_long {
                    // Our counts are not the provider's (a picture may cost it next to nothing):
                    // where nothing more can be taken out, the original may fit all the same.
                    self.shortened(scope, parsed, history, used, turn)
                        .or(original)
                } else {
                    original
                };
                if let Some(again) = again {
                    exchange.sent.push((again.body.clone(), again.used));
                    exchange.accepted = judge(&again.body, &self.rules).ok();
                    if !too_long
                        && exchange.accepted.is_some()
                        && let Some((_, placement)) = used
                    {
                        let at = self.ladder.iter().position(|p| *p == placement);
                        let process = self.process_mut(turn);
                        process.steps = process.steps.max(at.map_or(0, |at| at + 1));
                        exchange.stepped_down = true;
                    }
                    used = again.used;
                    if let Some(tip) = history.tip() {
                        let process = self.process_mut(turn);
                        process.settled.insert((scope.clone(), tip), used);
                    }
                }
            }
        }
        if exchange.accepted.is_some() {
            self.record(request, scope, parsed, history, used);
        } else if let Some(tip) = history.tip() {
            // Nothing was recorded: another process may be the first to have it accepted.
            self.process_mut(turn).settled.remove(&(scope.clone(), tip));
        }
        exchange.shown = std::mem::take(&mut self.shown);
        exchange
    }

    /// Everything observed applied, where that covers more than was covered.
    fn shortened(
        &mut self,
        scope: &Scope,
        parsed: &wire::Request,
        history: &History,
        used: Used,
        turn: usize,
    ) -> Option<Choice> {
        // Its twin may have been accepted meanwhile.
        let pinned = self.world.pin(scope, history.tip()?);
        if let Some(pinned) = pinned.filter(|pinned| *pinned != used) {
            return Some(Choice {
                body: self.splice(scope, parsed, pinned),
                used: pinned,
                unplaced: false,
            });
        }
        let placement = *self.ladder.get(self.process(turn).steps)?;
        let known = self.world.known(scope, &links(history));
        let nodes = record::refused_nodes(history, &known.nodes);
        let path = ChainState {
            root: Link::root(scope),
            nodes: &nodes,
            parts: &known.parts,
            snapshots: &known.snapshots,
            jobs: &known.work,
        };
        let plan = overflow(&path, &self.policy)?;
        let to_count = plan.to_count;
        let (id, _) = self.prepare(scope, &plan, (history.tip()?, history.len()), true)?;
        let covered = used.map_or(0, |(id, _)| {
            self.world.snapshot(scope, id).unwrap().meta.to_count
        });
        (to_count > covered).then(|| {
            let used = Some((id, placement));
            Choice {
                body: self.splice(scope, parsed, used),
                used,
                unplaced: false,
            }
        })
    }
}

pub fn links(history: &History) -> Vec<Link> {
    history
        .messages()
        .iter()
        .map(|chained| chained.link)
        .collect()
}

fn joined(parsed: &wire::Request, insert: Option<&Insert<'_>>, ask_usage: bool) -> Bytes {
    let additions = Additions {
        usage: ask_usage,
        ..Additions::default()
    };
    let frames = parsed.splice(insert, additions).frames(parsed.body());
    frames.concat().into()
}
