//! The program itself, as a process: killed, restarted, out of disk, and looked at for secrets. One
//! process has one set of metrics, so what has to be counted exactly is counted here.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind, OBSERVER_MODEL, Options, Provider, REFLECTOR_MODEL};
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};

use crate::memory::rig::{Answer, PATIENCE, plain_client};
use crate::memory::tools::{ACTIVE, SampleConversation, eventually, eventually_async, metric};

/// Thresholds small enough that a test reaches them.
pub const CONFIG: &str =
    "[memory.observation]\nmessage_tokens = 2000\n[memory.reflection]\nobservation_tokens = 1000\n";

pub struct Program {
    pub provider: Provider,
    folder: tempfile::TempDir,
    client: reqwest::Client,
    shell: Option<&'static str>,
    starts: usize,
    running: Option<Running>,
}

struct Running {
    child: Child,
    data: String,
    admin: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Program {
    pub async fn start() -> Self {
        Self::within(None).await
    }

    /// `shell` runs first, in a shell that then becomes the program.
    pub async fn within(shell: Option<&'static str>) -> Self {
        let mut program = Self {
            provider: Provider::start(Options::default()).await.unwrap(),
            folder: tempfile::tempdir().unwrap(),
            client: plain_client(),
            shell,
            starts: 0,
            running: None,
        };
        program.configure(CONFIG);
        program.again().await;
        program
    }

    /// What its file says from now on.
    pub fn configure(&self, text: &str) {
        std::fs::write(self.path("diarist.toml"), text).unwrap();
    }

    /// Tells it to read its configuration anew.
    pub fn hang_up(&self) {
        let kill = format!("kill -HUP {}", self.running().child.id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path(&format!("log-{}.jsonl", self.starts))).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What it says if it refuses to start on the same database.
    pub async fn refused(&self) -> String {
        let mut command = tokio::process::Command::from(self.command());
        // If it starts after all, it would serve for ever.
        let output = command.stderr(Stdio::piped()).kill_on_drop(true).output();
        let Ok(output) = tokio::time::timeout(PATIENCE, output).await else {
            panic!("it was to refuse, and serves or hangs");
        };
        let output = output.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{stderr}");
        stderr
    }

    /// Runs another command of it on the same database; whether it succeeded, and what it printed.
    pub fn operator(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new(assert_cmd::cargo::cargo_bin!("diarist"))
            .env_clear()
            .env("HOME", "/home/ada")
            .args(args)
            .arg("--database")
            .arg(self.path("diarist.db"))
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    /// Starts it on the same database.
    pub async fn again(&mut self) {
        self.starts += 1;
        let log = self.path(&format!("log-{}.jsonl", self.starts));
        let child = self
            .command()
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        self.listening(child, log).await;
    }

    fn command(&self) -> Command {
        let program = assert_cmd::cargo::cargo_bin!("diarist");
        let mut command = match self.shell {
            None => Command::new(program),
            Some(before) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]);
                shell.arg(program);
                shell
            }
        };
        let at = |name: &str| self.path(name).display().to_string();
        command
            .env_clear()
            .env("DIARIST_LOG", "trace")
            .env("TEST_STORE_READ_SECONDS", PATIENCE.as_secs().to_string())
            .env("DIARIST__SERVER__LISTEN", "127.0.0.1:0")
            .env("DIARIST__SERVER__ADMIN", "127.0.0.1:0")
            .env("DIARIST__UPSTREAM__BASE_URL", self.provider.base_url())
            .env(
                "DIARIST__STORE__URL",
                format!("sqlite://{}", at("diarist.db")),
            )
            .env("DIARIST__AUDIT__PATH", at("audit.jsonl"))
            .env("DIARIST__MEMORY__OBSERVATION__MODEL", OBSERVER_MODEL)
            .env("DIARIST__MEMORY__REFLECTION__MODEL", REFLECTOR_MODEL)
            .args(["serve", "--config", &at("diarist.toml")])
            .stdout(Stdio::null());
        command
    }

    async fn listening(&mut self, child: Child, log: PathBuf) {
        let listening = || -> Option<Value> {
            let text = std::fs::read_to_string(&log).ok()?;
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            lines
                .into_iter()
                .find(|line: &Value| line.get("listen").is_some())
        };
        eventually("the program to listen", || listening().is_some()).await;
        let entry = listening().unwrap();
        let address = |field: &str| entry[field].as_str().unwrap().to_owned();
        self.running = Some(Running {
            child,
            data: address("listen"),
            admin: address("admin"),
        });
        // Requests pass before the database is open, and leave nothing in it.
        let is_ready = async || self.admin("readyz").await.contains(r#""status":"ready""#);
        eventually_async("the program to be ready", is_ready).await;
    }

    /// The address of its data port.
    pub fn address(&self) -> &str {
        &self.running().data
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn kill(&mut self) {
        self.running = None;
    }

    pub async fn terminate(&mut self) {
        let mut running = self.running.take().unwrap();
        let kill = format!("kill -TERM {}", running.child.id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
        let mut status = None;
        eventually("the program to end", || {
            status = running.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert!(status.unwrap().success());
    }

    pub async fn send_as(&self, credential: &str, body: &Value) -> Answer {
        self.send_with(credential, &[], body).await
    }

    /// The same, with these headers too.
    pub async fn send_with(
        &self,
        credential: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let url = format!("http://{}/v1/chat/completions", self.running().data);
        let mut request = self.client.post(url).header("authorization", credential);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.json(body).send().await.unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap().to_vec(),
        }
    }

    pub async fn send(&self, body: &Value) -> Answer {
        self.send_as("Bearer sk-test", body).await
    }

    pub async fn metrics(&self) -> String {
        self.admin("metrics").await
    }

    /// A page of the admin port.
    pub async fn admin(&self, page: &str) -> String {
        let url = format!("http://{}/{page}", self.running().admin);
        self.client
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    }

    pub async fn metric(&self, name: &str) -> f64 {
        metric(&self.metrics().await, name)
    }

    pub async fn database(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path("diarist.db"));
        options.busy_timeout(PATIENCE).connect().await.unwrap()
    }

    pub async fn number(&self, query: &'static str) -> i64 {
        let mut database = self.database().await;
        sqlx::query_scalar(query)
            .fetch_one(&mut database)
            .await
            .unwrap()
    }

    /// Waits until nothing follows any more from what was recorded; `body` went out last. What follows from an
    /// exchange, or from a job, is done after it is counted as recorded, or as gone. So once each part has
    /// its line, which is written before that, the same is sent again: one thing is done after the other.
    pub async fn at_rest(&self, body: &Value, recorded: &mut usize) {
        let parts = || self.number("SELECT count(*) FROM parts");
        loop {
            self.wait_recorded(*recorded).await;
            let known = parts().await;
            eventually("the lines of the parts", || self.lines_of_parts() >= known).await;
            self.send(body).await;
            *recorded += 1;
            self.wait_recorded(*recorded).await;
            if parts().await == known {
                return;
            }
        }
    }

    fn lines_of_parts(&self) -> i64 {
        let text = std::fs::read_to_string(self.path("audit.jsonl")).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("\"wrote\":"));
        lines.count().try_into().unwrap()
    }

    /// Waits until so many exchanges of this process are recorded, or the store has failed at one.
    async fn wait_recorded_or_lost(&self, recorded: usize) {
        let began = std::time::Instant::now();
        loop {
            let counted = self.metric("diarist_exchanges_recorded_total").await;
            let failures = self.metric("diarist_store_failures_total").await;
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            if counted >= recorded as f64 || failures > 0.0 {
                // Once it fails, each request has a little time for what is left to do.
                return tokio::time::sleep(Duration::from_millis(100)).await;
            }
            assert!(began.elapsed() < PATIENCE, "{counted} of {recorded}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until so many exchanges of this process are recorded, or wait for a second one, and no job is left.
    pub async fn wait_recorded(&self, recorded: usize) {
        let began = std::time::Instant::now();
        loop {
            let counted = self.metric("diarist_exchanges_recorded_total").await
                + self.metric("diarist_exchanges_waiting").await;
            let jobs = self
                .number("SELECT count(*) FROM jobs WHERE state = 'open'")
                .await;
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            if counted >= recorded as f64 && jobs == 0 {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{counted} of {recorded}, {jobs} jobs"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Where `secret` stands in a file; `None` where it does not.
pub fn found(path: &std::path::Path, secret: &str) -> Option<String> {
    let bytes = std::fs::read(path).unwrap();
    let at = memchr::memmem::find(&bytes, secret.as_bytes())?;
    let around = &bytes[at.saturating_sub(80)..(at + 80).min(bytes.len())];
    Some(format!(
        "{}: …{}…",
        path.display(),
        String::from_utf8_lossy(around)
    ))
}

/// Whoever closes a file drops all locks of its process on it, those of SQLite too. Had the program looked at its database
/// file by itself, another one that reads the database (a backup) would take itself for the last one and remove the journal that the
/// program writes to. A forgotten conversation came back so, and the database was damaged.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn the_database_stays_locked_while_it_is_served() {
    use std::os::unix::fs::MetadataExt as _;

    let mut program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    // The second start finds a database.
    for turn in [2, 4] {
        if turn > 2 {
            program.terminate().await;
            program.again().await;
        }
        program.send(&conversation.body(turn - 1)).await;
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(2).await;
        let id = program.running().child.id().to_string();
        let file = std::fs::metadata(program.path("diarist.db")).unwrap().ino();
        let place = format!(":{file}");
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        // Number, kind, "ADVISORY", access, process, place.
        let is_held = locks.lines().any(|lock| {
            let mut fields = lock.split_whitespace().skip(4);
            fields.next() == Some(&*id) && fields.next().is_some_and(|at| at.ends_with(&place))
        });
        assert!(is_held, "{id} holds no lock of {file}:\n{locks}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn no_credential_and_no_word_of_a_conversation_leaks() {
    let mut program = Program::start().await;
    let secrets = ["sk-SECRET-alpha-1", "sk-SECRET-beta-2"];
    let conversation = SampleConversation::new("ada");
    let mut sent = 0;
    for secret in secrets {
        let credential = format!("Bearer {secret}");
        for turn in 1..=ACTIVE {
            let answer = program.send_as(&credential, &conversation.body(turn)).await;
            assert_eq!(answer.status, 200);
            sent += 1;
            program.wait_recorded(sent).await;
        }
    }
    // Trouble is logged too: a credential that is refused, a call that fails.
    for secret in secrets {
        let credential = format!("Bearer {secret}");
        for status in [401, 500] {
            // Also as the client itself sends it.
            program
                .provider
                .inject(CallerKind::Actor, Behaviour::failing(status));
            program
                .provider
                .inject_next(CallerKind::Observer, 1, &Behaviour::failing(status));
            let body = conversation.body(ACTIVE + 1);
            let answer = program.send_as(&credential, &body).await;
            assert_eq!(answer.status, status);
            program
                .provider
                .inject(CallerKind::Actor, Behaviour::default());
        }
        let broken = program
            .send_as(&credential, &Value::from(conversation.canary()))
            .await;
        assert_eq!(broken.status, 400);
    }
    let metrics = program.metrics().await;
    program.terminate().await;

    for secret in secrets {
        assert!(!metrics.contains(secret));
        let files = std::fs::read_dir(program.folder.path()).unwrap();
        for file in files {
            assert_eq!(found(&file.unwrap().path(), secret), None);
        }
    }
    // The words of a conversation stand in the database, where its memory is, and nowhere else.
    let canary = conversation.canary();
    assert!(!metrics.contains(&canary));
    assert!(found(&program.path("diarist.db"), &canary).is_some());
    for name in ["log-1.jsonl", "audit.jsonl"] {
        assert_eq!(found(&program.path(name), &canary), None);
    }
    let log = std::fs::read_to_string(program.path("log-1.jsonl")).unwrap();
    assert!(
        log.contains("\"TRACE\"") || log.contains("\"DEBUG\""),
        "it was told to say all"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_during_a_call_repeats_only_that_call() {
    let mut program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=4 {
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(turn).await;
    }
    let committed = program.number("SELECT count(*) FROM parts").await;
    assert!(committed > 0);
    let before = program.provider.record_for(CallerKind::Observer).len();
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    program.provider.inject(CallerKind::Observer, silent);
    program.send(&conversation.body(5)).await;
    let is_called = || program.provider.record_for(CallerKind::Observer).len() > before;
    eventually("the Observer to be asked", is_called).await;
    program.kill();
    program
        .provider
        .inject(CallerKind::Observer, Behaviour::default());
    let leased = "SELECT count(*) FROM jobs WHERE leased = 1";
    assert_eq!(program.number(leased).await, 1, "nobody gave it back");

    program.again().await;
    program.send(&conversation.body(6)).await;
    // Within its lease the job is somebody's: it might still be at work.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        program.provider.record_for(CallerKind::Observer).len(),
        before + 1
    );
    let mut database = program.database().await;
    sqlx::raw_sql("UPDATE jobs SET due_ms = 0 WHERE leased = 1")
        .execute(&mut database)
        .await
        .unwrap();
    program.wait_recorded(1).await;
    let calls = program.provider.record_for(CallerKind::Observer);
    let parts = program
        .number("SELECT count(*) FROM parts WHERE kind = 'chunk'")
        .await;
    assert_eq!(
        calls.len(),
        usize::try_from(parts).unwrap() + 1,
        "only the lost call is made again"
    );
    assert_eq!(
        calls[before].body_bytes,
        calls[before + 1].body_bytes,
        "that very one"
    );
    for turn in 7..=ACTIVE + 1 {
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(turn - 5).await;
    }
    let answer = program.send(&conversation.body(ACTIVE + 2)).await;
    assert_eq!(answer.memory(), "active");
}

/// What was answered before the kill and never written down comes again with the next request.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_process_killed_at_any_turn_continues_at_the_next() {
    let mut program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    let mut states = Vec::new();
    for turn in 1..=ACTIVE + 6 {
        let answer = program.send(&conversation.body(turn)).await;
        assert_eq!(answer.status, 200);
        states.push(answer.memory().to_owned());
        if turn % 3 == 0 {
            program.kill();
            let mut database = program.database().await;
            // Its lease has run out.
            sqlx::raw_sql("UPDATE jobs SET due_ms = 0 WHERE leased = 1")
                .execute(&mut database)
                .await
                .unwrap();
            program.again().await;
        } else {
            // One or two of this process: the first request waits for the second.
            program.wait_recorded(turn % 3).await;
        }
    }
    assert_eq!(states.last().unwrap(), "active", "{states:?}");
    let broken =
        program.number("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'");
    assert_eq!(broken.await, 0);
}

/// No file may grow beyond two megabytes: as on a full disk, what is there can be read.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_process_on_a_full_disk_serves_known_memory_and_reports_it() {
    // In blocks of 512 bytes; without the trap the signal would end the program.
    let program = Program::within(Some("trap '' XFSZ; ulimit -f 4500")).await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(turn).await;
    }
    let mut states = Vec::new();
    for turn in ACTIVE + 1..=60 {
        let answer = program.send(&conversation.body(turn)).await;
        assert_eq!(answer.status, 200, "turn {turn}");
        states.push(answer.memory().to_owned());
        program.wait_recorded_or_lost(turn).await;
        let from_process = states
            .iter()
            .filter(|state| state.ends_with("rung=process"));
        if from_process.count() > 3 {
            break;
        }
    }
    let by_process = "active; rung=process".to_owned();
    assert!(states.contains(&by_process), "{states:?}");
    assert!(program.metric("diarist_store_failures_total").await > 0.0);
    let process = "diarist_memory_requests_total{rung=\"process\"}";
    assert!(program.metric(process).await > 0.0);
}
