//! What is measured: the programs, their addresses, and how each is started. Nothing outlives the stand.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::client::Connection;
use crate::nginx;
use crate::process::{CORE_FOR_LOAD, CORE_UNDER_TEST, Process, pinned};
use crate::role;
use crate::upstream::MEMORY_MODEL;

/// No program takes longer to start.
const START: Duration = Duration::from_secs(20);
/// The longest wait for background work between two phases.
const QUIET: Duration = Duration::from_secs(30);

/// What a request goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing: straight to the upstream.
    Direct,
    Nginx,
    Passthrough,
    Diarist,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Passthrough => "pass-through",
            Self::Diarist => "diarist",
        }
    }
}

/// A program to send requests to.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub kind: Kind,
    pub address: SocketAddr,
    /// `None` for the direct call.
    process: Option<&'a Process>,
}

impl Target<'_> {
    /// Processor time until now, in microseconds; 0 for the direct call.
    pub fn processor_micros(&self) -> anyhow::Result<f64> {
        self.process.map_or(Ok(0.0), Process::processor_micros)
    }

    /// Waits for the background work of the program.
    pub async fn quiet(&self) -> anyhow::Result<()> {
        if let Some(process) = self.process.filter(|_| self.kind == Kind::Diarist) {
            process.quiet(QUIET).await?;
        }
        Ok(())
    }
}

/// A Diarist of its own, with an empty database.
#[derive(Debug)]
pub struct Diarist {
    pub process: Process,
    pub address: SocketAddr,
    admin: SocketAddr,
    folder: TempDir,
}

impl Diarist {
    /// As a target alone.
    pub fn target(&self) -> Target<'_> {
        Target {
            kind: Kind::Diarist,
            address: self.address,
            process: Some(&self.process),
        }
    }

    /// A counter of its metrics; 0 before its first event.
    pub async fn counter(&self, name: &str) -> anyhow::Result<f64> {
        let page = Connection::open(self.admin).await?.get("/metrics").await?;
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        Ok(line
            .and_then(|rest| rest.trim().parse().ok())
            .unwrap_or(0.0))
    }
}

/// Everything that runs during all rows.
#[derive(Debug)]
pub struct Stand {
    upstream: (SocketAddr, Process),
    passthrough: (SocketAddr, Process),
    nginx: Option<(SocketAddr, Process)>,
    _folder: TempDir,
}

impl Stand {
    /// Starts the upstream and the two yardsticks.
    pub async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let upstream = free_address()?;
        let this = std::env::current_exe()?;
        let mut command = pinned(CORE_FOR_LOAD, &this);
        command.args([role::UPSTREAM, &upstream.to_string()]);
        let upstream = started(upstream, command).await?;
        let listen = free_address()?;
        let mut command = pinned(CORE_UNDER_TEST, &this);
        command.args([
            role::PASSTHROUGH,
            &listen.to_string(),
            &upstream.0.to_string(),
        ]);
        let passthrough = started(listen, command).await?;
        let listen = free_address()?;
        let nginx = match nginx::command(folder.path(), listen, upstream.0)? {
            Some(command) => Some(started(listen, command).await?),
            None => None,
        };
        Ok(Self {
            upstream,
            passthrough,
            nginx,
            _folder: folder,
        })
    }

    /// Whether nginx is among the targets.
    pub fn has_nginx(&self) -> bool {
        self.nginx.is_some()
    }

    /// Starts a Diarist with the default configuration. Only addresses, the database and the model of memory are its
    /// own; the lines of the audit go nowhere.
    pub async fn diarist(&self) -> anyhow::Result<Diarist> {
        self.diarist_in(tempfile::tempdir()?).await
    }

    /// Ends a Diarist, and starts another one on its database.
    pub async fn restarted(&self, diarist: Diarist) -> anyhow::Result<Diarist> {
        let Diarist {
            process, folder, ..
        } = diarist;
        drop(process);
        self.diarist_in(folder).await
    }

    async fn diarist_in(&self, folder: TempDir) -> anyhow::Result<Diarist> {
        let (address, admin) = (free_address()?, free_address()?);
        let database = format!("sqlite://{}", folder.path().join("bench.db").display());
        let mut command = pinned(CORE_UNDER_TEST, env!("CARGO_BIN_EXE_diarist"));
        command
            .arg("serve")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", folder.path())
            .env("DIARIST__SERVER__LISTEN", address.to_string())
            .env("DIARIST__SERVER__ADMIN", admin.to_string())
            .env(
                "DIARIST__UPSTREAM__BASE_URL",
                format!("http://{}/v1", self.upstream.0),
            )
            .env("DIARIST__STORE__URL", database)
            .env("DIARIST__MEMORY__MODEL", MEMORY_MODEL)
            .stdout(Stdio::null())
            .stderr(log(folder.path())?);
        let (_, process) = started(address, command).await?;
        let diarist = Diarist {
            process,
            address,
            admin,
            folder,
        };
        let begin = Instant::now();
        while Connection::open(admin).await?.get("/readyz").await.is_err() {
            anyhow::ensure!(begin.elapsed() < START, "Diarist does not become ready");
            sleep(Duration::from_millis(50)).await;
        }
        diarist.process.quiet(START).await?;
        Ok(diarist)
    }

    /// The targets in the order in which each round runs them.
    pub fn targets<'a>(&'a self, diarist: &'a Diarist) -> Vec<Target<'a>> {
        let direct = Target {
            kind: Kind::Direct,
            address: self.upstream.0,
            process: None,
        };
        let yardstick = |kind, (address, process): &'a (SocketAddr, Process)| Target {
            kind,
            address: *address,
            process: Some(process),
        };
        let nginx = self.nginx.as_ref();
        let nginx = nginx.map(|nginx| yardstick(Kind::Nginx, nginx));
        let passthrough = yardstick(Kind::Passthrough, &self.passthrough);
        [direct]
            .into_iter()
            .chain(nginx)
            .chain([passthrough, diarist.target()])
            .collect()
    }
}

/// Standard error of a program. Kept in the temporary folder: a run writes many lines.
fn log(folder: &Path) -> anyhow::Result<File> {
    Ok(File::create(folder.join("stderr.log"))?)
}

async fn started(address: SocketAddr, command: Command) -> anyhow::Result<(SocketAddr, Process)> {
    let mut process = Process::start(command)?;
    let begin = Instant::now();
    while Connection::open(address).await.is_err() {
        process.check()?;
        anyhow::ensure!(
            begin.elapsed() < START,
            "nothing listens on {address} in time"
        );
        sleep(Duration::from_millis(20)).await;
    }
    Ok((address, process))
}

/// A loopback address that nobody listens on now.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?)
}
