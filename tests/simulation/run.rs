//! One run: clients talk, and between their requests whatever can happen does, as the dice say. Then
//! everybody rests, and every recorded request comes once more.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use diarist::jobs::Clock;
use diarist::proxy::DryRun;
use diarist::store::SqliteStore;
use diarist_provider::Rules;
use tokio::runtime::Runtime;

use super::after;
use super::counts::Counts;
use super::gate::weave;
use super::ledger::Ledger;
use super::planted::Bug;
use super::process::{Environment, Process, Step, open};
use super::registered_routes::Routes;
use super::rules::Breach;
use super::setup::{IDLE_MS, MODEL, Setup};
use crate::properties::client::Client;
use crate::properties::conversation::{Owner, Request, Run};
use crate::properties::history_laws::Laws;
use crate::properties::scripted_observer::Script;
use crate::support::dice::Dice;

/// Midnight of a day in November 2026.
const START_MS: i64 = 1_795_132_800_000;

/// Steps that may be needed until nothing is left to do.
pub const PATIENCE: usize = 100;

/// Two turns: memory hears of what was lost with the next request, and the one after confirms it.
const BEHIND: usize = 4;

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    pub breaches: Vec<Breach>,
    pub counts: Counts,
    /// A digest of every byte that was sent, in order.
    pub trace: blake3::Hash,
}

pub struct World {
    /// Ends the thread for which the clock stands still; before the runtime, which waits for it.
    _over: std::sync::mpsc::Sender<()>,
    pub runtime: Runtime,
    pub ground: Environment,
    pub dice: Dice,
    pub processes: Vec<Process>,
    /// Which process serves which client's owner.
    pub home: Vec<(String, usize)>,
    pub laws: Laws,
    pub rules: Rules,
    /// Owners and their credentials' hashes.
    pub tenants: Vec<(Owner, [u8; 32])>,
    /// Whether a refusal says how much was too much.
    pub shares_memory: bool,
    /// Requests so far.
    pub turn: usize,
    /// Nothing goes wrong any more.
    pub calm: bool,
    pub births: usize,
    pub trace: blake3::Hasher,
    /// Accepted requests that were never recorded: memory is behind by them, and with the first that
    /// continue them.
    pub lost: HashSet<(String, Run)>,
    /// What the requests of each chain were sent with, one after the other.
    pub used: after::Used,
    pub folder: tempfile::TempDir,
    /// Accepted requests by their owner and newest message: what a later request carries behind that
    /// is what the upstream answered.
    pub answers: HashMap<(String, String), DryRun>,
}

/// Plays the run of `seed`, with a bug planted or without.
pub fn run(seed: u64, bug: Option<Bug>) -> Report {
    let mut dice = Dice::new(seed);
    let mut setup = Setup::roll(&mut dice);
    if let Some(bug) = bug {
        setup.provoke(bug);
    }
    let mut world = World::new(&setup, dice.fork(), bug);
    let mut clients: Vec<Client> = setup
        .clients
        .iter()
        .map(|(owner, habits)| Client::new(owner.clone(), habits.clone()))
        .collect();
    world.ledger().counts.conversations = clients.len();
    for (who, act) in &setup.moves {
        clients[*who].perform(act, &mut world);
        if !world.ledger().breaches.is_empty() || !world.laws.broken.is_empty() {
            break;
        }
    }
    if world.laws.broken.is_empty() && world.ledger().breaches.is_empty() {
        world.settle_down(&mut clients);
        world.send_all_again();
    }
    world.report()
}

impl World {
    fn new(setup: &Setup, dice: Dice, bug: Option<Bug>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        // While a thread of its own is busy the paused clock stands still: no timeout of the store ever
        // fires, however slow this machine is.
        let (over, wait) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || wait.recv());
        let folder = folder();
        let mut ground = Environment {
            file: folder.path().join("diarist.db"),
            alone: setup.processes == 1,
            clock: Clock::manual(START_MS),
            ledger: Arc::default(),
            settings: setup.settings(),
            placement: setup.placement,
            character: setup.character,
            overflow: setup.overflow,
            bug,
        };
        let idle = setup.idle.0 || setup.idle.1;
        let idle_ms = idle.then_some(IDLE_MS);
        let mut ledger = ground.ledger.lock().unwrap();
        ledger.clockwork.idle_ms = idle_ms;
        ledger.limit = ground.settings.policy.observation_limit;
        ledger.routes = setup.borrows_credentials.then(Routes::default);
        drop(ledger);
        if bug == Some(Bug::LimitIgnored) {
            ground.settings.policy.observation_limit = u32::MAX;
            if let Some(costs) = &mut ground.settings.cost_aware {
                costs.policy.observation_limit = u32::MAX;
            }
        }
        let script = Script {
            late: 0,
            empty_every: 0,
            observed: setup.character.observed,
            reflected: setup.character.reflected,
        };
        let mut laws = Laws::new(ground.settings.policy_for(MODEL), script, setup.rules());
        laws.views = true;
        let mut world = Self {
            runtime,
            ground,
            dice,
            processes: Vec::new(),
            home: Vec::new(),
            laws,
            rules: setup.rules(),
            shares_memory: setup.shares_memory,
            tenants: Vec::new(),
            turn: 0,
            calm: false,
            births: 0,
            trace: blake3::Hasher::new(),
            lost: HashSet::new(),
            used: after::Used::new(),
            folder,
            answers: HashMap::new(),
            _over: over,
        };
        for at in 0..setup.processes {
            let process = world.start_process();
            world.processes.insert(at, process);
        }
        for (owner, _) in &setup.clients {
            let at = world.dice.below(setup.processes);
            if world.home.iter().all(|(known, _)| *known != owner.label()) {
                world.home.push((owner.label(), at));
            }
        }
        world
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ground.ledger.lock().unwrap()
    }

    fn start_process(&mut self) -> Process {
        self.births += 1;
        let number = self.births;
        self.runtime.block_on(Process::start(number, &self.ground))
    }

    /// The process at `at` is gone, and another stands in its place. Its clients may find another
    /// way: to a process that knows nothing of them yet.
    pub fn crash(&mut self, at: usize) {
        self.ledger().counts.crashes += 1;
        let gone = self.processes.remove(at);
        for waiting in &gone.inbox {
            self.lose(&waiting.request);
        }
        let unrecorded = self.ledger().unrecorded(gone.number);
        for request in &unrecorded {
            self.lose(request);
        }
        // The system does this when a process is gone; here requests that it answered still hold it.
        gone.store.release_lock();
        drop(gone);
        let new = self.start_process();
        self.processes.insert(at, new);
        for (owner, home) in &mut self.home {
            let other = self.dice.below(self.processes.len());
            if *home == at && self.dice.chance(40) && !self.processes[other].served.contains(owner)
            {
                *home = other;
            }
        }
    }

    pub fn lose(&mut self, request: &Request) {
        let tip = request.prefixes().pop().unwrap();
        self.lost.insert((request.owner.label(), tip));
    }

    /// The last messages of `owner`'s requests that were never recorded.
    pub fn lost_runs(&self, owner: &str) -> HashSet<Run> {
        let own = self.lost.iter().filter(|(known, _)| known == owner);
        own.map(|(_, tip)| *tip).collect()
    }

    /// Whether memory has to find out first what a request continues.
    pub fn is_behind(&self, request: &Request) -> bool {
        let owner = request.owner.label();
        let news = |count: usize| request.turns.len() <= count + BEHIND;
        let mut prefixes = request.prefixes().into_iter().enumerate();
        prefixes.any(|(count, run)| news(count) && self.lost.contains(&(owner.clone(), run)))
    }

    pub fn home(&self, owner: &str) -> usize {
        self.home
            .iter()
            .find(|(known, _)| known == owner)
            .unwrap()
            .1
    }

    /// Whatever can happen between two requests.
    pub fn random_steps(&mut self) {
        for _ in 0..self.dice.below(9) {
            let at = self.dice.below(self.processes.len());
            match self.dice.below(40) {
                0 if !self.calm => {
                    let long = self.dice.between(20, 150);
                    self.advance_clock(long);
                }
                1 if !self.calm => self.processes[at]
                    .store
                    .gate
                    .die_after(i64::try_from(self.dice.below(6)).unwrap()),
                2 if !self.calm && self.dice.chance(30) => self.crash(at),
                3 if !self.calm && self.dice.chance(50) => self.serve_stale_reads(at),
                4 if !self.calm => {
                    let every = *self.dice.pick(&[0, 0, 2, 3]);
                    self.processes[at]
                        .store
                        .failing
                        .store(every, Ordering::SeqCst);
                }
                5..=9 if self.processes.len() > 1 => self.weave(at),
                10 if !self.calm && self.idles() => {
                    let long = self.dice.between(200, 500);
                    self.fall_idle(long);
                }
                _ => self.step(at),
            }
        }
    }

    /// Whether idleness matters in this run.
    pub fn idles(&self) -> bool {
        self.ledger().clockwork.idle_ms.is_some()
    }

    pub fn advance_clock(&mut self, seconds: usize) {
        let time = Duration::from_secs(u64::try_from(seconds).unwrap());
        self.ground.clock.advance(time);
    }

    /// What process `at` does next, if it has something to do.
    fn choose_step(&mut self, at: usize) -> Option<(Step, usize)> {
        let process = &self.processes[at];
        let possible = process.possible(self.turn);
        if possible.is_empty() {
            return None;
        }
        let step = *self.dice.pick(&possible);
        let process = &self.processes[at];
        if let Step::CallModel(at) = step {
            let job = &process.working[at].job;
            let range =
                self.ground
                    .ledger
                    .lock()
                    .unwrap()
                    .range(&job.scope, job.spec.kind, &job.spec.span);
            let tokens = job.spec.message_tokens;
            process
                .model
                .prepare(range, tokens, self.calm, &mut self.dice);
        }
        let late = match self.dice.below(10) {
            _ if self.calm => 0,
            0..=5 => 0,
            6..=8 => self.dice.between(1, 5),
            _ => self.dice.between(6, 40),
        };
        Some((step, self.turn + late))
    }

    pub fn step(&mut self, at: usize) {
        if let Some(chosen) = self.choose_step(at) {
            self.take(at, chosen);
        }
    }

    fn take(&mut self, at: usize, (step, ready): (Step, usize)) {
        let ledger = Arc::clone(&self.ground.ledger);
        let alive = self
            .runtime
            .block_on(self.processes[at].run_step(step, ready, &ledger));
        if !alive {
            self.crash(at);
        }
    }

    /// Two processes take a step each, verb by verb.
    fn weave(&mut self, at: usize) {
        let other = (at + 1) % self.processes.len();
        let (one, two) = (at.min(other), at.max(other));
        if let (Some(a), Some(b)) = (self.choose_step(one), self.choose_step(two)) {
            self.woven((one, a), (two, b));
        }
    }

    /// Time passes, and every process looks for timers that have run out; two of them at once.
    pub fn fall_idle(&mut self, seconds: usize) {
        self.advance_clock(seconds);
        let all = self.processes.len();
        for _ in 0..3 {
            let at = self.dice.below(all);
            if !self.calm && self.dice.chance(25) {
                let passages = i64::try_from(self.dice.below(8)).unwrap();
                self.processes[at].store.gate.die_after(passages);
            }
            let ring = (Step::Ring, self.turn);
            if all > 1 && self.dice.chance(70) {
                let other = (at + 1) % all;
                self.woven((at.min(other), ring), (at.max(other), ring));
            } else {
                self.take(at, ring);
            }
        }
    }

    fn woven(&mut self, (one, a): (usize, (Step, usize)), (two, b): (usize, (Step, usize))) {
        self.ledger().counts.interleaved += 1;
        let ledger = Arc::clone(&self.ground.ledger);
        let (left, right) = self.processes.split_at_mut(two);
        let (p, q) = (&mut left[one], &mut right[0]);
        let (gate_p, gate_q) = (Arc::clone(&p.store), Arc::clone(&q.store));
        let woven = weave(
            (&gate_p.gate, p.run_step(a.0, a.1, &ledger)),
            (&gate_q.gate, q.run_step(b.0, b.1, &ledger)),
            &mut self.dice,
        );
        let (p_lives, q_lives) = self.runtime.block_on(woven);
        if !p_lives {
            self.crash(one);
        }
        if !q_lives {
            self.crash(two);
        }
    }

    /// Process `at` reads the store as it is now from here on, whatever is written; or no longer.
    fn serve_stale_reads(&mut self, at: usize) {
        if self.processes[at].misled {
            // What it learned meanwhile may be wrong: it is only trusted again when it is new.
            return self.crash(at);
        }
        let old = self.stale_copy();
        self.ledger().counts.stale += 1;
        let process = &mut self.processes[at];
        process.misled = true;
        process.store.read_from(Some(Arc::new(old)));
    }

    /// The store as it is now, for ever.
    fn stale_copy(&mut self) -> SqliteStore {
        self.births += 1;
        let copy = self.folder.path().join(format!("old-{}.db", self.births));
        let from = |ending: &str| format!("{}{ending}", self.ground.file.display());
        let to = |ending: &str| format!("{}{ending}", copy.display());
        std::fs::copy(from(""), to("")).unwrap();
        if std::fs::exists(from("-wal")).unwrap() {
            std::fs::copy(from("-wal"), to("-wal")).unwrap();
        }
        self.runtime.block_on(open(&copy))
    }
}

/// In memory where there is such a place: every commit is flushed.
fn folder() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}
