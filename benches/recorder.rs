//! How many exchanges the recorder records in a second, into a database in a file.
//!
//! `cargo bench --bench recorder`, on one core `taskset -c 1 cargo bench --bench recorder`. Many short
//! conversations at once; each round carries every conversation one turn on. The exchanges are made
//! before the clock starts. Compare lines of one machine and one hour only. Every later turn has two
//! new messages, confirms two, and is of an ordinary conversation, in which nothing is due.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use diarist::config;
use diarist::history::{AnswerHash, Pepper};
use diarist::jobs::{Exchange, Jobs, Reloadable};
use diarist::llm::{CallSettings, Endpoint, FailedCall, ModelClient, Prompt, Reply};
use diarist::lookup::SnapshotCache;
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::{DryRun, Memory};
use diarist::store::{SqliteStore, Store};
use diarist::tasks::Tasks;
use diarist::tokens::O200k;
use diarist::wire::Placement;
use serde_json::json;

const CONVERSATIONS: usize = 4_000;
const TURNS: usize = 4;
/// Characters of one message: a request of 1 KB.
const MESSAGE: usize = 450;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for (name, tenants) in [("one tenant", 1), ("a tenant for each", CONVERSATIONS)] {
            run(name, tenants).await;
        }
    });
}

/// Nothing is due, so no model is called.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl ModelClient for Silent {
    async fn call(&self, _: &Endpoint, _: &CallSettings, _: &Prompt) -> Result<Reply, FailedCall> {
        unreachable!("nothing is observed")
    }
}

async fn run(name: &str, tenants: usize) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("bench.db").display());
    let env: BTreeMap<String, String> = [
        ("HOME", "/nonexistent"),
        ("DIARIST__MEMORY__BASE_URL", "http://model.test/v1"),
        ("DIARIST__MEMORY__API_KEY", "key"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let config = config::load(&config::Flags::default(), &env, None).unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&url).await.unwrap());
    let cache = Arc::new(SnapshotCache::new(Arc::clone(&store)));
    let tasks = Tasks::new();
    let jobs = Jobs::start(
        Arc::clone(&store),
        Arc::clone(&cache),
        Arc::new(O200k::new()),
        Arc::new(Silent),
        Reloadable::new(config.memory),
        None,
        &tasks,
    );
    let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
    let memory = Memory::new(cache, jobs.clone(), capabilities);
    for turn in 0..TURNS {
        let mut exchanges = Vec::with_capacity(CONVERSATIONS);
        for conversation in 0..CONVERSATIONS {
            exchanges.push(exchange(&memory, conversation, conversation % tenants, turn).await);
        }
        let (begun, cpu) = (Instant::now(), cpu_time());
        for exchange in exchanges {
            // The intake is full: the recorder is behind. A proxy would drop the exchange.
            while !jobs.intake().has_room() {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            assert!(jobs.intake().offer(exchange));
        }
        assert!(jobs.wait_until_idle(Duration::from_mins(5)).await);
        let (wall, cpu) = (begun.elapsed(), cpu_time().saturating_sub(cpu));
        let each = |time: Duration| time.as_secs_f64() * 1e6 / CONVERSATIONS as f64;
        println!(
            "{name}, turn {}: {:6.0} exchanges/s, {:4.0} us each, {:4.0} us of processor time",
            turn + 1,
            CONVERSATIONS as f64 / wall.as_secs_f64(),
            each(wall),
            each(cpu)
        );
    }
    let threads = store.threads(u32::MAX).await.unwrap();
    assert_eq!(threads.len(), CONVERSATIONS);
    tasks.stop(Duration::from_secs(5)).await;
    store.close().await;
}

/// The request of a conversation with `turn` answered turns, after it was answered.
async fn exchange(memory: &Memory, conversation: usize, tenant: usize, turn: usize) -> Exchange {
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    for number in 0..=2 * turn {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        let text: String =
            format!("Message {number} of conversation {conversation} goes on and on. ")
                .chars()
                .cycle()
                .take(MESSAGE)
                .collect();
        messages.push(json!({"role": role, "content": text}));
    }
    let body = Bytes::from(json!({"model": "m", "messages": messages}).to_string());
    let request = http::Request::post("/v1/chat/completions")
        .header("authorization", format!("Bearer key-{tenant}"));
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let sent = DryRun::start(memory, &parts, &body).await.unwrap();
    sent.accept();
    let mut exchange = sent.exchange(
        None,
        1_772_625_600_000 + i64::try_from(turn).unwrap() * 60_000,
    );
    // As long as most answers are: a later request may bring it back as a summary.
    let answer = format!("Message {} of conversation {conversation}", 2 * turn + 1);
    let root = exchange.history.root();
    exchange.answer = Some(AnswerHash::from_text(&Pepper::NONE, &root, &answer));
    exchange
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let ticks = |field: usize| {
        fields
            .get(field)
            .and_then(|ticks| ticks.parse().ok())
            .unwrap_or(0)
    };
    // Fields 14 and 15 of the file, in hundredths of a second.
    Duration::from_millis(10 * (ticks(12) + ticks(13)))
}
