//! One provider, one Diarist in front of it, one client.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use diarist::app::App;
use diarist::config;
use diarist::history::Pepper;
use diarist::proxy::identify::tenant_of_key;
use diarist::store::{Admin as _, PepperPlace, SqliteStore};
use diarist::tasks::Tasks;
use diarist_provider::{
    CallerKind, Conversation, OBSERVER_MODEL, Options, Provider, REFLECTOR_MODEL,
};
use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::JoinHandle;

pub use crate::support::patient_store::PATIENCE;

/// Thresholds small enough that a test reaches them.
pub const SMALL: [(&str, &str); 2] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
];

/// An empty database, as the migrations of this run have made it.
static EMPTY_DATABASE: OnceCell<Vec<u8>> = OnceCell::const_new();

/// Puts an empty database and its pepper at `path`. To run the migrations for each of several hundred rigs costs much.
/// Tests that run the program see what happens where there is no database yet.
async fn new_database(path: &Path) {
    // Without it the database would count as one of an old version.
    database_pepper(path).find_or_make().unwrap();
    let bytes = EMPTY_DATABASE.get_or_init(async || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("empty.db");
        let url = format!("sqlite://{}", file.display());
        SqliteStore::open(&url).await.unwrap().close().await;
        std::fs::read(file).unwrap()
    });
    let mut options = std::fs::OpenOptions::new();
    // As the program itself makes it.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.write(true).create_new(true).open(path);
    file.unwrap().write_all(bytes.await).unwrap();
}

fn database_pepper(database: &Path) -> PepperPlace<'_> {
    PepperPlace {
        secret: None,
        file: None,
        database: Some(database),
    }
}

/// A client that speaks no TLS: to read the certificates that the machine trusts takes a while.
pub fn plain_client() -> reqwest::Client {
    let client = reqwest::Client::builder().tls_certs_only([]);
    client.build().unwrap()
}

pub struct Rig {
    pub provider: Provider,
    pub folder: tempfile::TempDir,
    pub client: reqwest::Client,
    env: BTreeMap<String, String>,
    store_timeout: Duration,
    /// Whether another process serves with the same database.
    shares_database: bool,
    running: Option<Running>,
}

struct Running {
    base: String,
    admin: String,
    tasks: Tasks,
    quiet: Box<dyn Fn(Duration) -> futures_util::future::BoxFuture<'static, bool> + Send + Sync>,
    skip_time: Box<dyn Fn(Duration) + Send + Sync>,
    limit_seen_entries: Box<dyn Fn(usize) + Send + Sync>,
    has_read_keys: Box<dyn Fn() -> bool + Send + Sync>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

/// What a client got.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn memory(&self) -> &str {
        self.headers
            .get("x-diarist-memory")
            .map_or("", |v| v.to_str().unwrap())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Rig {
    /// Thresholds small enough that a test reaches them.
    pub async fn small() -> Self {
        Self::with(Options::default(), &SMALL).await
    }

    pub async fn with(options: Options, settings: &[(&str, &str)]) -> Self {
        Self::with_store_timeout(options, settings, PATIENCE).await
    }

    /// The same, where requests wait for the store for `store_timeout`.
    pub async fn with_store_timeout(
        options: Options,
        settings: &[(&str, &str)],
        store_timeout: Duration,
    ) -> Self {
        let mut rig = Self::stopped(options, settings, store_timeout).await;
        rig.start().await;
        rig
    }

    /// One more process on the database of `other`, as a replica is one on a shared store.
    pub async fn beside(other: &Self, settings: &[(&str, &str)]) -> Self {
        let mut rig = Self::stopped(Options::default(), settings, PATIENCE).await;
        rig.set(
            "STORE__URL",
            &format!("sqlite://{}", other.file().display()),
        );
        rig.shares_database = true;
        rig.start().await;
        rig
    }

    async fn stopped(options: Options, settings: &[(&str, &str)], store_timeout: Duration) -> Self {
        let provider = Provider::start(options).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        if !settings.contains(&("MEMORY__ENABLED", "false")) {
            new_database(&folder.path().join("diarist.db")).await;
        }
        let mut env: BTreeMap<String, String> = [
            ("SERVER__LISTEN", "127.0.0.1:0".to_owned()),
            ("SERVER__ADMIN", "127.0.0.1:0".to_owned()),
            ("UPSTREAM__BASE_URL", provider.base_url()),
            // A message of its own is easy to find. `placement` tests the default.
            ("UPSTREAM__PLACEMENT", "system_message".to_owned()),
            (
                "STORE__URL",
                format!("sqlite://{}", folder.path().join("diarist.db").display()),
            ),
            (
                "AUDIT__PATH",
                folder.path().join("audit.jsonl").display().to_string(),
            ),
            ("MEMORY__OBSERVATION__MODEL", OBSERVER_MODEL.to_owned()),
            ("MEMORY__REFLECTION__MODEL", REFLECTOR_MODEL.to_owned()),
        ]
        .into_iter()
        .map(|(key, value)| (format!("DIARIST__{key}"), value))
        .collect();
        env.extend(
            settings
                .iter()
                .map(|(k, v)| (format!("DIARIST__{k}"), (*v).to_owned())),
        );
        Self {
            provider,
            folder,
            client: plain_client(),
            env,
            store_timeout,
            shares_database: false,
            running: None,
        }
    }

    /// The tenant of a key, under the pepper of the database.
    pub fn tenant(&self, key: &str) -> [u8; 32] {
        let pepper = database_pepper(&self.file()).find().unwrap().value;
        assert_ne!(pepper, Pepper::NONE);
        tenant_of_key("authorization", key, &pepper).unwrap()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the app waits for its tasks; it cannot be one"
    )]
    pub async fn start(&mut self) {
        let config = config::load(&config::Flags::default(), &self.env, None).unwrap();
        let app = if self.shares_database {
            App::build_sharing(&config, self.store_timeout).await
        } else {
            App::build_with(&config, self.store_timeout).await
        };
        let app = app.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = Running {
            base: format!("http://{}", app.data_addr().unwrap()),
            admin: format!("http://{}", app.admin_addr().unwrap()),
            tasks: app.tasks().clone(),
            quiet: Box::new(app.quiet()),
            skip_time: Box::new(app.skip_time()),
            limit_seen_entries: Box::new(app.limit_seen_entries()),
            has_read_keys: Box::new(app.has_read_keys()),
            stop,
            ended: tokio::spawn(async move {
                app.run(stopped.map(|_| std::future::pending())).await;
            }),
        };
        self.running = Some(running);
    }

    /// Ends the proxy as SIGTERM would, and starts another on the same database.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start().await;
    }

    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.stop.send(());
            running.ended.await.unwrap();
        }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// The tasks of the running process.
    pub fn tasks(&self) -> &Tasks {
        &self.running().tasks
    }

    /// What `/readyz` says of one part.
    pub async fn part(&self, name: &str) -> Value {
        self.admin("/readyz").await.json()["parts"][name].clone()
    }

    /// Waits until `/readyz` says this of a part.
    pub async fn wait_part(&self, name: &str, status: &str) -> Value {
        let waiting = async {
            loop {
                let part = self.part(name).await;
                if part["status"] == status {
                    return part;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| panic!("{name} is never {status}"))
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.running().base)
    }

    pub async fn metrics(&self) -> String {
        let url = format!("{}/metrics", self.running().admin);
        self.client
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    }

    /// Waits until memory has done all it has to do.
    pub async fn quiet(&self) {
        assert!(
            (self.running().quiet)(PATIENCE).await,
            "memory did not come to rest"
        );
    }

    /// Waits until memory has done all it has to do, but no longer than `limit`.
    pub async fn quiet_within(&self, limit: Duration) {
        let _may_still_work = (self.running().quiet)(limit).await;
    }

    /// Waits until the proxy has read which keys its database holds. It does so in the background, and until then a first
    /// request is recorded at once.
    pub async fn wait_until_keys_are_read(&self) {
        let waiting = async {
            while !(self.running().has_read_keys)() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "the keys of the database are never read");
    }

    /// Lets the proxy believe that every conversation was silent for this much longer.
    pub fn skip_time(&self, duration: Duration) {
        (self.running().skip_time)(duration);
    }

    /// Lets the proxy forget what it has heard, and remember only so much from now on.
    pub fn limit_seen_entries(&self, entries: usize) {
        (self.running().limit_seen_entries)(entries);
    }

    pub async fn send(&self, body: &Value) -> Answer {
        self.send_as("Bearer sk-test", &[], body).await
    }

    pub async fn send_as(
        &self,
        credential: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let mut all = vec![("authorization", credential)];
        all.extend_from_slice(headers);
        self.post(&all, body.to_string()).await
    }

    /// Sends `body` as it is, with these headers and a content type.
    pub async fn post(&self, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
        let mut request = self
            .client
            .post(self.url("/v1/chat/completions"))
            .header("content-type", "application/json")
            .body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap().to_vec(),
        }
    }

    /// Plays a conversation turn by turn, giving memory its time after each.
    pub async fn play(&self, conversation: &Conversation) -> Vec<Answer> {
        let mut answers = Vec::new();
        for sent in conversation.requests() {
            let answer = self
                .send(&conversation.request(sent, "gpt-test", false))
                .await;
            assert_eq!(
                answer.status,
                200,
                "{}",
                String::from_utf8_lossy(&answer.body)
            );
            self.quiet().await;
            answers.push(answer);
        }
        answers
    }

    /// The audit line of the request that was answered so. It is written when the request has ended, which
    /// its client may know first.
    pub async fn audit_entry(&self, answer: &Answer) -> Value {
        let id = answer.headers["x-diarist-request-id"].to_str().unwrap();
        let path = self.folder.path().join("audit.jsonl");
        for _ in 0..6_000 {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if let Some(line) = whole.lines().rfind(|line| line.contains(id)) {
                return serde_json::from_str(line).unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no audit line for {id} after a minute");
    }

    /// Changes a setting; holds from the next start.
    pub fn set(&mut self, key: &str, value: &str) {
        self.env.insert(format!("DIARIST__{key}"), value.to_owned());
    }

    /// Where the data port listens, `host:port`.
    pub fn address(&self) -> String {
        self.running().base.trim_start_matches("http://").to_owned()
    }

    /// A page of the admin port.
    pub async fn admin(&self, path: &str) -> Answer {
        let url = format!("{}{path}", self.running().admin);
        let response = self.client.get(url).send().await.unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap().to_vec(),
        }
    }

    /// The bodies the provider accepted from the conversation, in order.
    pub fn forwarded(&self) -> Vec<Value> {
        self.provider
            .record_for(CallerKind::Actor)
            .iter()
            .filter(|entry| entry.is_accepted())
            .filter_map(|entry| entry.json())
            .collect()
    }
}
