//! Exchanges that wait together are recorded in one transaction. What is known afterwards is what is known when they
//! come one by one; one that cannot be recorded leaves the others, and a COMMIT that fails leaves nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use diarist::config;
use diarist::jobs::{Clock, Exchange, Jobs, ManualJobs, Reloadable};
use diarist::llm::{CallSettings, Endpoint, FailedCall, ModelClient, Prompt, Reply};
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::{DryRun, Memory};
use diarist::store::{Admin as _, SqliteStore, Store};
use diarist::tokens::TokenCounter;
use diarist::wire::Placement;
use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use crate::support::patient_store;

const START: i64 = 1_772_625_600_000;

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

#[derive(Debug)]
struct Silent;

#[async_trait]
impl ModelClient for Silent {
    async fn call(&self, _: &Endpoint, _: &CallSettings, _: &Prompt) -> Result<Reply, FailedCall> {
        unreachable!("nothing is observed")
    }
}

struct World {
    folder: tempfile::TempDir,
    store: Arc<SqliteStore>,
    hand: ManualJobs,
    memory: Memory,
}

impl World {
    async fn new() -> Self {
        let env: BTreeMap<String, String> = [
            ("HOME", "/nonexistent"),
            ("DIARIST__MEMORY__BASE_URL", "http://model.test/v1"),
            ("DIARIST__MEMORY__API_KEY", "key"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let config = config::load(&config::Flags::default(), &env, None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
        let store = Arc::new(patient_store::open(&url).await);
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        let cache = patient_store::cache(&shared);
        let hand = Jobs::manual(
            shared,
            Arc::clone(&cache),
            Arc::new(Quarters),
            Arc::new(Silent),
            Reloadable::new(config.memory),
            Clock::manual(START),
        );
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        let memory = Memory::new(cache, hand.jobs(), capabilities);
        Self {
            folder,
            store,
            hand,
            memory,
        }
    }

    /// The accepted request of the conversation `name` with `turns` answered turns.
    async fn exchange(&self, name: &str, turns: usize, model: &str) -> Exchange {
        let mut messages = vec![json!({"role": "system", "content": "Be kind."})];
        for number in 0..=2 * turns {
            let role = if number % 2 == 0 { "user" } else { "assistant" };
            let text = format!("{name} says number {number} and goes on and on for a while");
            messages.push(json!({"role": role, "content": text}));
        }
        let body = Bytes::from(json!({"model": model, "messages": messages}).to_string());
        let request =
            http::Request::post("/v1/chat/completions").header("authorization", "Bearer k");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let sent = DryRun::start(&self.memory, &parts, &body).await.unwrap();
        sent.accept();
        sent.exchange(None, START + i64::try_from(turns).unwrap())
    }

    /// What is recorded of each conversation: its requests, its messages, and how many of them are confirmed.
    async fn recorded(&self) -> Vec<(String, u64, usize, usize)> {
        let mut found = Vec::new();
        for row in self.store.threads(u32::MAX).await.unwrap() {
            let nodes = self.store.thread(row.lineage).await.unwrap().unwrap().nodes;
            let confirmed = nodes.iter().filter(|node| node.confirmed).count();
            found.push((row.label, row.requests, nodes.len(), confirmed));
        }
        found.sort();
        found
    }

    async fn run(&self, statements: &str) {
        let options = SqliteConnectOptions::new().filename(self.folder.path().join("diarist.db"));
        let mut conn = options.connect().await.unwrap();
        let statements = AssertSqlSafe(statements.to_owned());
        sqlx::raw_sql(statements).execute(&mut conn).await.unwrap();
    }
}

/// Turns of one conversation that wait together, among those of others, a repetition and a fork.
const WAITING: [(&str, usize); 8] = [
    ("ada", 0),
    ("bob", 0),
    ("ada", 1),
    ("cyd", 2),
    ("ada", 2),
    ("bob", 0),
    ("bob", 3),
    ("ada", 1),
];

#[tokio::test]
async fn turns_of_one_conversation_that_wait_together_are_recorded_in_their_order() {
    let (mut together, mut single) = (World::new().await, World::new().await);
    let mut waiting = Vec::new();
    for (name, turns) in WAITING {
        waiting.push(together.exchange(name, turns, "m").await);
        let alone = single.exchange(name, turns, "m").await;
        single.hand.record(alone).await;
    }
    together.hand.record_all(waiting).await;
    let recorded = together.recorded().await;
    assert_eq!(recorded, single.recorded().await);
    assert_eq!(recorded.len(), 3);
    assert!(
        recorded.iter().any(|(_, requests, ..)| *requests == 4),
        "{recorded:?}"
    );
}

#[tokio::test]
async fn a_failed_exchange_does_not_stop_the_others_in_its_batch() {
    let mut world = World::new().await;
    world
        .run(
            "CREATE TRIGGER poison BEFORE INSERT ON requests WHEN NEW.model = 'poison'
             BEGIN SELECT RAISE(ABORT, 'poison'); END",
        )
        .await;
    let mut waiting = Vec::new();
    for (name, model) in [("ada", "m"), ("bob", "poison"), ("cyd", "m")] {
        waiting.push(world.exchange(name, 0, model).await);
    }
    world.hand.record_all(waiting).await;
    assert_eq!(world.recorded().await.len(), 2);
    // Its conversation goes on as if the exchange had never been offered.
    let (longer, other) = (
        world.exchange("bob", 1, "m").await,
        world.exchange("ada", 1, "m").await,
    );
    world.hand.record_all(vec![longer, other]).await;
    let recorded = world.recorded().await;
    let requests: u64 = recorded.iter().map(|(_, requests, ..)| requests).sum();
    assert_eq!((recorded.len(), requests), (3, 4));
}

#[tokio::test]
async fn after_a_failed_commit_no_exchange_of_the_batch_counts_as_recorded() {
    let mut world = World::new().await;
    world
        .run(
            "CREATE TABLE absent (id INTEGER PRIMARY KEY);
             CREATE TABLE planted (id INTEGER REFERENCES absent (id) DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER poison AFTER INSERT ON requests
             BEGIN INSERT INTO planted VALUES (99); END",
        )
        .await;
    let names = ["ada", "bob", "cyd"];
    let mut waiting = Vec::new();
    for name in names {
        waiting.push(world.exchange(name, 0, "m").await);
    }
    world.hand.record_all(waiting).await;
    assert_eq!(world.recorded().await, []);
    world.run("DROP TRIGGER poison").await;
    // The next requests bring everything again: nothing counts as recorded, so all of it is new.
    let mut waiting = Vec::new();
    for name in names {
        waiting.push(world.exchange(name, 1, "m").await);
    }
    world.hand.record_all(waiting).await;
    let recorded = world.recorded().await;
    assert_eq!(recorded.len(), 3);
    for (_, requests, messages, confirmed) in recorded {
        assert_eq!((requests, messages, confirmed), (1, 3, 0));
    }
}
