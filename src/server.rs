//! Listeners, connections and the drain.
//!
//! [`Server::bind`] opens both ports before anything else starts. [`Server::run`] serves them until a signal, and then
//! drains in numbered steps. What requests mean, `proxy` (data port) and `admin` (admin port) decide. Called by `app`.

mod activity;
mod admin_connections;
mod bad_request;
mod connection;
mod drain;
mod host_check;
mod settings;
mod sighup;
mod socket;
mod stream_tasks;

pub use self::settings::Settings;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use self::admin_connections::AdminConnections;
use self::connection::ConnectionServer;
pub use self::drain::{DrainReport, shutdown_signal};
use self::host_check::HostCheck;
pub use self::sighup::Sighup;
pub use self::socket::BindError;
use crate::admin::Admin;
use crate::proxy::{Proxy, ProxyError, body, respond};
use crate::tasks::Tasks;
use crate::telemetry;

/// Whether `name` can stand in `server.hosts`: a name or address, without a port.
pub fn is_host(name: &str) -> bool {
    host_check::is_host(name)
}

/// Both ports, open.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    data: TcpListener,
    admin: TcpListener,
}

impl Server {
    /// Opens both ports. Port 0 means any free port; the addresses tell which.
    ///
    /// # Errors
    /// If a port cannot be opened. The error names it.
    pub fn bind(settings: Settings) -> Result<Self, BindError> {
        Ok(Self {
            data: socket::listen("data", settings.listen)?,
            admin: socket::listen("admin", settings.admin)?,
            settings,
        })
    }

    /// # Errors
    /// If the system does not know the address.
    pub fn data_addr(&self) -> std::io::Result<SocketAddr> {
        self.data.local_addr()
    }

    /// # Errors
    /// If the system does not know the address.
    pub fn admin_addr(&self) -> std::io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Serves until `shutdown` resolves, then drains. What it resolves to cuts the drain short. `close` runs when the last
    /// connection and the last task have ended.
    pub async fn run<S: Future<Output = ()>>(
        self,
        proxy: Arc<Proxy>,
        admin: Arc<Admin>,
        tasks: Tasks,
        shutdown: impl Future<Output = S>,
        close: impl Future<Output = ()>,
    ) -> DrainReport {
        let connections = ConnectionServer::new(&self.settings, &tasks);
        let check = |listen| Arc::new(HostCheck::new(listen, &self.settings.hosts));
        let data_check = check(self.settings.listen);
        let admin_check = check(self.settings.admin);
        let accepting = accept_data(
            self.data,
            connections.clone(),
            self.settings.max_connections,
            proxy,
            data_check,
            tasks.clone(),
        );
        let administering = accept_admin(
            self.admin,
            connections,
            Arc::clone(&admin),
            admin_check,
            tasks.clone(),
        );
        tasks.spawn("accept data", accepting);
        tasks.spawn("accept admin", administering);
        let (upkeep, stopped) = (admin.upkeep(), tasks.token());
        tasks.spawn("metrics upkeep", async move {
            stopped.run_until_cancelled(upkeep).await;
        });
        let second_signal = shutdown.await;
        drain::drain(
            &tasks,
            admin.readiness(),
            self.settings.drain_timeout,
            second_signal,
            close,
        )
        .await
    }
}

/// Accepts on the data port until the drain begins.
async fn accept_data(
    listener: TcpListener,
    connections: Arc<ConnectionServer>,
    max_connections: usize,
    proxy: Arc<Proxy>,
    check: Arc<HostCheck>,
    tasks: Tasks,
) {
    let permits = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    // A refusal needs a connection too. If there are even more, a socket is closed without an answer.
    let refusal_permits = Arc::new(Semaphore::new(64));
    let draining = tasks.draining();
    while let Some((stream, _)) = draining.run_until_cancelled(accept(&listener)).await {
        let hold = tasks.hold();
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            let (connections, proxy, check, drain) = (
                Arc::clone(&connections),
                Arc::clone(&proxy),
                Arc::clone(&check),
                draining.clone(),
            );
            tasks.spawn("connection", async move {
                let _guards = (
                    hold,
                    permit,
                    telemetry::OpenCount::new(telemetry::CONNECTIONS),
                );
                let answer = |request| {
                    let foreign = check.foreign_name(&request);
                    let proxy = Arc::clone(&proxy);
                    async move {
                        match foreign {
                            None => proxy.handle(request).await,
                            Some(name) => proxy.refuse(&request, ProxyError::ForeignHost(name)),
                        }
                    }
                };
                let audited_by = Some(Arc::clone(&proxy));
                connections.serve(stream, &drain, audited_by, answer).await;
            });
            continue;
        }
        metrics::counter!(telemetry::CONNECTIONS_REFUSED).increment(1);
        if let Ok(permit) = Arc::clone(&refusal_permits).try_acquire_owned() {
            let (connections, proxy) = (Arc::clone(&connections), Arc::clone(&proxy));
            tasks.spawn("refusal", async move {
                let _guards = (hold, permit);
                let answer = |request: &Request<Incoming>| {
                    proxy.refuse(request, ProxyError::TooManyConnections(max_connections))
                };
                connections.refuse(stream, Arc::clone(&proxy), answer).await;
            });
        }
    }
}

/// Accepts on the admin port until the drain is over, so that a drain can be watched.
async fn accept_admin(
    listener: TcpListener,
    connections: Arc<ConnectionServer>,
    admin: Arc<Admin>,
    check: Arc<HostCheck>,
    tasks: Tasks,
) {
    let stopped = tasks.token();
    let mut open = AdminConnections::default();
    while let Some((stream, peer)) = stopped.run_until_cancelled(accept(&listener)).await {
        let closed = stopped.child_token();
        open.add(peer.ip(), closed.clone());
        let (connections, admin, check, drain) = (
            Arc::clone(&connections),
            Arc::clone(&admin),
            Arc::clone(&check),
            stopped.clone(),
        );
        tasks.spawn("admin connection", async move {
            let _ended = closed.clone().drop_guard();
            let answer = |request: Request<Incoming>| {
                let answer = match check.foreign_name(&request) {
                    None => admin.handle(&request).map(body::full),
                    Some(name) => respond::error(&ProxyError::ForeignHost(name), None),
                };
                std::future::ready(answer)
            };
            let serve = connections.serve(stream, &drain, None, answer);
            closed.run_until_cancelled(serve).await;
        });
    }
}

/// The next connection. If the process has no file descriptors left, it waits a second and tries again.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if socket::is_connection_error(&error) => {}
            Err(error) => {
                tracing::error!("cannot accept connections, trying again in a second: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
