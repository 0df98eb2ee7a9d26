//! Composition: builds every module from a valid configuration and runs them together.
//!
//! The only place that hands one module to another. It decides nothing about requests or memory, and reads no
//! setting that a module reads itself. Called by `cli`, and by tests that run a whole process inside their own.

mod account_quota;
mod audit_store;
mod conversation_caches;
mod cost_metrics;
mod database;
mod file_rights;
mod forgotten_refresher;
mod housekeeping;
mod pepper;
mod reload;
mod seen_messages;
mod tenant_refresher;
mod token_ratios;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;

use self::audit_store::AuditStore;
use self::conversation_caches::ConversationCaches;
use self::cost_metrics::CostMetrics;
use self::forgotten_refresher::ForgottenRefresher;
use self::housekeeping::Housekeeping;
pub use self::pepper::{pepper_hint, pepper_place};
pub use self::reload::Reloader;
use self::reload::request_policy;
use self::seen_messages::SeenMessages;
use self::tenant_refresher::TenantRefresher;
use self::token_ratios::TokenRatios;

use crate::admin::{Access, Admin};
use crate::audit::{Audit, AuditError, AuditOutput, Exporter, OtlpError};
use crate::config::{AuditTarget, Config, ConfigValues};
use crate::history::Pepper;
#[cfg(feature = "testing")]
use crate::history::{Link, Scope, ScopedHash};
use crate::jobs::{Jobs, Reloadable};
use crate::llm::{Endpoint, Llm};
use crate::lookup::{READ_TIMEOUT, SnapshotCache};
use crate::model_prices::NamedPrice;
use crate::proxy::capabilities::UpstreamCapabilities;
use crate::proxy::{AcceptedTenants, Memory, Proxy, SentPrompts, Singleflight};
use crate::server::{BindError, DrainReport, Server};
use crate::store::{
    Admin as _, Aliases, Forgetting as _, OpenError, PepperError, SqliteStore, Store,
};
use crate::tasks::{ComputePool, Tasks};
use crate::telemetry::{self, RecorderError};
use crate::tokens::O200k;
use crate::upstream::{SetupError, Upstream};

/// The whole process. Both ports are taken; nothing is served yet.
#[derive(Debug)]
pub struct App {
    server: Server,
    proxy: Arc<Proxy>,
    admin: Arc<Admin>,
    store: Arc<SqliteStore>,
    audit: Option<Audit>,
    settings: Reloadable,
    prices: Reloadable<Vec<NamedPrice>>,
    /// Whether requests without a credential may have memory; only a restart changes the listener.
    anonymous: bool,
    /// The pepper of the database, for as long as the process runs.
    pepper: Pepper,
    tasks: Tasks,
    /// What the next process is told of this one; `None` without memory.
    seen_messages: Option<SeenMessages>,
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
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    #[error("the model client cannot be set up")]
    Llm(#[from] reqwest::Error),
    #[error(transparent)]
    Pepper(#[from] PepperError),
    #[error(transparent)]
    WrongPepper(OpenError),
}

impl StartError {
    /// Whether only another configuration helps, so that a supervisor need not try again.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Pepper(_) | Self::WrongPepper(_) | Self::Otlp(_))
    }
}

impl App {
    /// Builds everything. If the database cannot be opened, this is logged and tried again; until then requests
    /// pass without memory.
    ///
    /// # Errors
    ///
    /// A port that is taken, an audit file that cannot be opened, root certificates that cannot be read, or a pepper
    /// that is not the one of the database.
    pub async fn build(config: &Config) -> Result<Self, StartError> {
        Self::build_with(config, READ_TIMEOUT).await
    }

    /// As [`App::build_with`], with the tasks that the process's parts are to run as.
    ///
    /// # Errors
    ///
    /// As [`App::build`].
    pub async fn build_in(
        tasks: Tasks,
        config: &Config,
        store_timeout: Duration,
    ) -> Result<Self, StartError> {
        let url = config.database.to_string();
        let store = SqliteStore::reconnecting(&url, store_timeout);
        Box::pin(Self::build_on(store, tasks, config, store_timeout)).await
    }

    /// As [`App::build`], but a request waits `store_timeout` for each read of the store instead of
    /// [`READ_TIMEOUT`]. Tests wait longer, because a busy machine must not change what they see.
    ///
    /// # Errors
    ///
    /// As [`App::build`].
    pub async fn build_with(config: &Config, store_timeout: Duration) -> Result<Self, StartError> {
        Self::build_in(Tasks::new(), config, store_timeout).await
    }

    /// As [`App::build_with`], for one of several processes on one database.
    ///
    /// # Errors
    ///
    /// As [`App::build`].
    #[cfg(feature = "testing")]
    pub async fn build_sharing(
        config: &Config,
        store_timeout: Duration,
    ) -> Result<Self, StartError> {
        let url = config.database.to_string();
        let store = SqliteStore::reconnecting(&url, store_timeout).shared();
        Box::pin(Self::build_on(store, Tasks::new(), config, store_timeout)).await
    }

    async fn build_on(
        store: SqliteStore,
        tasks: Tasks,
        config: &Config,
        store_timeout: Duration,
    ) -> Result<Self, StartError> {
        // The ports come first: a taken port is the most likely reason not to start, and the quickest to find.
        let server = Server::bind(config.server.clone())?;
        let metrics = telemetry::install_recorder()?;
        let upstream = Upstream::new(&config.upstream.base_url, config.upstream.timeouts, &tasks)?;
        let llm = Arc::new(model_client(config)?);
        let admin_token = config.server.admin_token.as_ref();
        let access = Access::new(
            config.server.admin,
            admin_token.map(ExposeSecret::expose_secret),
        );
        let admin = Arc::new(Admin::new(tasks.readiness().clone(), metrics, access));
        let place = pepper_place(config);
        let pepper = if config.memory_enabled {
            place.find_or_make()?
        } else {
            place.find()?
        };
        let store = Arc::new(store.with_pepper(&pepper).with_background(&tasks));
        let pepper = pepper.value;
        let prices = Reloadable::new(config.audit_prices.clone());
        let audit = audit(config, prices.clone(), &store, &tasks)?;
        if config.memory_enabled {
            let timeout = store_timeout.max(database::OPEN_TIMEOUT);
            database::open(&store, config, timeout, admin.readiness(), &tasks)
                .await
                .map_err(StartError::WrongPepper)?;
        } else {
            // Without memory no database file is created.
            store.close().await;
        }
        file_rights::warn_of_readable_files(config);
        let settings = Reloadable::new(config.memory.clone());
        let cache = Arc::new(
            SnapshotCache::new(Arc::clone(&store) as Arc<dyn Store>)
                .with_read_timeout(store_timeout),
        );
        let jobs = Jobs::start(
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::clone(&cache),
            // Its tables, some 45 MB, are loaded when something is counted for the first time.
            Arc::new(O200k::new()),
            llm,
            settings.clone(),
            audit.clone(),
            &tasks,
        );
        let upstream_host = config.upstream.base_url.host_str().unwrap_or_default();
        let caches = ConversationCaches {
            snapshots: Arc::clone(&cache),
            jobs: jobs.clone(),
            sent_prompts: Arc::new(SentPrompts::new(upstream_host)),
            parsed_prefixes: Arc::default(),
        };
        let aliases = Aliases::default();
        let mut seen_messages = None;
        if config.memory_enabled {
            let caches = (&caches, &aliases);
            let starting = start_memory_tasks(config, &store, caches, audit.as_ref(), &tasks);
            seen_messages = Some(starting.await);
        }
        let anonymous = config.requests.identity.anonymous;
        let memory = Memory {
            enabled: config.memory_enabled,
            policy: Reloadable::new(request_policy(config, anonymous, aliases, pepper)),
            cache,
            accepted_tenants: AcceptedTenants::default(),
            parse_pool: ComputePool::default(),
            parsed_prefixes: caches.parsed_prefixes,
            tombstones: store.tombstones(),
            jobs,
            capabilities: UpstreamCapabilities::new(config.memory.placement, upstream_host),
            overflow_singleflight: Singleflight::default(),
            sent_prompts: caches.sent_prompts,
            audit: audit.clone(),
            pending_answers: Arc::default(),
        };
        let proxy = Proxy::new(upstream, config.limits, tasks.clone()).with_memory(memory);
        let proxy = Arc::new(proxy);
        if config.memory_enabled {
            let (store, readiness) = (Arc::clone(&store), admin.readiness().clone());
            tasks.spawn(
                "watch",
                database::watch(store, Arc::clone(&proxy), readiness, tasks.token()),
            );
        }
        Ok(Self {
            server,
            proxy,
            admin,
            store,
            audit,
            settings,
            prices,
            anonymous,
            pepper,
            tasks,
            seen_messages,
        })
    }

    /// The address of the data port; for port 0, the port that the system chose.
    ///
    /// # Errors
    ///
    /// The system does not return the address.
    pub fn data_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.data_addr()
    }

    /// The address of the admin port.
    ///
    /// # Errors
    ///
    /// The system does not return the address.
    pub fn admin_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.admin_addr()
    }

    /// The tasks of this process. Tasks spawned on it stop with the others.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Waits until memory has nothing left to do, and the audit is written; see [`Memory::wait_idle`].
    pub fn quiet(
        &self,
    ) -> impl Fn(Duration) -> futures_util::future::BoxFuture<'static, bool> + Send + Sync + use<>
    {
        let (proxy, audit) = (Arc::clone(&self.proxy), self.audit.clone());
        move |within| {
            let (proxy, audit) = (Arc::clone(&proxy), audit.clone());
            Box::pin(async move {
                let is_idle = match proxy.memory() {
                    Some(memory) => memory.wait_idle(within).await,
                    None => true,
                };
                if let Some(audit) = audit {
                    audit.flush().await;
                }
                is_idle
            })
        }
    }

    /// Makes every conversation look silent for longer; see [`SentPrompts::skip_time`].
    #[cfg(feature = "testing")]
    pub fn skip_time(&self) -> impl Fn(Duration) + Send + Sync + use<> {
        let proxy = Arc::clone(&self.proxy);
        move |duration| {
            if let Some(memory) = proxy.memory() {
                memory.sent_prompts.skip_time(duration);
            }
        }
    }

    /// Lets the process remember only so many entries of what it has seen; see [`SnapshotCache::limit_seen_entries`].
    #[cfg(feature = "testing")]
    pub fn limit_seen_entries(&self) -> impl Fn(usize) + Send + Sync + use<> {
        let proxy = Arc::clone(&self.proxy);
        move |max_entries| {
            if let Some(memory) = proxy.memory() {
                memory.cache.limit_seen_entries(max_entries);
            }
        }
    }

    /// Whether the process has read which keys the database holds: until then it records a first request at once, because
    /// it may continue a conversation of before. Never, where several processes share the database.
    #[cfg(feature = "testing")]
    pub fn has_read_keys(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let proxy = Arc::clone(&self.proxy);
        let nobody = Scope::new(b"nobody", None);
        let nothing = ScopedHash::from_text(&self.pepper, &Link::root(&nobody), "nothing");
        move || {
            proxy
                .memory()
                .is_some_and(|memory| !memory.cache.may_know_ending(&nobody, &nothing))
        }
    }

    /// Applies later configurations to this process. `values` are those that it was built from.
    #[must_use]
    pub fn reload(&self, values: ConfigValues) -> Reloader {
        Reloader {
            start_values: values.clone(),
            current_values: values,
            anonymous: self.anonymous,
            pepper: self.pepper,
            settings: self.settings.clone(),
            prices: self.prices.clone(),
            proxy: Arc::clone(&self.proxy),
            audit: self.audit.clone(),
        }
    }

    /// Serves until `shutdown` resolves, then drains. What it resolves to cuts the drain short.
    pub async fn run<S: Future<Output = ()>>(
        self,
        shutdown: impl Future<Output = S>,
    ) -> DrainReport {
        let (store, audit, proxy) = (self.store, self.audit, Arc::clone(&self.proxy));
        let close = async move {
            if let Some(memory) = proxy.memory() {
                memory.jobs.report_losses();
            }
            if let Some(seen_messages) = self.seen_messages {
                // What was seen while the last answers were waited for.
                seen_messages.save().await;
            }
            // The audit was written when the tasks ended.
            if let Some(audit) = audit {
                audit.report_losses();
            }
            store.close().await;
        };
        let serving = self
            .server
            .run(self.proxy, self.admin, self.tasks, shutdown, close);
        Box::pin(serving).await
    }
}

/// Starts what keeps the tables in memory equal to the store, and the housekeeping of the store. Waits for the first round
/// of each table, because the first request needs it; on a slow disk it comes later. Returns what is to be stored at the end.
async fn start_memory_tasks(
    config: &Config,
    store: &Arc<SqliteStore>,
    (caches, aliases): (&ConversationCaches, &Aliases),
    audit: Option<&Audit>,
    tasks: &Tasks,
) -> SeenMessages {
    let (jobs, cache) = (&caches.jobs, &caches.snapshots);
    let mut tenants = TenantRefresher::new(store, aliases, jobs.accounts(), cache);
    let _timed_out = tokio::time::timeout(database::OPEN_TIMEOUT, tenants.refresh()).await;
    tasks.spawn_background("owners", tenants.run(tasks.token()));
    // Nothing that was forgotten may be used.
    let mut forgotten = ForgottenRefresher::new(store, caches, audit.cloned());
    let _timed_out = tokio::time::timeout(database::OPEN_TIMEOUT, forgotten.refresh()).await;
    tasks.spawn_background("forgotten", forgotten.run(tasks.token()));
    let seen_messages = SeenMessages::new(store, caches);
    let loaded = tokio::time::timeout(database::OPEN_TIMEOUT, seen_messages.load()).await;
    let is_loaded = matches!(loaded, Ok(Ok(())));
    let keeps = seen_messages.clone().run(is_loaded, tasks.draining());
    tasks.spawn_background("seen messages", keeps);
    let mut ratios = TokenRatios::new(store, jobs);
    let _timed_out = tokio::time::timeout(database::OPEN_TIMEOUT, ratios.load()).await;
    tasks.spawn_background("token ratios", ratios.run(tasks.token()));
    let housekeeping = Housekeeping::new(store, caches, config);
    tasks.spawn_background("housekeeping", housekeeping.run(tasks.token()));
    seen_messages
}

/// The client for calls of memory. If any of them needs TLS, what hinders it is known now.
fn model_client(config: &Config) -> Result<Llm, reqwest::Error> {
    let llm = Llm::new()?;
    let memory = &config.memory;
    let phases = [&memory.observation, &memory.reflection];
    let mut configured = phases.iter().filter_map(|phase| phase.endpoint.as_ref());
    let needs_tls =
        config.upstream.base_url.scheme() == "https" || configured.any(Endpoint::is_https);
    if needs_tls {
        llm.prepare_tls()?;
    }
    Ok(llm)
}

/// The audit, if anything becomes of its lines.
fn audit(
    config: &Config,
    prices: Reloadable<Vec<NamedPrice>>,
    store: &Arc<SqliteStore>,
    tasks: &Tasks,
) -> Result<Option<Audit>, StartError> {
    let exporter = match &config.otlp {
        Some(settings) => Exporter::start(settings, tasks)?,
        None => Exporter::default(),
    };
    let stored = config.audit_store_retention.is_some();
    let exporter = if stored {
        exporter.with_store(Arc::new(AuditStore(Arc::clone(store))))
    } else {
        exporter
    };
    let output = match &config.audit {
        AuditTarget::Off if config.otlp.is_none() && !stored => return Ok(None),
        AuditTarget::Off => AuditOutput::Nowhere,
        AuditTarget::Stdout => AuditOutput::Stdout,
        AuditTarget::File(path) => AuditOutput::File(path, &config.audit_rotation),
    };
    let exporter = exporter.with_reader(Box::new(CostMetrics::new(prices)));
    Ok(Some(Audit::open(&output, exporter, tasks)?))
}
