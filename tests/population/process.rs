//! The provider, and the processes of the product in front of it: all on one database.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diarist::app::App;
use diarist::config;
use diarist_provider::script::Reply;
use diarist_provider::{
    CallerKind, DefaultScript, OBSERVER_MODEL, Options, Provider, REFLECTOR_MODEL, Script,
    ScriptInput,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::dice::Dice;
use crate::support::patient_store::PATIENCE;

type Quiet = Box<dyn Fn(Duration) -> BoxFuture<'static, bool> + Send + Sync>;
type Replies = Arc<Mutex<HashMap<String, Reply>>>;

struct Running {
    base: String,
    quiet: Quiet,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

/// What one world runs on.
pub struct Stage {
    pub provider: Provider,
    pub client: reqwest::Client,
    folder: tempfile::TempDir,
    env: BTreeMap<String, String>,
    running: Vec<Option<Running>>,
    /// How many processes serve with the database.
    processes: usize,
    replies: Replies,
}

impl Stage {
    pub async fn start(dice: &mut Dice, processes: usize) -> Self {
        let replies = Replies::default();
        let known = Arc::clone(&replies);
        let actor = move |ask: &ScriptInput<'_>| {
            let number = ask.request.get("user").and_then(Value::as_str);
            let reply = known
                .lock()
                .unwrap()
                .get(number.unwrap_or_default())
                .cloned();
            reply.unwrap_or_else(|| DefaultScript::default().reply(ask))
        };
        let mut options = Options::default();
        options.scripts.insert(CallerKind::Actor, Arc::new(actor));
        let provider = Provider::start(options).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("diarist.db");
        let keep = *dice.pick(&["until_observed", "until_observed", "always"]);
        let budget = *dice.pick(&["20000", "20000", "1500"]);
        let env = [
            ("SERVER__LISTEN", "127.0.0.1:0".to_owned()),
            ("SERVER__ADMIN", "127.0.0.1:0".to_owned()),
            ("UPSTREAM__BASE_URL", provider.base_url()),
            ("STORE__URL", format!("sqlite://{}", database.display())),
            // A key of its own: what a client is refused holds up none of memory's calls.
            ("MEMORY__BASE_URL", provider.base_url()),
            ("MEMORY__API_KEY", "sk-memory".to_owned()),
            ("MEMORY__KEEP_MESSAGES", keep.to_owned()),
            ("MEMORY__OBSERVATION__MODEL", OBSERVER_MODEL.to_owned()),
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "1000".to_owned()),
            ("MEMORY__OBSERVATION__BUFFER_TOKENS", "250".to_owned()),
            ("MEMORY__REFLECTION__MODEL", REFLECTOR_MODEL.to_owned()),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", budget.to_owned()),
        ];
        let env = env.map(|(key, value)| (format!("DIARIST__{key}"), value));
        let mut stage = Self {
            provider,
            client: reqwest::Client::new(),
            folder,
            env: env.into(),
            running: Vec::new(),
            processes,
            replies,
        };
        for number in 0..processes {
            let running = stage.run(number).await;
            stage.running.push(Some(running));
        }
        stage
    }

    fn audit(&self, number: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("audit-{number}.jsonl"))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the app waits for its tasks; it cannot be one"
    )]
    async fn run(&self, number: usize) -> Running {
        let mut env = self.env.clone();
        let audit = self.audit(number).display().to_string();
        env.insert("DIARIST__AUDIT__PATH".to_owned(), audit);
        let config = config::load(&config::Flags::default(), &env, None).unwrap();
        let app = if self.processes > 1 {
            App::build_sharing(&config, PATIENCE).await.unwrap()
        } else {
            App::build_with(&config, PATIENCE).await.unwrap()
        };
        let (stop, stopped) = oneshot::channel::<()>();
        Running {
            base: format!("http://{}", app.data_addr().unwrap()),
            quiet: Box::new(app.quiet()),
            stop,
            ended: tokio::spawn(async move {
                app.run(stopped.map(|_| std::future::pending())).await;
            }),
        }
    }

    /// Ends a process as SIGTERM would, and starts another in its place.
    pub async fn restart(&mut self, number: usize) {
        self.stop(number).await;
        let running = self.run(number).await;
        self.running[number] = Some(running);
    }

    async fn stop(&mut self, number: usize) {
        if let Some(running) = self.running[number].take() {
            let _ = running.stop.send(());
            running.ended.await.unwrap();
        }
    }

    /// Waits until memory has done all it has to do, in every process.
    pub async fn rest(&self) {
        for running in self.running.iter().flatten() {
            assert!(
                (running.quiet)(PATIENCE).await,
                "memory did not come to rest"
            );
        }
    }

    pub fn url(&self, process: usize) -> String {
        let running = self.running[process].as_ref().unwrap();
        format!("{}/v1/chat/completions", running.base)
    }

    /// Says what the request of this number is answered.
    pub fn answers(&self, number: &str, reply: &Value) {
        let mut replies = self.replies.lock().unwrap();
        replies.insert(number.to_owned(), Reply::recorded(reply));
    }

    /// Ends everything; gives the reason that the audit has for each request, by its id.
    pub async fn end(mut self) -> HashMap<String, String> {
        let mut reasons = HashMap::new();
        for number in 0..self.running.len() {
            self.stop(number).await;
            let lines = std::fs::read_to_string(self.audit(number)).unwrap_or_default();
            for line in lines.lines() {
                let line: Value = line.parse().unwrap();
                if let (Some(id), Some(why)) =
                    (line["request_id"].as_str(), line["reason"].as_str())
                {
                    reasons.insert(id.to_owned(), why.to_owned());
                }
            }
        }
        reasons
    }
}
