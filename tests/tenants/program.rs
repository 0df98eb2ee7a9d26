//! The program itself, as a process, with everything it writes kept in files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use diarist_provider::Provider;
use serde_json::Value;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::process::{Child, Command};

/// Far beyond anything but a hang.
const PATIENCE: Duration = Duration::from_mins(3);

pub struct Program {
    child: Child,
    folder: tempfile::TempDir,
    data: SocketAddr,
    admin: SocketAddr,
}

/// What it left behind.
pub struct Left {
    pub audit: Vec<u8>,
    pub logs: Vec<u8>,
    /// The database and what SQLite put beside it, by name.
    pub database: Vec<(String, Vec<u8>)>,
    pub file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Program {
    pub async fn start(provider: &Provider, level: &str) -> Self {
        Self::start_with(provider, level, &[]).await
    }

    /// The same, with more variables of its environment.
    pub async fn start_with(
        provider: &Provider,
        level: &str,
        variables: &[(&str, String)],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let log = std::fs::File::create(path("log")).unwrap();
        let child = Command::new(assert_cmd::cargo::cargo_bin!("diarist"))
            .env_clear()
            .env("HOME", folder.path())
            .env("DIARIST_LOG", level)
            .env("TEST_STORE_READ_SECONDS", PATIENCE.as_secs().to_string())
            .envs(
                variables
                    .iter()
                    .map(|(name, value)| (*name, value.as_str())),
            )
            .env("DIARIST__SERVER__LISTEN", "127.0.0.1:0")
            .env("DIARIST__SERVER__ADMIN", "127.0.0.1:0")
            .env("DIARIST__AUDIT__STORE_RETENTION", "30d")
            .env("DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS", "1500")
            .env("DIARIST__MEMORY__OBSERVATION__BUFFER_TOKENS", "400")
            .env("DIARIST__MEMORY__REFLECTION__OBSERVATION_TOKENS", "1500")
            .args(["serve", "--upstream", &provider.base_url()])
            .args(["--database", &format!("sqlite://{}", path("diarist.db"))])
            .args(["--audit", &path("audit.jsonl")])
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let [data, admin] = addresses(&folder.path().join("log")).await;
        Self {
            child,
            folder,
            data,
            admin,
        }
    }

    pub fn chat(&self) -> String {
        format!("http://{}/v1/chat/completions", self.data)
    }

    pub async fn metrics(&self) -> String {
        let answer = reqwest::get(format!("http://{}/metrics", self.admin)).await;
        answer.unwrap().text().await.unwrap()
    }

    /// Bytes of memory it holds, where the system tells.
    pub fn resident(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    /// Waits until nothing is left to do: no job waits, and no request is recorded any more. A job whose call
    /// failed is tried again much later; it keeps its words until then, and nobody waiting.
    pub async fn rest(&self) {
        let mut database = self.database().await;
        let state = "SELECT (SELECT count(*) FROM jobs WHERE state = 'open'),
                            (SELECT coalesce(sum(times), 0) FROM requests), (SELECT count(*) FROM parts),
                            (SELECT count(*) FROM snapshots)";
        let began = Instant::now();
        let (mut last, mut steady) = ((1, 0, 0, 0), 0);
        loop {
            let now: (i64, i64, i64, i64) = sqlx::query_as(state)
                .fetch_one(&mut database)
                .await
                .unwrap();
            let queued = self.metrics().await.lines().any(|line| {
                let bytes = line.strip_prefix("diarist_intake_bytes ");
                bytes.is_some_and(|bytes| bytes != "0")
            });
            steady = if now == last && !queued {
                steady + 1
            } else {
                0
            };
            // What a busy machine kept an endpoint from is tried again after a pause that grows.
            if steady > 0 && now.0 == 0 || steady > 150 {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "it did not come to rest: {now:?}"
            );
            last = now;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Waits until so many owners have a snapshot. Between two jobs of a conversation a busy machine may rest for a
    /// while.
    pub async fn wait_for_snapshots(&self, owners: i64) {
        let mut database = self.database().await;
        let count = "SELECT count(*) FROM (SELECT DISTINCT tenant, resource FROM snapshots)";
        let began = Instant::now();
        loop {
            let found: i64 = sqlx::query_scalar(count)
                .fetch_one(&mut database)
                .await
                .unwrap();
            if found >= owners {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{found} of {owners} owners have a snapshot"
            );
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn database(&self) -> SqliteConnection {
        SqliteConnectOptions::new()
            .filename(self.folder.path().join("diarist.db"))
            .read_only(true)
            .connect()
            .await
            .unwrap()
    }

    /// Ends it as a supervisor would. It writes its WAL back.
    pub async fn stop(mut self) -> Left {
        let kill = format!("kill -TERM {}", self.child.id().unwrap());
        let sent = Command::new("sh").args(["-c", &kill]).status().await;
        assert!(sent.unwrap().success());
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        assert!(ended.unwrap().unwrap().success());
        let file = |name: &str| self.folder.path().join(name);
        let mut database = Vec::new();
        for name in ["diarist.db", "diarist.db-wal", "diarist.db-shm"] {
            if let Ok(bytes) = std::fs::read(file(name)) {
                database.push((name.to_owned(), bytes));
            }
        }
        Left {
            audit: std::fs::read(file("audit.jsonl")).unwrap(),
            logs: std::fs::read(file("log")).unwrap(),
            database,
            file: file("diarist.db"),
            _folder: self.folder,
        }
    }
}

/// A line of the log says where it listens.
async fn addresses(log: &Path) -> [SocketAddr; 2] {
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(log).unwrap();
        let mut lines = text.lines().filter_map(|line| line.parse::<Value>().ok());
        let address = |line: &Value, field: &str| line[field].as_str()?.parse().ok();
        let found =
            lines.find_map(|line| Some([address(&line, "listen")?, address(&line, "admin")?]));
        if let Some(addresses) = found {
            return addresses;
        }
        assert!(began.elapsed() < PATIENCE, "it did not start: {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
