//! Whole processes over a database on disk, taken one step at a time: what requests go out as, what is
//! recorded of them, what becomes of jobs. Client, upstream and models are played here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use diarist::config::Config;
use diarist::jobs::{Clock, Jobs, ManualJobs, Reloadable, Settings};
use diarist::llm::{
    CallError, CallSettings, Endpoint, FailedCall, Finish, ModelClient, Prompt, Reply,
    ReportedUsage,
};
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::identify::IdentityRules;
use diarist::proxy::identify::users::{Proof, Users};
use diarist::proxy::{DryRun, Memory, Overflow, RequestPolicy};
use diarist::store::{Job, Store};
use diarist::tokens::TokenCounter;
use diarist::wire::Placement;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::configuration::valid;
use crate::store::world::Disk;
use crate::support::patient_store;

const START: i64 = 1_772_625_600_000;

/// Where the application says who its user is.
const USER: &str = "x-user";

/// Runs a test that waits.
pub fn run(check: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(check);
}

/// Counts four bytes as a token.
#[derive(Debug)]
struct Quarters;

impl TokenCounter for Quarters {
    fn count(&self, text: &str) -> u32 {
        u32::try_from(text.len() / 4).unwrap()
    }

    fn counted_bytes(&self) -> u64 {
        0
    }
}

/// How the model is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// It writes down every fact it is shown.
    #[default]
    Observes,
    /// It says one line over and over.
    Loops,
    /// It is out of order.
    Fails,
    /// It takes nobody's key.
    Refuses,
}

/// The model of one process.
#[derive(Debug, Default)]
pub struct Scripted {
    pub mood: Mutex<Mood>,
    calls: AtomicUsize,
}

impl Scripted {
    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ModelClient for Scripted {
    async fn call(
        &self,
        _: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let message = "out of order".to_owned();
        let text = match *self.mood.lock().unwrap() {
            Mood::Observes => {
                let (_, shown) = prompt.user.split_once("<history-").unwrap();
                let lines: Vec<String> = facts(shown)
                    .map(|fact| format!("* 🔴 {fact} was told"))
                    .collect();
                format!("<observations>\n{}\n</observations>", lines.join("\n"))
            }
            Mood::Loops => "* and then the wind turned and nobody said a word\n".repeat(90),
            Mood::Fails => {
                return Err(FailedCall::from(CallError::Transient {
                    retry_after: None,
                    message,
                }));
            }
            Mood::Refuses => return Err(FailedCall::from(CallError::Fatal { message })),
        };
        Ok(Reply {
            text,
            usage: ReportedUsage::default(),
            finish: Finish::Stop,
            model: settings.model.clone(),
        })
    }
}

/// The facts in a text, in their order.
pub fn facts(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-')
        .filter(|word| word.starts_with("fact-"))
}

/// A client that says a fact with every message.
#[derive(Clone, Debug)]
pub struct Client {
    /// In the facts that it says.
    pub name: &'static str,
    /// What it calls the conversation.
    pub thread: &'static str,
    pub model: &'static str,
    /// Headers it sends beside those.
    pub headers: Vec<(&'static str, &'static str)>,
    pub messages: Vec<Value>,
}

impl Client {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            thread: name,
            model: "actor",
            headers: vec![(USER, "u1")],
            messages: Vec::new(),
        }
    }

    /// The facts of its first messages, one of each.
    pub fn facts(&self, upto: usize) -> Vec<&str> {
        let messages = self.messages[..upto].iter();
        messages
            .filter_map(|message| facts(message["content"].as_str()?).next())
            .collect()
    }

    /// Somebody says something, of some 200 tokens.
    fn says(&mut self, role: &str) {
        let (name, number) = (self.name, self.messages.len());
        let content = format!(
            "fact-{name}-{number:04}. {}",
            "And so on, as ever. ".repeat(40)
        );
        self.messages
            .push(json!({"role": role, "content": content}));
    }

    pub fn asks(&mut self) {
        self.says("user");
    }

    pub fn is_answered(&mut self) {
        self.says("assistant");
    }

    /// A conversation of so many turns, and a question.
    pub fn after(name: &'static str, turns: usize) -> Self {
        let mut client = Self::new(name);
        for _ in 0..turns {
            client.asks();
            client.is_answered();
        }
        client.asks();
        client
    }

    /// Holds what goes out to INV-COVER and INV-TAIL: each fact once, the newest messages as they are.
    /// How many of them are raw.
    pub fn sees_all(&self, sent: &DryRun) -> usize {
        let body: Value = serde_json::from_slice(&sent.body()).unwrap();
        let body = body["messages"].as_array().unwrap();
        let pairs = body.iter().rev().zip(self.messages.iter().rev());
        let raw = pairs.take_while(|(sent, message)| sent == message).count();
        assert!(raw >= 1, "the newest message stays");
        let block: String = body[..body.len() - raw]
            .iter()
            .filter_map(|message| message["content"].as_str())
            .collect();
        let (log, _) = block.split_once("<diarist-others>").unwrap_or((&block, ""));
        let noted: Vec<&str> = facts(log).collect();
        let gone = self.facts(self.messages.len() - raw);
        assert_eq!(noted, gone, "in order, none twice, none left out");
        raw
    }
}

/// What a request tells of other conversations.
pub fn others(sent: &DryRun) -> String {
    let body = String::from_utf8(sent.body().to_vec()).unwrap();
    let section = body.split_once("<diarist-others>");
    let section = section.and_then(|(_, section)| section.split_once("</diarist-others>"));
    section.map_or_else(String::new, |(section, _)| section.to_owned())
}

/// What processes share: a database, the time, and what the operator wrote down.
pub struct Ground {
    pub clock: Clock,
    pub settings: Settings,
    overflow: Overflow,
    disk: Disk,
}

/// Thresholds of 2,000 tokens, and what else is `written`.
pub fn config(written: &[(&str, &str)]) -> Config {
    let mut all = BTreeMap::from([
        ("MEMORY__BASE_URL", "http://model.test/v1"),
        ("MEMORY__API_KEY", "key"),
        ("MEMORY__MODEL", "observer"),
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ]);
    all.extend(written.iter().copied());
    valid(&all.into_iter().collect::<Vec<_>>())
}

impl Ground {
    pub fn new(written: &[(&str, &str)]) -> Self {
        let config = config(written);
        Self {
            clock: Clock::manual(START),
            overflow: config.requests.overflow,
            settings: config.memory,
            disk: Disk::new(),
        }
    }

    pub async fn process(&self) -> Process {
        let store: Arc<dyn Store> = Arc::new(self.disk.open().await);
        let recall = patient_store::cache(&store);
        let model = Arc::<Scripted>::default();
        let hand = Jobs::manual(
            store,
            Arc::clone(&recall),
            Arc::new(Quarters),
            Arc::clone(&model) as _,
            Reloadable::new(self.settings.clone()),
            self.clock.clone(),
        );
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        let mut memory = Memory::new(recall, hand.jobs(), capabilities);
        let users = Users {
            header: http::HeaderName::from_static(USER),
            proof: Proof::TrustedHeader,
        };
        memory.policy = Reloadable::new(RequestPolicy {
            identity: IdentityRules {
                users: Some(users),
                ..IdentityRules::default()
            },
            overflow: self.overflow,
            ..RequestPolicy::default()
        });
        Process {
            clock: self.clock.clone(),
            hand,
            memory,
            model,
        }
    }

    pub async fn database(&self) -> sqlx::SqliteConnection {
        sqlx::SqliteConnection::connect(&self.disk.url())
            .await
            .unwrap()
    }

    pub async fn run(&self, statement: &'static str) {
        let mut database = self.database().await;
        let done = sqlx::raw_sql(statement).execute(&mut database).await;
        done.unwrap();
    }

    pub async fn number(&self, query: &'static str) -> i64 {
        let mut database = self.database().await;
        let number = sqlx::query_scalar::<_, Option<i64>>(query);
        let number = number.fetch_one(&mut database).await.unwrap();
        number.unwrap_or_default()
    }

    /// What was observed: from where, up to where, and in which words.
    pub async fn chunks(&self) -> Vec<(i64, i64, String)> {
        let mut database = self.database().await;
        let chunks = "SELECT from_count, to_count, text FROM parts WHERE kind = 'chunk' ORDER BY to_count, id";
        let chunks = sqlx::query_as(chunks).fetch_all(&mut database);
        chunks.await.unwrap()
    }
}

/// One process. To drop it is a crash.
pub struct Process {
    clock: Clock,
    pub hand: ManualJobs,
    pub memory: Memory,
    pub model: Arc<Scripted>,
}

impl Process {
    pub fn is(&self, mood: Mood) {
        *self.model.mood.lock().unwrap() = mood;
    }

    /// What the client's history as it is goes out as.
    pub async fn goes_out(&self, client: &Client) -> DryRun {
        let mut request = http::Request::post("/v1/chat/completions")
            .header("authorization", "Bearer k")
            .header("x-diarist-thread", client.thread);
        for (name, value) in &client.headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let body = json!({"model": client.model, "messages": client.messages}).to_string();
        let sent = DryRun::start(&self.memory, &parts, &Bytes::from(body)).await;
        sent.unwrap()
    }

    /// The upstream has answered what went out.
    pub async fn answered(&mut self, client: &mut Client, sent: &DryRun) {
        sent.accept();
        let exchange = sent.exchange(None, self.clock.now_ms());
        self.hand.record(exchange).await;
        client.is_answered();
    }

    /// A question and its answer: what went out, and how many messages of it were raw.
    pub async fn turn(&mut self, client: &mut Client) -> (DryRun, usize) {
        client.asks();
        let sent = self.goes_out(client).await;
        let raw = client.sees_all(&sent);
        self.answered(client, &sent).await;
        (sent, raw)
    }

    /// A worker does a job, if there is one.
    pub async fn job(&mut self) -> Option<Job> {
        let job = self.hand.claim().await?;
        let written = self.hand.call_model(&job).await;
        let outcome = self.hand.finish(&job, written).await;
        self.hand.on_outcome(outcome).await;
        Some(job)
    }

    /// Workers do all there is to do.
    pub async fn work(&mut self) {
        while self.job().await.is_some() {}
    }
}
