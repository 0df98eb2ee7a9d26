//! One process: request path, recorder and worker over its own connections to the store, taken one
//! step at a time. Dropping it is a crash.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use diarist::jobs::{
    Clock, Exchange, Jobs, ManualAnswer, ManualJobs, ManualOutcome, Reloadable, Settings,
};
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::{Memory, Overflow, ParsedPrefixes, RequestPolicy};
use diarist::store::{Job, SqliteStore, Store};
use diarist::wire::Placement;

use super::ledger::Ledger;
use super::model::{Character, Scripted};
use super::planted::Bug;
use super::rules::Rule;
use super::watched::Watched;
use crate::properties::conversation::Request;
use crate::properties::exchange::Quarters;
use crate::support::patient_store;

/// What all processes of a run share.
#[derive(Clone, Debug)]
pub struct Environment {
    pub file: std::path::PathBuf,
    /// Whether no second process works with the store at the same time.
    pub alone: bool,
    pub clock: Clock,
    pub ledger: Arc<Mutex<Ledger>>,
    pub settings: Settings,
    pub placement: Placement,
    pub character: Character,
    /// What is done for a request that does not fit its model.
    pub overflow: Overflow,
    pub bug: Option<Bug>,
}

/// An accepted request that is not recorded yet.
#[derive(Debug)]
pub struct PendingRecord {
    pub exchange: Exchange,
    pub request: Request,
    pub sent: Vec<u8>,
}

/// A claimed job.
#[derive(Debug)]
pub struct RunningJob {
    pub job: Job,
    /// The turn from which its model answers.
    pub ready: usize,
    pub written: Option<ManualAnswer>,
}

/// One thing a process does.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Record,
    ReportOutcome(usize),
    Claim,
    Renew(usize),
    CallModel(usize),
    Settle(usize),
    Ring,
}

#[derive(Debug)]
pub struct Process {
    pub number: usize,
    pub store: Arc<Watched>,
    pub memory: Arc<Memory>,
    pub model: Arc<Scripted>,
    hand: ManualJobs,
    /// Whether idle conversations are activated.
    rings: bool,
    pub inbox: VecDeque<PendingRecord>,
    pub working: Vec<RunningJob>,
    /// What its recorder has not heard yet, and of which job.
    pub outcomes: Vec<(Job, ManualOutcome)>,
    /// What it sent each request as.
    pub sent: HashMap<(String, Bytes), Vec<u8>>,
    /// Whose requests it has seen.
    pub served: HashSet<String>,
    /// Its view of the store was out of date at some time: what it remembers may be as well.
    pub misled: bool,
}

impl Process {
    pub async fn start(number: usize, ground: &Environment) -> Self {
        let real = if ground.alone {
            serve(&url(&ground.file)).await
        } else {
            open(&ground.file).await
        };
        let store = Arc::new(Watched::new(
            number,
            (Arc::new(real), ground.file.clone()),
            ground.clock.clone(),
            Arc::clone(&ground.ledger),
            ground.bug,
        ));
        let recall = patient_store::cache(&(Arc::clone(&store) as Arc<dyn Store>));
        let model = Arc::new(Scripted::new(ground.character, ground.bug));
        let hand = Jobs::manual(
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::clone(&recall),
            Arc::new(Quarters),
            Arc::clone(&model) as _,
            Reloadable::new(ground.settings.clone()),
            ground.clock.clone(),
        );
        let capabilities = UpstreamCapabilities::new(Some(ground.placement), "localhost");
        let mut memory = Memory::new(recall, hand.jobs(), capabilities);
        // Short bodies grow too.
        memory.parsed_prefixes = Arc::new(ParsedPrefixes::with_step(512));
        memory.policy = Reloadable::new(RequestPolicy {
            overflow: ground.overflow,
            ..RequestPolicy::default()
        });
        Self {
            number,
            store,
            memory: Arc::new(memory),
            model,
            hand,
            rings: ground.ledger.lock().unwrap().clockwork.idle_ms.is_some(),
            inbox: VecDeque::new(),
            working: Vec::new(),
            outcomes: Vec::new(),
            sent: HashMap::new(),
            served: HashSet::new(),
            misled: false,
        }
    }

    /// Whether nothing it took on is left.
    pub fn idle(&self) -> bool {
        self.inbox.is_empty() && self.working.is_empty() && self.outcomes.is_empty()
    }

    /// What it could do at `turn`.
    pub fn possible(&self, turn: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.inbox.is_empty() {
            steps.extend([Step::Record; 3]);
        }
        steps.extend((0..self.outcomes.len()).map(Step::ReportOutcome));
        if self.working.len() < 3 {
            steps.push(Step::Claim);
        }
        if self.rings {
            steps.push(Step::Ring);
        }
        for (at, working) in self.working.iter().enumerate() {
            match (&working.written, working.ready <= turn) {
                (Some(_), _) => steps.push(Step::Settle(at)),
                (None, true) => steps.push(Step::CallModel(at)),
                (None, false) => steps.push(Step::Renew(at)),
            }
        }
        steps
    }

    /// Takes a step. `ready` is the turn from which the model answers a job that is claimed now.
    /// `false` where the process died in the midst of it.
    pub async fn run_step(&mut self, step: Step, ready: usize, ledger: &Mutex<Ledger>) -> bool {
        let store = Arc::clone(&self.store);
        store
            .gate
            .or_death(self.execute_step(step, ready, ledger))
            .await
            .is_some()
    }

    async fn execute_step(&mut self, step: Step, ready: usize, ledger: &Mutex<Ledger>) {
        match step {
            Step::Record => {
                let Some(waiting) = self.inbox.pop_front() else {
                    return;
                };
                let tip = waiting.exchange.history.tip().unwrap();
                ledger
                    .lock()
                    .unwrap()
                    .recording(self.number, tip, waiting.request, waiting.sent);
                self.hand.record(waiting.exchange).await;
            }
            Step::ReportOutcome(at) => {
                let (job, outcome) = self.outcomes.remove(at);
                self.hand.on_outcome(outcome).await;
                let mut ledger = ledger.lock().unwrap();
                ledger.job_ended(self.number, &job.scope, &job.spec.span);
            }
            Step::Claim => {
                if let Some(job) = self.hand.claim().await {
                    self.working.push(RunningJob {
                        job,
                        ready,
                        written: None,
                    });
                }
            }
            Step::Renew(at) => {
                if !self.hand.renew(&self.working[at].job).await {
                    // As the worker does: its lease is lost, so it drops the call.
                    self.working.remove(at);
                }
            }
            Step::CallModel(at) => {
                let written = self.hand.call_model(&self.working[at].job).await;
                self.working[at].written = Some(written);
                self.collect_prompts(ledger);
            }
            Step::Ring => {
                self.hand.fire_timer().await;
            }
            Step::Settle(at) => {
                let RunningJob { job, written, .. } = self.working.remove(at);
                if let Some(written) = written {
                    let outcome = self.hand.finish(&job, written).await;
                    self.outcomes.push((job, outcome));
                }
            }
        }
    }

    /// What its models were shown.
    pub fn collect_prompts(&self, ledger: &Mutex<Ledger>) {
        let prompts = std::mem::take(&mut *self.model.prompts.lock().unwrap());
        let mut ledger = ledger.lock().unwrap();
        for (range, prompt) in prompts {
            ledger.record_prompt(&range, &prompt);
        }
        for strange in std::mem::take(&mut *self.model.strange.lock().unwrap()) {
            ledger.breach(Rule::Words, strange);
        }
    }

    /// Whether what it decides may rest on a view of the store that is out of date, or on none.
    pub fn is_uncertain(&mut self) -> bool {
        let now = self.store.doubtful.swap(false, Ordering::SeqCst);
        now || self.misled
    }
}

pub async fn open(file: &Path) -> SqliteStore {
    patient_store::open(&url(file)).await
}

/// As the process that serves with the database: nobody else writes to it.
async fn serve(url: &str) -> SqliteStore {
    let store = SqliteStore::reconnecting(url, patient_store::PATIENCE);
    store.open_now().await.expect("nobody else serves with it");
    store
}

fn url(file: &Path) -> String {
    format!("sqlite://{}", file.display())
}
