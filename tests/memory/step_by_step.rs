//! Recorder and worker taken one step at a time, so that something can happen to the store, the models or
//! the client between two of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use diarist::config;
use diarist::jobs::{Clock, Jobs, ManualJobs, Reloadable};
use diarist::llm::{
    CallError, CallSettings, Endpoint, FailedCall, Finish, ModelClient, Prompt, Reply,
    ReportedUsage,
};
use diarist::memory::{NewPart, PartKind};
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::{DryRun, Memory};
use diarist::store::{Admin as _, ClaimFilter, DailyLimits, Queue as _, Store};
use diarist::tokens::TokenCounter;
use diarist::wire::Placement;
use diarist::wire::usage::Blame;
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::memory::rig::PATIENCE;
use crate::support::patient_store;

const START: i64 = 1_772_625_600_000;

/// Counts four bytes as a token, and nothing while it is stuck.
#[derive(Debug, Default)]
struct Quarters {
    stuck: AtomicBool,
}

impl TokenCounter for Quarters {
    fn count(&self, text: &str) -> u32 {
        while self.stuck.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        u32::try_from(text.len() / 4).unwrap()
    }

    fn counted_bytes(&self) -> u64 {
        0
    }
}

/// Observes nothing but what is important, and condenses nothing.
#[derive(Debug, Default)]
struct Important(AtomicUsize);

#[async_trait]
impl ModelClient for Important {
    async fn call(
        &self,
        _: &Endpoint,
        settings: &CallSettings,
        _: &Prompt,
    ) -> Result<Reply, FailedCall> {
        if settings.model != "observer" {
            return Err(FailedCall::from(CallError::Transient {
                retry_after: None,
                message: "out of order".to_owned(),
            }));
        }
        let call = self.0.fetch_add(1, Ordering::SeqCst);
        let line = |n: usize| format!("* 🔴 Station QX-{:04} reads {} litres", call, 51_000 + n);
        let lines: Vec<String> = (0..12).map(line).collect();
        Ok(Reply {
            text: format!("<observations>\n{}\n</observations>", lines.join("\n")),
            usage: ReportedUsage::default(),
            finish: Finish::Stop,
            model: "observer".to_owned(),
        })
    }
}

/// One process and one client.
struct World {
    clock: Clock,
    hand: ManualJobs,
    memory: Memory,
    counter: Arc<Quarters>,
    url: String,
    model: &'static str,
    turns: Vec<Value>,
    _folder: tempfile::TempDir,
}

impl World {
    async fn with(model: &'static str, written: &[(&str, &str)]) -> Self {
        let mut env: BTreeMap<String, String> = [
            ("HOME", "/nonexistent"),
            ("DIARIST__MEMORY__BASE_URL", "http://model.test/v1"),
            ("DIARIST__MEMORY__API_KEY", "key"),
            ("DIARIST__MEMORY__OBSERVATION__MODEL", "observer"),
            ("DIARIST__MEMORY__REFLECTION__MODEL", "reflector"),
            ("DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
            ("DIARIST__MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        env.extend(
            written
                .iter()
                .map(|(key, value)| (format!("DIARIST__MEMORY__{key}"), (*value).to_owned())),
        );
        let config = config::load(&config::Flags::default(), &env, None).unwrap();
        let clock = Clock::manual(START);
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
        let store: Arc<dyn Store> = Arc::new(patient_store::open(&url).await);
        let recall = patient_store::cache(&store);
        let counter = Arc::<Quarters>::default();
        let hand = Jobs::manual(
            store,
            Arc::clone(&recall),
            Arc::clone(&counter) as _,
            Arc::<Important>::default(),
            Reloadable::new(config.memory.clone()),
            clock.clone(),
        );
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        let memory = Memory::new(recall, hand.jobs(), capabilities);
        Self {
            clock,
            hand,
            memory,
            counter,
            url,
            model,
            turns: Vec::new(),
            _folder: folder,
        }
    }

    /// What the history as it is goes out as.
    async fn goes_out(&self) -> DryRun {
        let request = http::Request::post("/v1/chat/completions");
        let request = request.header("authorization", "Bearer k");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let body = json!({"model": self.model, "messages": self.turns}).to_string();
        DryRun::start(&self.memory, &parts, &Bytes::from(body))
            .await
            .unwrap()
    }

    /// The user says something and is answered; what went out.
    async fn say(&mut self) -> String {
        let filler = format!("{} and so on. ", self.turns.len()).repeat(60);
        self.turns.push(json!({"role": "user", "content": filler}));
        let sent = self.goes_out().await;
        sent.accept();
        let exchange = sent.exchange(None, self.clock.now_ms());
        self.hand.record(exchange).await;
        self.turns
            .push(json!({"role": "assistant", "content": format!("Good. {filler}")}));
        String::from_utf8(sent.body().to_vec()).unwrap()
    }

    /// The user says something that is refused for what stands before it, and taken without; what was
    /// refused.
    async fn say_refused(&mut self) -> DryRun {
        self.turns
            .push(json!({"role": "user", "content": format!("{}?", self.turns.len())}));
        let refused = self.goes_out().await;
        let original = refused
            .fall_back_to_original(&self.memory, Blame::Content)
            .await
            .unwrap();
        original.record_accepted(&self.memory);
        original.accept();
        let exchange = original.exchange(None, self.clock.now_ms());
        self.hand.record(exchange).await;
        self.turns
            .push(json!({"role": "assistant", "content": "Good."}));
        refused
    }

    /// Memory does all it has to do.
    async fn work(&mut self) {
        while let Some(job) = self.hand.claim().await {
            let written = self.hand.call_model(&job).await;
            let outcome = self.hand.finish(&job, written).await;
            self.hand.on_outcome(outcome).await;
        }
    }

    async fn sql(&self, statement: &'static str) -> i64 {
        let mut database = sqlx::SqliteConnection::connect(&self.url).await.unwrap();
        let found = sqlx::query_scalar(statement);
        let found = found.fetch_optional(&mut database).await.unwrap();
        database.close().await.unwrap();
        found.unwrap_or_default()
    }

    /// Another process observes everything that waits for it.
    async fn observed_elsewhere(&self) -> usize {
        let store = patient_store::open(&self.url).await;
        let any = ClaimFilter {
            observe_any: true,
            reflect_any: false,
            held_routes: Vec::new(),
            daily: DailyLimits::default(),
        };
        let mut done = 0;
        while let Some(job) = store.claim(&any, START, 60_000).await.unwrap() {
            let part = NewPart {
                kind: PartKind::Chunk,
                span: job.spec.span,
                text: "* 🔴 It was said elsewhere.".to_owned(),
                tokens: 7,
                message_tokens: job.spec.message_tokens,
                current_task: None,
                suggested_response: None,
                sources: Vec::new(),
                model: "observer".to_owned(),
                requested: false,
                code_reflection: false,
                analysis: diarist::memory::PartAnalysis::default(),
            };
            store.commit_part(&job, &part, START).await.unwrap();
            done += 1;
        }
        store.close().await;
        done
    }
}

/// A job may be tried for days. What was known of its chain is known as long as it lies in the queue, and
/// no longer.
#[tokio::test]
async fn a_chain_is_not_read_again_for_a_job_that_stays_open() {
    let mut world = World::with("m", &[]).await;
    while world.sql("SELECT count(*) FROM jobs").await == 0 {
        assert!(world.turns.len() < 100, "nothing is to be observed");
        world.say().await;
    }
    world.say().await;
    // A chain cannot be read now; the queue can.
    world
        .sql("ALTER TABLE parts RENAME TO parts_elsewhere")
        .await;
    let before = world.sql("SELECT count(*) FROM requests").await;
    for _ in 0..4 {
        world.say().await;
    }
    let recorded = world.sql("SELECT count(*) FROM requests").await - before;
    assert_eq!(recorded, 4, "nothing of it had to be read");
    world
        .sql("ALTER TABLE parts_elsewhere RENAME TO parts")
        .await;
    world.say().await;
    assert!(world.observed_elsewhere().await > 3);
    let raw = world.say().await;
    assert!(!raw.contains("said elsewhere"), "nobody has told");
    let sent = world.say().await;
    assert!(sent.contains("said elsewhere"), "it was found done");
}

/// What a content filter refused twice in a row is tried again after an hour, and one more refusal of it is
/// enough for another hour.
#[tokio::test]
async fn a_block_refused_by_a_filter_is_sent_again_after_an_hour() {
    const HOUR: Duration = Duration::from_hours(1);
    let mut world = World::with("m", &[]).await;
    let mut sent = String::new();
    while !sent.contains("<diarist-log") {
        assert!(world.turns.len() < 100, "no block is sent");
        sent = world.say().await;
        world.work().await;
    }
    let taken = world.turns[..world.turns.len() - 1].to_vec();
    // Nothing is activated from here on: nobody works.
    for refusals in [2, 1, 1] {
        for refusal in 0..refusals {
            let refused = world.say_refused().await;
            assert!(refused.snapshot().is_some(), "{refusal} of {refusals}");
        }
        let now = Instant::now();
        world.memory.capabilities.expire(now + HOUR / 2);
        let next = json!({"role": "user", "content": "And now?"});
        world.turns.push(next);
        let passed = world.goes_out().await;
        assert_eq!(
            (passed.fallback(), passed.why()),
            ("passed_over", "filtered")
        );
        assert!(passed.snapshot().is_none());
        passed.accept();
        // What went out with the block goes out with it, also where only the store knows of that.
        let turns = std::mem::replace(&mut world.turns, taken.clone());
        world.memory.cache.clear();
        let before = world.goes_out().await;
        assert_eq!(before.why(), "repeated");
        assert!(before.body() == sent, "the same bytes");
        world.turns = turns;
        world.turns.pop();
        world.memory.capabilities.expire(now + 2 * HOUR);
    }
}

/// How much a log may lose that code shortens is what its model's conversations may lose.
#[tokio::test]
#[ignore = "slow"]
async fn a_model_override_sets_the_loss_limit_for_logs_shortened_by_code() {
    let overrides = "[{ model = \"careless\", reflection = { max_loss = 1.0 } }]";
    for (model, lossy) in [("careless", false), ("other", true)] {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let rendered = recorder.handle();
        let _counted = metrics::set_default_local_recorder(&recorder);
        let mut world = World::with(model, &[("OVERRIDES", overrides)]).await;
        let mut sent = String::new();
        for _ in 0..60 {
            sent = world.say().await;
            world.work().await;
        }
        assert!(sent.contains("[older observations left out: "), "{model}");
        let metrics = rendered.render();
        let is_counted = metrics.contains("diarist_reflections_lossy_total");
        assert_eq!(is_counted, lossy, "{model}");
    }
}

/// Whoever waits for an observation waits no longer than that, whatever else takes long.
#[tokio::test]
async fn the_overflow_timeout_includes_the_work_before_model_calls() {
    let mut world = World::with("m", &[]).await;
    world
        .turns
        .push(json!({"role": "user", "content": "Hello. ".repeat(4_000)}));
    world
        .turns
        .push(json!({"role": "assistant", "content": "Yes?"}));
    world.turns.push(json!({"role": "user", "content": "Go."}));
    let exchange = world.goes_out().await.exchange(None, START);
    let jobs = world.hand.jobs();
    world.counter.stuck.store(true, Ordering::SeqCst);
    let until = tokio::time::Instant::now() + Duration::from_millis(50);
    let rescued = jobs.observe_overflow(&exchange, None, 2, until);
    let rescued = tokio::time::timeout(PATIENCE / 6, rescued).await;
    world.counter.stuck.store(false, Ordering::SeqCst);
    assert!(matches!(rescued, Ok(Ok(None))), "{rescued:?}");
    // With time enough it comes to something.
    let until = tokio::time::Instant::now() + PATIENCE;
    let rescued = jobs
        .observe_overflow(&exchange, None, 2, until)
        .await
        .unwrap();
    assert!(rescued.is_some());
}
