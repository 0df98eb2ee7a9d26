//! Work off the request path: recording exchanges, observing, reflecting, preparing snapshots.
//!
//! ```text
//! proxy --Exchange--> intake --> recorder --jobs--> store --claim--> worker --call--> llm
//!                                   ^                                  |
//!                                   +------------- part, release ------+
//! ```
//! The *recorder* is one task, and the only one that decides ([`crate::memory::advance`]). The
//! *workers* carry out the jobs in the store's queue, so work survives a crash and is done once. No
//! request waits for this module (INV-FREE), except under `overflow = "observe"`. The intake is
//! bounded. An exchange that does not fit is dropped, because the client will send the same history
//! again.

mod base;
mod budget;
pub mod bundle;
mod calibration;
mod call_audit;
mod clock;
mod code_reflector;
mod cost_settings;
mod events;
mod exchange;
mod failure;
mod fair_queue;
mod first_requests;
mod intake;
mod job_end;
#[cfg(feature = "testing")]
mod manual;
mod message_archive;
mod model_call;
mod model_health;
mod model_problem;
mod model_switch;
mod observer;
mod outcome;
mod overflow_activate;
mod overflow_observe;
mod part_report;
mod payload;
mod peer_memory;
mod recorder;
mod reflector;
mod resting;
mod retry_delay;
mod routes;
mod settings;
mod snapshots;
mod traces;
mod track;
mod tracks;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

pub use calibration::MAX_MODELS as MAX_RATIO_MODELS;
pub use clock::Clock;
pub use cost_settings::{CostAware, CostSettings};
pub use events::status::status_event;
pub use exchange::Exchange;
pub use intake::Intake;
#[cfg(feature = "testing")]
pub use manual::{ManualAnswer, ManualJobs, ManualOutcome};
pub use message_archive::archived_text;
pub use model_call::MODEL_CALLS;
pub use model_health::{Notice, Rest};
pub use overflow_activate::OversizedRequest;
pub use payload::message_text;
pub use reflector::ReflectionPayload;
pub use routes::Routes;
pub use settings::{ArchivePolicy, Override, Phase, Reloadable, Settings};
pub use snapshots::PreparedSnapshot;

use self::base::Base;
use self::budget::Budget;
use self::calibration::Calibration;
use self::clock::millis;
use self::events::Events;
use self::intake::Exchanges;
use self::message_archive::MessageArchive;
use self::model_call::ModelCaller;
use self::model_health::ModelHealth;
use self::model_switch::{ModelSwitch, ModelSwitchSnapshots};
use self::outcome::PendingWork;
use self::overflow_activate::OverflowActivator;
use self::overflow_observe::{OverflowObserver, PendingOverflows};
use self::part_report::PartReporter;
use self::recorder::{Recorder, RecorderShares};
use self::retry_delay::SLOW_RETRY_DELAY;
use self::worker::Worker;
use crate::audit::Audit;
use crate::llm::ModelClient;
use crate::lookup::SnapshotCache;
pub use crate::store::DailyLimits;
use crate::store::{Store, StoredTokenRatio, TenantAccounts};
use crate::tasks::{ComputePool, Losses, Tasks};
use crate::tokens::TokenCounter;

/// The recorder and the workers, as the proxy sees them.
#[derive(Clone)]
pub struct Jobs {
    base: Base,
    intake: Intake,
    routes: Arc<Routes>,
    model_switch: ModelSwitch,
    overflow_activator: OverflowActivator,
    overflow_observer: OverflowObserver,
    pending_work: PendingWork,
    worker: Arc<Worker>,
    budget: Arc<Budget>,
    wake: Arc<tokio::sync::Notify>,
    tasks: Tasks,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs")
            .field("settings", &self.base.settings)
            .finish_non_exhaustive()
    }
}

/// Everything that `Jobs` starts, connected and not started.
struct UnstartedJobs {
    jobs: Jobs,
    recorder_shares: RecorderShares,
    worker: Arc<Worker>,
    exchanges: Exchanges,
    /// Wakes the workers.
    wake: Arc<tokio::sync::Notify>,
}

impl UnstartedJobs {
    fn new(base: &Base, llm: Arc<dyn ModelClient>, audit: Option<Audit>, tasks: &Tasks) -> Self {
        let routes = Arc::new(Routes::new(&base.clock, &base.health));
        let caller = Arc::new(ModelCaller::new(base, llm, audit.clone()));
        let pending_work = PendingWork::default();
        let worker = Arc::new(Worker::new(base, &routes, &caller, &pending_work));
        let shared = RecorderShares {
            budget: Arc::clone(&caller.budget),
            call_audit: Arc::clone(&caller.audit),
            reporter: PartReporter::new(&base.clock, audit),
            model_switch_snapshots: Arc::new(ModelSwitchSnapshots::default()),
            pending_overflows: Arc::new(PendingOverflows::default()),
            pending_work: pending_work.clone(),
            wake: Arc::default(),
        };
        let (intake, exchanges) = intake::channel(base);
        let jobs = Jobs {
            base: base.clone(),
            intake,
            routes,
            budget: Arc::clone(&caller.budget),
            model_switch: ModelSwitch::new(base, &shared.model_switch_snapshots, &pending_work),
            overflow_activator: OverflowActivator::new(base, &shared.reporter, &worker),
            overflow_observer: OverflowObserver::new(base, &worker, &shared.pending_overflows),
            pending_work,
            worker: Arc::clone(&worker),
            wake: Arc::clone(&shared.wake),
            tasks: tasks.clone(),
        };
        Self {
            jobs,
            worker,
            exchanges,
            wake: Arc::clone(&shared.wake),
            recorder_shares: shared,
        }
    }
}

impl Jobs {
    /// Starts the recorder and the workers. They end when `tasks` are stopped.
    pub fn start(
        store: Arc<dyn Store>,
        cache: Arc<SnapshotCache>,
        counter: Arc<dyn TokenCounter>,
        llm: Arc<dyn ModelClient>,
        settings: Reloadable,
        audit: Option<Audit>,
        tasks: &Tasks,
    ) -> Self {
        snapshots::register_metrics();
        part_report::register_metrics();
        let clock = Clock::default();
        let base = Base {
            events: Events::start(Arc::clone(&store), clock.clone(), settings.clone(), tasks),
            store,
            cache,
            counter,
            settings,
            clock: clock.clone(),
            tasks: tasks.clone(),
            compute_pool: ComputePool::default(),
            accounts: TenantAccounts::default(),
            recording: Losses::new("recording", tasks.readiness()),
            health: ModelHealth::new(clock, tasks.readiness()),
            calibration: Calibration::default(),
        };
        let archive = MessageArchive::new(&base);
        let unstarted = UnstartedJobs::new(&base, llm, audit, tasks);
        let jobs = unstarted.jobs;
        let (outcomes, reported) = mpsc::unbounded_channel();
        let inputs = recorder::Inputs::new(unstarted.exchanges, reported);
        let inputs = Arc::new(tokio::sync::Mutex::new(inputs));
        let (recorder_base, stop) = (jobs.base.clone(), tasks.token());
        tasks.supervise("recorder", move || {
            let recorder = Recorder::new(&recorder_base, unstarted.recorder_shares.clone());
            recorder::run(recorder, Arc::clone(&inputs), stop.clone())
        });
        tasks.spawn_background("expiry", archive.expire(tasks.token()));
        tasks.supervise("workers", move || {
            let (worker, wake) = (Arc::clone(&unstarted.worker), Arc::clone(&unstarted.wake));
            worker.run(outcomes.clone(), wake)
        });
        jobs
    }

    /// Whether the conversations of one user share memory, if the request path knows the user.
    pub fn shares_peer_memory(&self) -> bool {
        self.base.settings().peer_memory_tokens.is_some()
    }

    /// Drops what is held of conversations outside the store, because something was deleted: first requests that
    /// wait, and names for the audit.
    pub fn drop_cached_conversations(&self) {
        self.intake.drop_first_requests();
        self.worker.clear_threads();
    }

    /// Who pays for a tenant, and which tenants are new.
    pub fn accounts(&self) -> &TenantAccounts {
        &self.base.accounts
    }

    /// Reports what was accepted and not recorded, because the process ends.
    pub fn report_losses(&self) {
        self.intake.report_losses();
    }

    /// Accepts finished exchanges.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// Waits until nothing is left to do: every exchange is recorded, no job waits or runs, and its
    /// consequences are prepared. A job that has a long pause because its model is useless does not count. For replays
    /// and tests. Returns `false` if that takes longer than `within`.
    pub async fn wait_until_idle(&self, within: Duration) -> bool {
        let until_idle = async {
            while !self.is_idle().await {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(within, until_idle).await.is_ok()
    }

    async fn is_idle(&self) -> bool {
        let idle =
            || self.intake.is_idle() && self.pending_work.is_none() && self.base.events.is_idle();
        // Checked before and after, because a job may end and cause work while the store counts.
        idle()
            && self
                .base
                .store
                .open_jobs(self.base.now_ms() + millis(SLOW_RETRY_DELAY / 2))
                .await
                .is_ok_and(|jobs| jobs == 0)
            && idle()
    }

    /// How many tokens the provider of `model` counts where Diarist counts one; `None` as long as too few were
    /// compared.
    pub fn token_ratio(&self, model: &str) -> Option<f64> {
        self.base.calibration.ratio(model)
    }

    /// Adds what an earlier process knew of the providers' counts.
    pub fn add_token_ratios(&self, stored: &[StoredTokenRatio]) {
        self.base.calibration.add_stored(stored);
    }

    /// What was learned of the providers' counts after the addition with the number `since` (0: all of it), and the
    /// number of the newest addition.
    pub fn changed_token_ratios(&self, since: u64) -> (Vec<StoredTokenRatio>, u64) {
        self.base.calibration.changed_since(since)
    }

    /// Other settings are in force ([`Jobs::settings`]). Jobs that wait after a failure are due at once.
    pub fn settings_changed(&self) {
        self.worker.configuration_changed();
        self.wake.notify_one();
    }

    /// The notice about memory's own model calls for a request of `tenant` in a conversation with `model`, if
    /// they do not work or rest.
    pub fn notice(&self, tenant: &[u8; 32], model: &str) -> Option<Notice> {
        let settings = self.base.settings().for_model(model);
        let health = &self.base.health;
        let budget = || self.budget.rest(tenant).map(Notice::BudgetSpent);
        let notice = health.notice(tenant, &settings.observation, model);
        notice.or_else(budget)
    }

    /// Lets what is over expire: rests, and losses that a minute has passed since.
    pub fn expire(&self) {
        self.budget.expire();
        self.base.health.expire();
        self.base.recording.expire();
    }

    /// Whether memory is only read, for all models: then nothing is deleted either. A reload can change it.
    pub fn is_read_only(&self) -> bool {
        self.base.settings().read_only
    }

    /// The settings in force.
    pub fn settings(&self) -> &Reloadable {
        &self.base.settings
    }

    /// Whether a phase calls its model by the conversation's own route. The proxy must then
    /// register it.
    pub fn borrows_credentials(&self) -> bool {
        let settings = self.base.settings();
        settings.observation.endpoint.is_none() || settings.reflection.endpoint.is_none()
    }

    /// The time in milliseconds since 1970, by the clock of `Base`.
    pub(crate) fn now_ms(&self) -> i64 {
        self.base.now_ms()
    }

    /// The routes that this process may borrow.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Activates observations for a request that names another `model` than its conversation did
    /// before. The new model's prompt cache holds nothing of the conversation, so the change of
    /// prefix costs nothing.
    ///
    /// Returns the snapshot to send, if this process holds one and the request `can_omit` the
    /// messages that it covers. Waits at most 20 ms for the one write that this takes; after that,
    /// the request goes on without it.
    pub async fn activate_on_model_change(
        &self,
        scope: &crate::history::Scope,
        history: &crate::history::History,
        model: &str,
        can_omit: impl Fn(usize, Option<usize>) -> bool,
    ) -> Option<PreparedSnapshot> {
        self.model_switch
            .activate(&self.tasks, scope, history, model, can_omit)
            .await
    }

    /// Activates everything observed of a history that the provider refused as too long. Calls no
    /// model. `None` if nothing more is observed than was sent.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn activate_all_observed(
        &self,
        request: OversizedRequest,
    ) -> Result<Option<PreparedSnapshot>, crate::store::StoreError> {
        let activator = self.overflow_activator.clone();
        let (result_tx, result_rx) = tokio::sync::oneshot::channel();
        // In a task of its own: if the caller cannot wait, the result serves the next request.
        self.pending_work.begin();
        let ending = self.pending_work.ending();
        self.tasks.spawn("overflow", async move {
            let _ending = ending;
            let applied = activator.activate(&request).await;
            // The receiver is gone if the caller stopped waiting.
            let _ = result_tx.send(applied);
        });
        result_rx.await.unwrap_or(Ok(None))
    }

    /// Observes `exchange`, which was refused as too long when it was sent with `sent_snapshot`, up
    /// to its message `to_count`, and waits for that until `deadline`. This is the only case in
    /// which a client waits for a model. Returns the snapshot to send instead; it is stored when
    /// the exchange is recorded, not before. `None` if there is none by then.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn observe_overflow(
        &self,
        exchange: &Exchange,
        sent_snapshot: Option<crate::memory::SnapshotId>,
        to_count: usize,
        deadline: tokio::time::Instant,
    ) -> Result<Option<Arc<crate::memory::Snapshot>>, crate::store::StoreError> {
        self.overflow_observer
            .observe(exchange, sent_snapshot, to_count, deadline)
            .await
    }
}
