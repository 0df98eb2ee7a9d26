//! Composition: builds every room from a valid configuration and lets them run together.
//!
//! The only place that knows both the configuration and the rooms, and that hands one room to
//! another. Decides nothing about requests or memory. Called by `cli` and by tests that want the
//! whole process inside their own.

mod reload;
mod tenants;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

pub use self::reload::Reloader;

use crate::admin::Condition;
use crate::admin::{Admin, Readiness};
use crate::audit::{Audit, AuditError};
use crate::config::{self, Config, KeepMessages};
use crate::jobs::{self, Jobs, Reloadable};
use crate::llm::{self, Llm};
use crate::memory::alignment::EvidenceLevel;
use crate::memory::observe::{AttachmentFilter, ObserverOptions, RequestedHints};
use crate::memory::redact::{RedactKind, Redactor};
use crate::memory::{EarlyTriggers, IdleTrigger, Pattern, Policy, render};
use crate::proxy::capabilities::UpstreamCapabilities;
use crate::proxy::identify::{IdentityRules, Sources};
use crate::proxy::mode::{Glob, Mode, ReadOnly, Rule, Rules};
use crate::proxy::{AskUsage, Limits, Memory, Overflow, Proxy, RequestPolicy, Singleflight};
use crate::server::{BindError, DrainReport, Server, Settings};
use crate::store::cache::{READ_TIMEOUT, SnapshotCache};
use crate::store::{Aliases, ReconnectingStore, Store};
use crate::tasks::Tasks;
use crate::telemetry::{self, RecorderError};
use crate::tokens::O200k;
use crate::upstream::{SetupError, Timeouts, Upstream};
use crate::wire::Placement;

/// The whole process, both ports taken, nothing served yet.
#[derive(Debug)]
pub struct App {
    server: Server,
    proxy: Arc<Proxy>,
    admin: Arc<Admin>,
    store: Arc<ReconnectingStore>,
    audit: Option<Audit>,
    settings: Reloadable,
    config: Config,
    tasks: Tasks,
}

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the upstream cannot be used")]
    Upstream(#[from] SetupError),
    #[error(transparent)]
    Metrics(#[from] RecorderError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("the model client cannot be set up")]
    Llm(#[from] reqwest::Error),
}

impl App {
    /// Builds everything. A database that cannot be opened is said and tried again; requests pass
    /// without it.
    ///
    /// # Errors
    ///
    /// A port that is taken, an audit file or root certificates that cannot be read: what no retry
    /// would mend.
    pub async fn build(config: &Config) -> Result<Self, StartError> {
        Self::build_with(config, READ_TIMEOUT).await
    }

    /// The same, where a request waits `store_timeout` for each read of the store instead of
    /// [`READ_TIMEOUT`]. Tests give more: a busy machine must not change what they see.
    ///
    /// # Errors
    ///
    /// As [`App::build`].
    pub async fn build_with(config: &Config, store_timeout: Duration) -> Result<Self, StartError> {
        let tasks = Tasks::new();
        // Ports first: that one is taken is the likeliest reason not to start, and the quickest to tell.
        let server = Server::bind(server_settings(config))?;
        let metrics = telemetry::install_recorder()?;
        let upstream = Upstream::new(&config.upstream.base_url, timeouts(config), &tasks)?;
        let audit = audit(config, &tasks)?;
        let llm = Arc::new(Llm::new()?);
        let admin = Arc::new(Admin::new(Readiness::new(), metrics));
        let store = Arc::new(
            ReconnectingStore::new(&config.database.to_string())
                .with_request_timeout(store_timeout),
        );
        if config.memory.enabled {
            let timeout = store_timeout.max(STORE_OPEN_TIMEOUT);
            open_store(&store, config, timeout, admin.readiness(), &tasks).await;
        } else {
            // No file is made for a memory nobody wants.
            store.close().await;
        }
        let settings = Reloadable::new(memory_settings(config));
        let recall = Arc::new(
            SnapshotCache::new(Arc::clone(&store) as Arc<dyn Store>)
                .with_read_timeout(store_timeout),
        );
        let jobs = Jobs::start(
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::clone(&recall),
            tokenizer(&tasks),
            llm,
            settings.clone(),
            audit.clone(),
            &tasks,
        );
        let owners = tenants::from_config(config, config.server.listen, Aliases::default());
        if config.memory.enabled {
            let mut alias_refresher = tenants::AliasRefresher::new(&store, &owners, &recall);
            // What a slow disk keeps until later is heard later.
            let _timed_out =
                tokio::time::timeout(STORE_OPEN_TIMEOUT, alias_refresher.refresh()).await;
            tasks.spawn("owners", alias_refresher.run(tasks.token()));
        }
        let memory = Memory {
            enabled: config.memory.enabled,
            policy: Reloadable::new(request_policy(config, owners)),
            cache: recall,
            jobs,
            capabilities: UpstreamCapabilities::new(
                placement(config),
                config.upstream.base_url.host_str().unwrap_or_default(),
            ),
            overflow_singleflight: Singleflight::default(),
            audit: audit.clone(),
            pending_answers: Arc::default(),
        };
        let proxy = Proxy::new(upstream, limits(config), tasks.clone()).with_memory(memory);
        let proxy = Arc::new(proxy);
        if config.memory.enabled {
            let (store, readiness) = (Arc::clone(&store), admin.readiness().clone());
            tasks.spawn(
                "watch",
                watch_store(store, Arc::clone(&proxy), readiness, tasks.token()),
            );
        }
        Ok(Self {
            server,
            proxy,
            admin,
            store,
            audit,
            settings,
            config: config.clone(),
            tasks,
        })
    }

    /// The address of the data port, also where port 0 was asked for.
    ///
    /// # Errors
    ///
    /// The system does not know the address.
    pub fn data_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.data_addr()
    }

    /// The address of the admin port.
    ///
    /// # Errors
    ///
    /// The system does not know the address.
    pub fn admin_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.admin_addr()
    }

    /// The tasks of this process, for what has to start and stop with them.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Waits until memory has nothing left to do; see [`Memory::quiet`].
    pub fn quiet(
        &self,
    ) -> impl Fn(Duration) -> futures_util::future::BoxFuture<'static, bool> + Send + Sync + use<>
    {
        let proxy = Arc::clone(&self.proxy);
        move |within| {
            let proxy = Arc::clone(&proxy);
            Box::pin(async move {
                match proxy.memory() {
                    Some(memory) => memory.wait_idle(within).await,
                    None => true,
                }
            })
        }
    }

    /// The way to another configuration while this one runs.
    #[must_use]
    pub fn reload(&self) -> Reloader {
        Reloader {
            start_config: self.config.clone(),
            current_config: self.config.clone(),
            settings: self.settings.clone(),
            proxy: Arc::clone(&self.proxy),
            audit: self.audit.clone(),
        }
    }

    /// Serves until `shutdown` resolves, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> DrainReport {
        let (store, audit) = (self.store, self.audit);
        let flush = async move {
            if let Some(audit) = audit {
                audit.flush().await;
            }
            store.close().await;
        };
        self.server
            .run(self.proxy, self.admin, self.tasks, shutdown, flush)
            .await
    }
}

fn server_settings(config: &Config) -> Settings {
    let server = &config.server;
    Settings {
        listen: server.listen,
        admin: server.admin,
        header_timeout: server.header_timeout,
        idle_timeout: server.idle_timeout,
        write_timeout: server.idle_timeout,
        max_connections: server.max_connections,
        drain_timeout: server.drain_timeout,
        ..Settings::default()
    }
}

fn timeouts(config: &Config) -> Timeouts {
    Timeouts {
        connect: config.server.connect_timeout,
        head: config.server.response_timeout,
        ..Timeouts::default()
    }
}

fn limits(config: &Config) -> Limits {
    let server = &config.server;
    Limits {
        max_requests: server.max_requests,
        max_body_bytes: server.max_body_bytes,
        request_idle: server.idle_timeout,
        response_idle: server.idle_timeout,
        tunnel_idle: server.idle_timeout,
    }
}

/// How long the start waits for the database. It opens in milliseconds; one that is locked or gone
/// must not keep requests from passing.
const STORE_OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the database is asked how it is.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

async fn open_store(
    store: &Arc<ReconnectingStore>,
    config: &Config,
    timeout: Duration,
    readiness: &Readiness,
    tasks: &Tasks,
) {
    let (result_sender, opened) = tokio::sync::oneshot::channel();
    let opening_store = Arc::clone(store);
    // A task of its own: an attempt that is given up half-way would never be made again.
    tasks.spawn("store opening", async move {
        // Nobody listens any more where it took too long; the watch sees how it ended.
        let _ = result_sender.send(opening_store.open_now().await);
    });
    let problem = match tokio::time::timeout(timeout, opened).await {
        Ok(Ok(Ok(()))) => return,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(_)) => "opening it failed".to_owned(),
        Err(_) => format!("it did not open within {timeout:?}"),
    };
    tracing::error!(
        database = %config.database,
        "the database cannot be used: {problem}. Requests pass without memory until it can"
    );
    readiness.set("store", Condition::Degraded(problem));
}

/// Looks after what the request path must not: says when the store goes and comes back, how much
/// lies in its queue, and lets refused placements and blocks be tried again.
async fn watch_store(
    store: Arc<ReconnectingStore>,
    proxy: Arc<Proxy>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let mut was_up = true;
    while stop
        .run_until_cancelled(tokio::time::sleep(STORE_CHECK_INTERVAL))
        .await
        .is_some()
    {
        if let Some(memory) = proxy.memory() {
            memory.capabilities.expire(Instant::now());
        }
        let open_jobs = store.open_jobs().await;
        match &open_jobs {
            Ok(jobs) => {
                metrics::gauge!(telemetry::OPEN_JOBS).set(*jobs as f64);
                readiness.set("store", Condition::Up);
            }
            Err(error) => {
                readiness.set("store", Condition::Degraded(error.to_string()));
                if let Some(memory) = proxy.memory() {
                    memory.cache.set_degraded(true);
                }
            }
        }
        match (&open_jobs, was_up) {
            (Err(error), true) => {
                tracing::error!(error = %error, "the store is gone; requests pass with what this process knows");
            }
            (Ok(_), false) => tracing::info!("the store is back"),
            _ => {}
        }
        was_up = open_jobs.is_ok();
    }
}

/// The tokenizer; its tables are loaded on a thread that may take its time.
fn tokenizer(tasks: &Tasks) -> Arc<O200k> {
    tasks.spawn("tokenizer", async {
        // A failure to load shows when the first text is counted, and is guarded there.
        let _ = tokio::task::spawn_blocking(O200k::load_tables).await;
    });
    Arc::new(O200k::new())
}

fn audit(config: &Config, tasks: &Tasks) -> Result<Option<Audit>, AuditError> {
    Ok(match &config.audit {
        config::AuditTarget::Off => None,
        config::AuditTarget::Stdout => Some(Audit::stdout(tasks)),
        config::AuditTarget::File(path) => Some(Audit::file(path, tasks)?),
    })
}

fn placement(config: &Config) -> Option<Placement> {
    match config.upstream.placement {
        config::Placement::Auto | config::Placement::SystemMessage => {
            Some(Placement::SystemMessage)
        }
        config::Placement::AppendToSystem => Some(Placement::AppendToSystem),
        config::Placement::Segments => Some(Placement::Segments),
        config::Placement::Off => None,
    }
}

fn rules(config: &Config) -> Rules {
    let glob = |text: &Option<String>| text.as_deref().map(Glob::new);
    let rule = |rule: &config::Rule| Rule {
        path: glob(&rule.path),
        model: glob(&rule.model),
        header: rule.header.clone().map(|name| (name, glob(&rule.value))),
        mode: match rule.memory {
            config::MemoryMode::Off => Mode::Off,
            config::MemoryMode::Read => Mode::Read,
            config::MemoryMode::On => Mode::On,
        },
    };
    Rules {
        listed: config.memory.rules.iter().map(rule).collect(),
        tasks: config.identity.task_headers.clone(),
    }
}

/// How requests are treated, of a valid configuration.
fn request_policy(config: &Config, owners: IdentityRules) -> RequestPolicy {
    RequestPolicy {
        identity: owners,
        sources: Sources::new(&config.identity.headers, &config.identity.body_fields),
        read_only: read_only(config),
        rules: rules(config),
        overflow: overflow(config),
        evidence: match config.memory.evidence {
            config::EvidenceLevel::Strict => EvidenceLevel::Strict,
            config::EvidenceLevel::Names => EvidenceLevel::Names,
            config::EvidenceLevel::Content => EvidenceLevel::Content,
        },
        ask_usage: ask_usage(config),
    }
}

fn ask_usage(config: &Config) -> AskUsage {
    match config.ask_usage {
        config::AskUsage::Auto => AskUsage::Auto,
        config::AskUsage::Never => AskUsage::Never,
        config::AskUsage::Always => AskUsage::Always,
    }
}

fn overflow(config: &Config) -> Overflow {
    match config.memory.overflow {
        config::Overflow::Pass => Overflow::Pass,
        config::Overflow::Observe => Overflow::Observe(config.memory.overflow_timeout),
        config::Overflow::Trim => Overflow::Trim,
    }
}

/// The overrides for this upstream, each with the models it is for, the narrowest first.
fn overrides(config: &Config) -> impl Iterator<Item = (Pattern, &config::Override)> {
    let host = config.upstream.base_url.host_str().unwrap_or_default();
    let is_for_upstream = move |pattern: &String| Pattern::new(pattern).matches(host);
    let overrides = config.memory.overrides.iter();
    overrides
        .filter(move |entry| entry.upstream.as_ref().is_none_or(&is_for_upstream))
        .map(|entry| (Pattern::new(entry.model.as_deref().unwrap_or("*")), entry))
}

fn read_only(config: &Config) -> ReadOnly {
    ReadOnly {
        overrides: overrides(config)
            .map(|(model, entry)| (model, entry.read_only))
            .collect(),
        default: config.memory.read_only,
    }
}

/// How memory is made, of a valid configuration.
#[must_use]
pub fn memory_settings(config: &Config) -> jobs::Settings {
    let memory = &config.memory;
    let overrides = overrides(config).map(|(model, entry)| jobs::Override {
        model,
        settings: Arc::new(settings(
            config,
            &entry.thresholds,
            &entry.observation,
            &entry.reflection,
        )),
    });
    jobs::Settings {
        overrides: overrides.collect(),
        ..settings(
            config,
            &memory.thresholds,
            &memory.observation,
            &memory.reflection,
        )
    }
}

/// The same for all models alike, with these thresholds and phases.
fn settings(
    config: &Config,
    thresholds: &config::Thresholds,
    observation: &config::ObservationSettings,
    reflection: &config::ReflectionSettings,
) -> jobs::Settings {
    let memory = &config.memory;
    jobs::Settings {
        policy: policy(thresholds),
        overrides: Vec::new(),
        upstream: config
            .upstream
            .base_url
            .host_str()
            .unwrap_or_default()
            .to_owned(),
        placement: placement(config),
        zone: memory.timezone.clone(),
        temporal_markers: memory.temporal_markers,
        keep_messages: match memory.keep_messages {
            KeepMessages::UntilObserved => jobs::ArchivePolicy::UntilObserved,
            KeepMessages::Always => jobs::ArchivePolicy::Always,
            KeepMessages::For(time) => jobs::ArchivePolicy::For(time),
        },
        observation: jobs::Phase {
            instruction: observation.instruction.clone(),
            ..phase(&observation.phase)
        },
        reflection: jobs::Phase {
            instruction: reflection.instruction.clone(),
            ..phase(&reflection.phase)
        },
        observer: Arc::new(observer_options(observation, &memory.redact)),
        hints: hints(observation.continuation_hints).union(hints(reflection.continuation_hints)),
        max_loss: reflection.max_loss,
        daily_tokens: memory.daily_tokens,
        peer_memory_tokens: memory.other_conversations,
        bundles: memory.bundles.clone(),
        concurrency: if memory.enabled && !read_only(config).for_all() {
            jobs::MODEL_CALLS
        } else {
            0
        },
    }
}

fn observer_options(
    observation: &config::ObservationSettings,
    redact: &config::Redact,
) -> ObserverOptions {
    let kinds = redact.kinds.iter().map(|kind| match kind {
        config::SecretKind::ApiKey => RedactKind::ApiKey,
        config::SecretKind::Token => RedactKind::Token,
        config::SecretKind::Password => RedactKind::Password,
        config::SecretKind::Secret => RedactKind::Secret,
        config::SecretKind::PrivateKey => RedactKind::PrivateKey,
    });
    ObserverOptions {
        redactor: Redactor::new(kinds.collect(), redact.patterns.clone()),
        omit_blocks: observation.omit_blocks.clone(),
        max_input_tokens: observation.max_input_tokens,
        previous_tokens: observation.previous_observer_tokens,
        hints: hints(observation.continuation_hints),
        title: observation.thread_title,
        application: observation.observe_system,
        attachments: match &observation.observe_attachments {
            config::Attachments::Auto => AttachmentFilter::Auto,
            config::Attachments::All => AttachmentFilter::All,
            config::Attachments::Only(types) => AttachmentFilter::Only(types.clone()),
        },
    }
}

fn hints(hints: config::ContinuationHints) -> RequestedHints {
    RequestedHints {
        current_task: hints.current_task,
        suggested_response: hints.suggested_response,
    }
}

fn policy(thresholds: &config::Thresholds) -> Policy {
    Policy {
        message_tokens: thresholds.message_tokens,
        buffer_tokens: thresholds.buffer_tokens,
        buffer_on_idle: thresholds.buffer_on_idle,
        retention_floor: thresholds.retention_floor,
        block_after: thresholds.message_limit,
        observation_tokens: thresholds.observation_tokens,
        reflect_from: thresholds.reflect_from,
        observation_limit: thresholds.observation_limit,
        share_token_budget: thresholds.share_token_budget,
        block_overhead: render::preamble_tokens(render::PREAMBLE_VERSION),
        early_activation: early(thresholds.early_activation),
        early_reflection: early(thresholds.early_reflection),
    }
}

fn models(models: config::Models) -> llm::Models {
    match models {
        config::Models::One(name) => llm::Models::One(name),
        config::Models::Tiers(tiers) => llm::Models::Tiers(tiers),
    }
}

fn early(early: config::EarlyActivation) -> EarlyTriggers {
    EarlyTriggers {
        idle: match early.idle {
            config::ActivateAfterIdle::Never => IdleTrigger::Never,
            config::ActivateAfterIdle::After(time) => IdleTrigger::After(time),
            config::ActivateAfterIdle::Auto => IdleTrigger::Auto,
        },
        model_change: early.model_change,
    }
}

fn phase(phase: &config::PhaseSettings) -> jobs::Phase {
    jobs::Phase {
        endpoint: phase
            .endpoint
            .as_ref()
            .map(|endpoint| llm::Endpoint::Configured {
                base_url: endpoint.base_url.clone(),
                api_key: endpoint.api_key.clone(),
            }),
        model: phase.model.clone().map(models),
        temperature: Some(phase.temperature),
        max_output_tokens: phase.max_output_tokens,
        parameters: phase.parameters.clone(),
        options: phase.options.clone(),
        deadline: phase.timeout,
        instruction: None,
    }
}
