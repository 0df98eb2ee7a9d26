//! Composition: builds every room from a valid configuration and lets them run together.
//!
//! The only place that knows both the configuration and the rooms, and that hands one room to
//! another. Decides nothing about requests or memory. Called by `cli` and by tests that want the
//! whole process inside their own.

mod owners;
mod reload;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

pub use self::reload::Reload;

use crate::admin::Condition;
use crate::admin::{Admin, Readiness};
use crate::audit::{Audit, AuditError};
use crate::config::{self, Config, KeepMessages};
use crate::jobs::{self, InForce, Jobs};
use crate::llm::{self, Llm};
use crate::memory::observe::{Hints, Options, Show};
use crate::memory::place::EvidenceLevel;
use crate::memory::redact::{Kind, Redactor};
use crate::memory::{Early, Idle, Pattern, Policy, render};
use crate::proxy::identify::{Owners, Sources};
use crate::proxy::manners::Manners;
use crate::proxy::mode::{Glob, Mode, ReadOnly, Rule, Rules};
use crate::proxy::{AskUsage, Limits, Memory, Overflow, Proxy, Treatment, Turns};
use crate::server::{BindError, Drained, Server, Settings};
use crate::store::recall::Recall;
use crate::store::{Aliases, Reopening, Store};
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
    store: Arc<Reopening>,
    audit: Option<Audit>,
    settings: InForce,
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
        let tasks = Tasks::new();
        // Ports first: that one is taken is the likeliest reason not to start, and the quickest to tell.
        let server = Server::bind(server_settings(config))?;
        let metrics = telemetry::install_recorder()?;
        let upstream = Upstream::new(&config.upstream.base_url, timeouts(config), &tasks)?;
        let audit = audit(config, &tasks)?;
        let llm = Arc::new(Llm::new()?);
        let admin = Arc::new(Admin::new(Readiness::new(), metrics));
        let store = Arc::new(Reopening::new(&config.database.to_string()));
        if config.memory.enabled {
            open(&store, config, admin.readiness(), &tasks).await;
        } else {
            // No file is made for a memory nobody wants.
            store.close().await;
        }
        let settings = InForce::new(memory_settings(config));
        let recall = Arc::new(Recall::new(Arc::clone(&store) as Arc<dyn Store>));
        let jobs = Jobs::start(
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::clone(&recall),
            tokenizer(&tasks),
            llm,
            settings.clone(),
            audit.clone(),
            &tasks,
        );
        let owners = owners::of(config, config.server.listen, Aliases::default());
        if config.memory.enabled {
            let mut heard = owners::Heard::new(&store, &owners, &recall);
            // What a slow disk keeps until later is heard later.
            let _late = tokio::time::timeout(OPENING, heard.listen()).await;
            tasks.spawn("owners", heard.keep_up(tasks.token()));
        }
        let memory = Memory {
            enabled: config.memory.enabled,
            treats: InForce::new(treatment(config, owners)),
            recall,
            jobs,
            manners: Manners::new(
                placement(config),
                config.upstream.base_url.host_str().unwrap_or_default(),
            ),
            rescuing: Turns::default(),
            audit: audit.clone(),
            unfinished: Arc::default(),
        };
        let proxy = Proxy::new(upstream, limits(config), tasks.clone()).remembering(memory);
        let proxy = Arc::new(proxy);
        if config.memory.enabled {
            let (store, readiness) = (Arc::clone(&store), admin.readiness().clone());
            tasks.spawn(
                "watch",
                watch(store, Arc::clone(&proxy), readiness, tasks.token()),
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
                    Some(memory) => memory.quiet(within).await,
                    None => true,
                }
            })
        }
    }

    /// The way to another configuration while this one runs.
    #[must_use]
    pub fn reload(&self) -> Reload {
        Reload {
            started: self.config.clone(),
            in_force: self.config.clone(),
            settings: self.settings.clone(),
            proxy: Arc::clone(&self.proxy),
            audit: self.audit.clone(),
        }
    }

    /// Serves until `shutdown` resolves, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Drained {
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
const OPENING: Duration = Duration::from_secs(1);

/// How often the database is asked how it is.
const WATCH: Duration = Duration::from_secs(5);

async fn open(store: &Arc<Reopening>, config: &Config, readiness: &Readiness, tasks: &Tasks) {
    let (tell, opened) = tokio::sync::oneshot::channel();
    let attempt = Arc::clone(store);
    // A task of its own: an attempt that is given up half-way would never be made again.
    tasks.spawn("store opening", async move {
        // Nobody listens any more where it took too long; the watch sees how it ended.
        let _ = tell.send(attempt.ready().await);
    });
    let problem = match tokio::time::timeout(OPENING, opened).await {
        Ok(Ok(Ok(()))) => return,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(_)) => "opening it failed".to_owned(),
        Err(_) => format!("it did not open within {OPENING:?}"),
    };
    tracing::error!(
        database = %config.database,
        "the database cannot be used: {problem}. Requests pass without memory until it can"
    );
    readiness.set("store", Condition::Degraded(problem));
}

/// Looks after what the request path must not: says when the store goes and comes back, how much
/// lies in its queue, and lets refused placements and blocks be tried again.
async fn watch(
    store: Arc<Reopening>,
    proxy: Arc<Proxy>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let mut well = true;
    while stop
        .run_until_cancelled(tokio::time::sleep(WATCH))
        .await
        .is_some()
    {
        if let Some(memory) = proxy.memory() {
            memory.manners.forgive(Instant::now());
        }
        let asked = store.open_jobs().await;
        match &asked {
            Ok(jobs) => {
                metrics::gauge!(telemetry::OPEN_JOBS).set(*jobs as f64);
                readiness.set("store", Condition::Up);
            }
            Err(error) => {
                readiness.set("store", Condition::Degraded(error.to_string()));
                if let Some(memory) = proxy.memory() {
                    memory.recall.troubled(true);
                }
            }
        }
        match (&asked, well) {
            (Err(error), true) => {
                tracing::error!(error = %error, "the store is gone; requests pass with what this process knows");
            }
            (Ok(_), false) => tracing::info!("the store is back"),
            _ => {}
        }
        well = asked.is_ok();
    }
}

/// The tokenizer; its tables are loaded on a thread that may take its time.
fn tokenizer(tasks: &Tasks) -> Arc<O200k> {
    tasks.spawn("tokenizer", async {
        // A failure to load shows when the first text is counted, and is guarded there.
        let _ = tokio::task::spawn_blocking(O200k::warm).await;
    });
    Arc::new(O200k::new())
}

fn audit(config: &Config, tasks: &Tasks) -> Result<Option<Audit>, AuditError> {
    Ok(match &config.audit {
        config::Audit::Off => None,
        config::Audit::Stdout => Some(Audit::stdout(tasks)),
        config::Audit::File(path) => Some(Audit::file(path, tasks)?),
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
fn treatment(config: &Config, owners: Owners) -> Treatment {
    Treatment {
        owners,
        sources: Sources::of(&config.identity.headers, &config.identity.body_fields),
        read_only: read_only(config),
        rules: rules(config),
        overflow: overflow(config),
        evidence: match config.memory.evidence {
            config::Evidence::Strict => EvidenceLevel::Strict,
            config::Evidence::Names => EvidenceLevel::Names,
            config::Evidence::Content => EvidenceLevel::Content,
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
    let here = move |pattern: &String| Pattern::new(pattern).matches(host);
    let known = config.memory.overrides.iter();
    known
        .filter(move |known| known.upstream.as_ref().is_none_or(&here))
        .map(|known| (Pattern::new(known.model.as_deref().unwrap_or("*")), known))
}

fn read_only(config: &Config) -> ReadOnly {
    ReadOnly {
        listed: overrides(config)
            .map(|(model, known)| (model, known.read_only))
            .collect(),
        all: config.memory.read_only,
    }
}

/// How memory is made, of a valid configuration.
#[must_use]
pub fn memory_settings(config: &Config) -> jobs::Settings {
    let memory = &config.memory;
    let overrides = overrides(config).map(|(model, known)| jobs::Override {
        model,
        settings: Arc::new(settings(
            config,
            &known.thresholds,
            &known.observation,
            &known.reflection,
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
    observation: &config::Observation,
    reflection: &config::Reflection,
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
        keep: match memory.keep_messages {
            KeepMessages::UntilObserved => jobs::Keep::UntilObserved,
            KeepMessages::Always => jobs::Keep::Always,
            KeepMessages::For(time) => jobs::Keep::For(time),
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
        hints: hints(observation.continuation_hints).or(hints(reflection.continuation_hints)),
        max_loss: reflection.max_loss,
        daily_tokens: memory.daily_tokens,
        others: memory.others,
        bundles: memory.bundles.clone(),
        concurrency: if memory.enabled && !read_only(config).for_all() {
            jobs::MODEL_CALLS
        } else {
            0
        },
    }
}

fn observer_options(observation: &config::Observation, redact: &config::Redact) -> Options {
    let kinds = redact.kinds.iter().map(|kind| match kind {
        config::Secret::ApiKey => Kind::ApiKey,
        config::Secret::Token => Kind::Token,
        config::Secret::Password => Kind::Password,
        config::Secret::Secret => Kind::Secret,
        config::Secret::PrivateKey => Kind::PrivateKey,
    });
    Options {
        redactor: Redactor::new(kinds.collect(), redact.patterns.clone()),
        omit_blocks: observation.omit_blocks.clone(),
        max_input_tokens: observation.max_input_tokens,
        previous_tokens: observation.previous_observer_tokens,
        hints: hints(observation.continuation_hints),
        title: observation.thread_title,
        application: observation.observe_system,
        attachments: match &observation.observe_attachments {
            config::Attachments::Auto => Show::Auto,
            config::Attachments::All => Show::All,
            config::Attachments::Only(types) => Show::Only(types.clone()),
        },
    }
}

fn hints(hints: config::Hints) -> Hints {
    Hints {
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

fn early(early: config::Early) -> Early {
    Early {
        idle: match early.idle {
            config::Idle::Never => Idle::Never,
            config::Idle::After(time) => Idle::After(time),
            config::Idle::Auto => Idle::Auto,
        },
        model_change: early.model_change,
    }
}

fn phase(phase: &config::Phase) -> jobs::Phase {
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
