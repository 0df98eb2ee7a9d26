//! A proxy on free ports in front of an upstream that the test plays.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diarist::admin::{Access, Admin, Readiness};
use diarist::proxy::{Limits, Proxy};
use diarist::server::{DrainReport, Server, Settings};
use diarist::tasks::Tasks;
use diarist::telemetry;
use diarist::upstream::{Timeouts, Upstream};
use futures_util::FutureExt as _;
use rustls::RootCertStore;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::raw_upstream::{Peer, RawUpstream, within_timeout};

pub struct Options {
    pub settings: Settings,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub access: Access,
    /// The only ones to trust; the platform's otherwise.
    pub roots: Option<RootCertStore>,
}

pub struct Rig {
    pub data: SocketAddr,
    pub admin: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<DrainReport>,
    flushed: Arc<AtomicBool>,
}

impl Rig {
    pub fn start(url: &str, adjust: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options {
            settings: Settings::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            access: Access::Open,
            roots: None,
        };
        // The names that tests write.
        options.settings.hosts = ["a", "x", "proxy", "diarist", "evil.example"]
            .map(str::to_owned)
            .into();
        options.settings.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        options.settings.admin = SocketAddr::from(([127, 0, 0, 1], 0));
        adjust(&mut options);
        let tasks = Tasks::new();
        let (url, timeouts) = (url.parse().unwrap(), options.timeouts);
        let upstream = match options.roots {
            Some(roots) => Upstream::with_roots(roots, &url, timeouts, &tasks),
            None => Upstream::new(&url, timeouts, &tasks),
        }
        .unwrap();
        let proxy = Arc::new(Proxy::new(upstream, options.limits, tasks.clone()));
        let metrics = telemetry::install_recorder().unwrap();
        let admin = Arc::new(Admin::new(Readiness::new(), metrics, options.access));
        let server = Server::bind(options.settings).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let flushed = Arc::new(AtomicBool::new(false));
        let flush = Arc::clone(&flushed);
        let (data, admin_addr) = (server.data_addr().unwrap(), server.admin_addr().unwrap());
        let running = tokio::spawn(server.run(
            proxy,
            admin,
            tasks,
            stopped.map(|_| std::future::pending()),
            async move { flush.store(true, Ordering::Relaxed) },
        ));
        Self {
            data,
            admin: admin_addr,
            stop,
            running,
            flushed,
        }
    }

    /// A proxy with default limits, its upstream, and a client connected to it.
    pub async fn plain() -> (RawUpstream, Self, Peer) {
        let upstream = RawUpstream::listen().await;
        let rig = Self::start(&upstream.url(), |_| {});
        let client = rig.client().await;
        (upstream, rig, client)
    }

    pub async fn client(&self) -> Peer {
        Peer::connect(self.data).await
    }

    /// Gives the signal to stop; the drain goes on in the returned task.
    pub fn stop(self) -> JoinHandle<(DrainReport, bool)> {
        self.stop.send(()).unwrap();
        tokio::spawn(async move {
            let drained = within_timeout("the drain", self.running).await.unwrap();
            (drained, self.flushed.load(Ordering::Relaxed))
        })
    }
}

/// One exchange on a fresh client connection; returns what the upstream and the client saw.
pub async fn exchange(request: &str, response: &str) -> (String, String) {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(request).await;
    let mut peer = upstream.accept().await;
    let head = peer.head().await;
    peer.send(response).await;
    let answer = client.head().await;
    (head, answer)
}

/// Head lines without the first, sorted: header order across names is not promised.
pub fn lines(head: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = head.trim_end().split("\r\n").skip(1).collect();
    lines.sort_unstable();
    lines
}

pub fn first_line(head: &str) -> &str {
    head.split("\r\n").next().unwrap()
}

/// Long enough for a wrong byte to arrive, where a test says that none must.
pub const A_WHILE: Duration = Duration::from_millis(150);
