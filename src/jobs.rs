//! Work off the request path: recording exchanges, observing, reflecting, preparing snapshots.
//!
//! ```text
//! proxy --Exchange--> intake --> recorder --jobs--> store --claim--> worker --call--> llm
//!                                   ^                                  |
//!                                   +------------- part, release ------+
//! ```
//! The *recorder* is one task and the only one that decides ([`crate::memory::advance`]); the
//! *workers* only carry out what lies in the store's queue, so work survives a crash and is done
//! once. Nothing here is ever waited for by a request (INV-FREE): the intake is bounded, and what
//! does not fit is dropped, since the client will send the same history again.

mod budget;
pub mod bundle;
mod clock;
mod count_tokens;
mod events;
mod evidence;
mod failure;
mod intake;
#[cfg(feature = "testing")]
mod manual;
mod message_archive;
mod model_call;
mod model_switch;
mod observer;
mod overflow_observe;
mod payload;
mod peer_memory;
mod prepare;
mod recorder;
mod reflector;
mod routes;
mod settings;
mod shorten;
mod thread_keys;
mod traces;
mod track;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

pub use clock::Clock;
pub use intake::{Exchange, Intake};
#[cfg(feature = "testing")]
pub use manual::{ManualAnswer, ManualJobs, ManualOutcome};
pub use message_archive::archived_text;
pub use model_call::MODEL_CALLS;
pub use payload::message_text;
pub use prepare::{OversizedRequest, Prepared};
pub use reflector::ReflectionPayload;
pub use routes::Routes;
pub use settings::{ArchivePolicy, Override, Phase, Reloadable, Settings};

use crate::audit::Audit;
use crate::llm::{Breaker, ModelClient};
use crate::memory::{Policy, render};
use crate::store::Store;
use crate::store::cache::SnapshotCache;
use crate::tasks::Tasks;
use crate::tokens::TokenCounter;

/// What the parts of this room share.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) recall: Arc<SnapshotCache>,
    pub(crate) counter: Arc<dyn TokenCounter>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) llm: Arc<dyn ModelClient>,
    pub(crate) clock: Clock,
    pub(crate) breaker: Arc<Breaker>,
    /// A permit for each model call that may be under way. In the order of asking: neither jobs nor
    /// whoever asks while a client waits can starve the other.
    pub(crate) call_permits: Arc<Semaphore>,
    pub(crate) piece_limits: Arc<observer::LearnedLimits>,
    /// The same of history and what is shown beside it together.
    pub(crate) combined_limits: Arc<observer::LearnedLimits>,
    pub(crate) drafts: Arc<observer::ChunkDrafts>,
    pub(crate) pending_overflows: Arc<overflow_observe::PendingOverflows>,
    /// What is in force now. Whoever does one thing takes it once: a reload in between must not
    /// mix two configurations in one job.
    pub(crate) settings: Reloadable,
    /// Outcomes of jobs that the recorder has not yet looked at.
    pub(crate) pending_work: Arc<AtomicUsize>,
    pub(crate) budget_cache: Arc<budget::BudgetCache>,
    pub(crate) unbilled_costs: Arc<budget::UnbilledCosts>,
    pub(crate) last_calls: Arc<bundle::LastCalls>,
    pub(crate) events: events::Events,
    /// Where a line is left of each part that is stored, if anywhere.
    pub(crate) audit: Option<Audit>,
    /// What is sent to whom another model is asked.
    pub(crate) model_switch_snapshots: Arc<model_switch::ModelSwitchSnapshots>,
}

impl Shop {
    fn new(
        store: Arc<dyn Store>,
        recall: Arc<SnapshotCache>,
        counter: Arc<dyn TokenCounter>,
        llm: Arc<dyn ModelClient>,
        settings: Reloadable,
        clock: Clock,
    ) -> Self {
        Self {
            store,
            recall,
            counter,
            routes: Arc::new(Routes::new(clock.clone())),
            llm,
            clock,
            breaker: Arc::new(Breaker::new(
                model_call::BREAKER_THRESHOLD,
                model_call::BREAKER_PAUSE,
            )),
            call_permits: Arc::new(Semaphore::new(MODEL_CALLS)),
            piece_limits: Arc::default(),
            combined_limits: Arc::default(),
            drafts: Arc::default(),
            pending_overflows: Arc::default(),
            settings,
            pending_work: Arc::default(),
            budget_cache: Arc::default(),
            unbilled_costs: Arc::default(),
            last_calls: Arc::default(),
            events: events::Events::default(),
            audit: None,
            model_switch_snapshots: Arc::default(),
        }
    }
}

/// What a request waits for the one write that activates what is observed for another model.
const MODEL_SWITCH_TIMEOUT: Duration = Duration::from_millis(20);

/// The running room.
#[derive(Clone)]
pub struct Jobs {
    intake: Intake,
    shop: Shop,
    tasks: Tasks,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs")
            .field("settings", &self.shop.settings)
            .finish_non_exhaustive()
    }
}

impl Jobs {
    /// Starts recorder and workers; they end when `tasks` is told to.
    pub fn start(
        store: Arc<dyn Store>,
        recall: Arc<SnapshotCache>,
        counter: Arc<dyn TokenCounter>,
        llm: Arc<dyn ModelClient>,
        settings: Reloadable,
        audit: Option<Audit>,
        tasks: &Tasks,
    ) -> Self {
        let clock = Clock::default();
        let mut shop = Shop::new(store, recall, counter, llm, settings, clock);
        shop.audit = audit;
        shop.events = events::Events::start(Arc::clone(&shop.store), tasks);
        let (intake, exchanges) = intake::channel();
        let wake = Arc::new(tokio::sync::Notify::new());
        let (events, outcomes) = tokio::sync::mpsc::unbounded_channel();
        tasks.spawn(
            "recorder",
            recorder::run(
                shop.clone(),
                exchanges,
                outcomes,
                Arc::clone(&wake),
                tasks.token(),
            ),
        );
        // Where nothing is written nothing is deleted.
        if shop.settings.current().concurrency > 0 {
            tasks.spawn(
                "expiry",
                message_archive::expire(shop.clone(), tasks.token()),
            );
        }
        tasks.spawn(
            "workers",
            worker::run(shop.clone(), events, wake, tasks.clone()),
        );
        Self {
            intake,
            shop,
            tasks: tasks.clone(),
        }
    }

    /// Recorder and worker without their tasks, by another clock: nothing happens but what the caller
    /// does.
    #[cfg(feature = "testing")]
    pub fn manual(
        store: Arc<dyn Store>,
        recall: Arc<SnapshotCache>,
        counter: Arc<dyn TokenCounter>,
        llm: Arc<dyn ModelClient>,
        settings: Reloadable,
        clock: Clock,
    ) -> ManualJobs {
        ManualJobs::new(Shop::new(store, recall, counter, llm, settings, clock))
    }

    /// Whether the conversations of one user are told of each other, where it is known who the user is.
    pub fn shares_peer_memory(&self) -> bool {
        self.shop.settings.current().peer_memory_tokens.is_some()
    }

    /// Where finished exchanges go.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// Waits until nothing is left to be done: everything handed over is recorded, no job waits or
    /// runs, and what follows from them is prepared. For replay and tests, which want to know what
    /// memory does when it is given the time. `false` where `within` was not enough.
    pub async fn wait_until_idle(&self, within: Duration) -> bool {
        let until_idle = async {
            while !self.is_idle().await {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(within, until_idle).await.is_ok()
    }

    async fn is_idle(&self) -> bool {
        let idle = || {
            self.intake.is_idle()
                && self.shop.pending_work.load(Ordering::SeqCst) == 0
                && self.shop.events.is_idle()
        };
        // Asked before and after: a job may have ended, and made work, while the store was asked.
        idle()
            && self
                .shop
                .store
                .open_jobs()
                .await
                .is_ok_and(|jobs| jobs == 0)
            && idle()
    }

    /// The thresholds in force.
    pub fn policy(&self) -> Policy {
        self.shop.settings.current().policy
    }

    /// The settings in force.
    pub fn settings(&self) -> &Reloadable {
        &self.shop.settings
    }

    /// Whether a phase borrows the conversation's way, so that the proxy must offer it.
    pub fn borrows_credentials(&self) -> bool {
        let settings = self.shop.settings.current();
        settings.observation.endpoint.is_none() || settings.reflection.endpoint.is_none()
    }

    /// The time as this room is told it, in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        self.shop.clock.now_ms()
    }

    /// The ways to the upstream this process holds.
    pub fn routes(&self) -> &Routes {
        &self.shop.routes
    }

    /// What may be sent now that `history` asks another model by `model` than its conversation did
    /// before, whose prompt cache holds nothing of it, where so many messages of its chain `may_go`.
    /// Told by what this process remembers, committed by one write, and not waited for longer than
    /// 20 ms: the request goes on without it then.
    pub async fn activate_on_model_change(
        &self,
        scope: &crate::history::Scope,
        history: &crate::history::History,
        model: &str,
        can_omit: impl Fn(usize, Option<usize>) -> bool,
    ) -> Option<Prepared> {
        let candidate = self
            .shop
            .model_switch_snapshots
            .find(scope, history, model)?;
        let new = &candidate.draft.snapshot;
        if !can_omit(new.to_count, new.pin) {
            return None;
        }
        let (shop, scope, model) = (self.shop.clone(), scope.clone(), model.to_owned());
        let (result_tx, result_rx) = tokio::sync::oneshot::channel();
        shop.pending_work.fetch_add(1, Ordering::SeqCst);
        // A task of its own: what is committed too late for this request serves the next.
        self.tasks.spawn("model change", async move {
            let committed = prepare::commit(&shop, &scope, &candidate.draft).await;
            if let Ok(prepared) = &committed
                && candidate.mark_reported()
            {
                let (tip, snapshot) = (candidate.draft.snapshot.tip, &prepared.snapshot.meta);
                events::emit_activated(&shop, &candidate.conversation, &model, tip, snapshot);
            }
            shop.pending_work.fetch_sub(1, Ordering::SeqCst);
            // Nobody waits any more where it took too long.
            let _ = result_tx.send(committed);
        });
        let committed = tokio::time::timeout(MODEL_SWITCH_TIMEOUT, result_rx)
            .await
            .ok()?
            .ok()?;
        match committed {
            Ok(prepared) => Some(prepared),
            Err(error) => {
                tracing::debug!(error = %error, "nothing was activated for another model");
                None
            }
        }
    }

    /// Applies everything observed of a history to it at once, since the provider `refused` it as too
    /// long. No model is called. `None` where nothing more is observed than was sent.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn activate_all_observed(
        &self,
        request: OversizedRequest,
    ) -> Result<Option<Prepared>, crate::store::StoreError> {
        let shop = self.shop.clone();
        let (result_tx, result_rx) = tokio::sync::oneshot::channel();
        // A task of its own: where the caller cannot wait so long, it is done for the next request.
        self.tasks.spawn("overflow", async move {
            let applied = prepare::activate_all_observed(&shop, &request).await;
            // Nobody listens any more where it took too long.
            let _ = result_tx.send(applied);
        });
        result_rx.await.unwrap_or(Ok(None))
    }
}

impl Jobs {
    /// Has `exchange`, which was refused as too long when it was sent with `sent`, observed up to its
    /// message `to_count`, and waits for that: the only time a client waits for a model. What it may
    /// go out with instead is stored when it is recorded, and not before. `None` where nothing came
    /// of it `until` then.
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
        overflow_observe::observe(&self.shop, exchange, sent_snapshot, to_count, deadline).await
    }
}

/// Tokens of `text`, counted off the runtime.
pub(crate) async fn count_tokens(shop: &Shop, text: &str) -> u32 {
    count_off_runtime(shop, text, |text, counter| counter.count(text)).await
}

/// Tokens of a part of this `text`, counted off the runtime.
async fn count_part_tokens(shop: &Shop, text: &str) -> u32 {
    let count =
        |text: &str, counter: &dyn TokenCounter| render::max_tokens(text, |t| counter.count(t));
    count_off_runtime(shop, text, count).await
}

async fn count_off_runtime(
    shop: &Shop,
    text: &str,
    count: fn(&str, &dyn TokenCounter) -> u32,
) -> u32 {
    let counter = Arc::clone(&shop.counter);
    let text = text.to_owned();
    let bytes = text.len();
    tokio::task::spawn_blocking(move || count(&text, &*counter))
        .await
        // The counter guards itself; should its thread die all the same, four bytes make a token.
        .unwrap_or_else(|_| u32::try_from(bytes / 4).unwrap_or(u32::MAX))
}

/// A code nobody in the conversation can know, for one fence.
pub(crate) fn nonce() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
