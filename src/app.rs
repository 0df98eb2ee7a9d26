//! Composition: builds every room from a valid configuration and lets them run together.
//!
//! The only place that knows both the configuration and the rooms, and that hands one room to
//! another. Decides nothing about requests or memory. Called by `cli` and by tests that want the
//! whole process inside their own.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::admin::{Admin, Readiness};
use crate::config::Config;
use crate::proxy::{Limits, Proxy};
use crate::server::{BindError, Drained, Server, Settings};
use crate::tasks::Tasks;
use crate::telemetry::{self, RecorderError};
use crate::upstream::{SetupError, Timeouts, Upstream};

/// The whole process, both ports taken, nothing served yet.
#[derive(Debug)]
pub struct App {
    server: Server,
    proxy: Arc<Proxy>,
    admin: Arc<Admin>,
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
}

impl App {
    /// Builds everything. Has to be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// A port that is taken, root certificates that cannot be read: what no retry would mend.
    pub fn build(config: &Config) -> Result<Self, StartError> {
        let tasks = Tasks::new();
        // Ports first: that one is taken is the likeliest reason not to start, and the quickest to tell.
        let server = Server::bind(server_settings(config))?;
        let metrics = telemetry::install_recorder()?;
        let upstream = Upstream::new(&config.upstream.base_url, timeouts(config), &tasks)?;
        Ok(Self {
            server,
            proxy: Arc::new(Proxy::new(upstream, limits(config), tasks.clone())),
            admin: Arc::new(Admin::new(Readiness::new(), metrics)),
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

    /// Serves until `shutdown` resolves, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Drained {
        let flush = std::future::ready(());
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
    }
}
