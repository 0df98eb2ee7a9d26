//! Days that pass, by a clock that is set by hand: what is related to which day, in whose zone, and
//! that nothing of it changes once it was sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::patient_store;
use async_trait::async_trait;
use bytes::Bytes;
use diarist::config;
use diarist::jobs::{Clock, Jobs, ManualJobs, Reloadable};
use diarist::llm::{
    CallSettings, Endpoint, FailedCall, Finish, ModelClient, Prompt, Reply, ReportedUsage,
};
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::{DryRun, Memory};
use diarist::store::Store;
use diarist::tokens::TokenCounter;
use diarist::wire::Placement;
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Noon of Mar 4, 2026, in UTC.
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

/// Writes down what users said under the dates of the transcript, and keeps what it was asked.
#[derive(Debug, Default)]
struct ScriptedObserver(Mutex<Vec<String>>);

#[async_trait]
impl ModelClient for ScriptedObserver {
    async fn call(
        &self,
        _: &Endpoint,
        _: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        self.0.lock().unwrap().push(prompt.user.clone());
        let history = prompt.user.split_once("<history-").unwrap().1;
        let mut lines: Vec<String> = Vec::new();
        for line in history.lines() {
            if line.starts_with("Date: ") {
                lines.push(line.to_owned());
            } else if let Some(rest) = line.strip_prefix("User") {
                let (time, words) = rest.split_once(": ").unwrap();
                let words = words.split(". and so").next().unwrap();
                lines.push(format!("* 🔴{time} User: {words}"));
            }
        }
        Ok(Reply {
            text: format!("<observations>\n{}\n</observations>", lines.join("\n")),
            usage: ReportedUsage::default(),
            finish: Finish::Stop,
            model: "scribe".to_owned(),
        })
    }
}

struct World {
    clock: Clock,
    hand: ManualJobs,
    memory: Memory,
    scripted_observer: Arc<ScriptedObserver>,
    settings: Reloadable,
    turns: Vec<Value>,
}

impl World {
    async fn with(written: &[(&str, &str)]) -> Self {
        let mut env: BTreeMap<String, String> = [
            ("HOME", "/nonexistent"),
            ("DIARIST__MEMORY__BASE_URL", "http://model.test/v1"),
            ("DIARIST__MEMORY__API_KEY", "key"),
            ("DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS", "1000"),
            ("DIARIST__MEMORY__TIMEZONE", "UTC"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        env.extend(
            written
                .iter()
                .map(|(key, value)| (format!("DIARIST__MEMORY__{key}"), (*value).to_owned())),
        );
        let config = config::load(&config::Flags::default(), &env, None).unwrap();
        let settings = Reloadable::new(config.memory);
        let clock = Clock::manual(START);
        let store: Arc<dyn Store> = Arc::new(patient_store::open("sqlite::memory:").await);
        let recall = patient_store::cache(&store);
        let scripted_observer = Arc::<ScriptedObserver>::default();
        let hand = Jobs::manual(
            store,
            Arc::clone(&recall),
            Arc::new(Quarters),
            Arc::clone(&scripted_observer) as _,
            settings.clone(),
            clock.clone(),
        );
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        let memory = Memory::new(recall, hand.jobs(), capabilities);
        Self {
            clock,
            hand,
            memory,
            scripted_observer,
            settings,
            turns: Vec::new(),
        }
    }

    fn body(&self) -> Bytes {
        let system = json!({"role": "system", "content": "Be kind."});
        let messages: Vec<&Value> = [&system].into_iter().chain(&self.turns).collect();
        Bytes::from(json!({"model": "m", "messages": messages}).to_string())
    }

    /// What the history as it is goes out as.
    async fn goes_out(&self, zone: Option<&str>) -> DryRun {
        let mut request = http::Request::post("/v1/chat/completions");
        request = request.header("authorization", "Bearer k");
        if let Some(zone) = zone {
            request = request.header("x-diarist-timezone", zone);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let body = self.body();
        DryRun::start(&self.memory, &parts, &body).await.unwrap()
    }

    /// The user says `words`, is answered, and memory does all it has to do. The messages that went
    /// out.
    async fn say(&mut self, words: &str, zone: Option<&str>) -> Vec<Value> {
        let filler = "and so on and on ".repeat(20);
        self.turns
            .push(json!({"role": "user", "content": format!("{words}. {filler}")}));
        let sent = self.goes_out(zone).await;
        let at_ms = self.clock.now_ms();
        sent.accept();
        self.hand.record(sent.exchange(None, at_ms)).await;
        while let Some(job) = self.hand.claim().await {
            let written = self.hand.call_model(&job).await;
            let outcome = self.hand.finish(&job, written).await;
            self.hand.on_outcome(outcome).await;
        }
        self.turns
            .push(json!({"role": "assistant", "content": format!("Good. {filler}")}));
        messages(&sent)
    }

    /// Says more until the block is another one; what went out with it.
    async fn until_active(&mut self, zone: Option<&str>) -> Vec<Value> {
        let before = self.turns.len();
        let mut first = None;
        for number in 0..30 {
            let sent = self.say(&format!("Turn {}", before + number), zone).await;
            let block = block(&sent);
            if block.is_some() && first.as_ref().is_some_and(|first| *first != block) {
                return sent;
            }
            first = Some(block);
        }
        panic!("no activation came");
    }

    fn prompts(&self) -> Vec<String> {
        self.scripted_observer.0.lock().unwrap().clone()
    }
}

fn messages(sent: &DryRun) -> Vec<Value> {
    let body: Value = serde_json::from_slice(&sent.body()).unwrap();
    body["messages"].as_array().unwrap().clone()
}

fn block(sent: &[Value]) -> Option<String> {
    let text = sent[1]["content"].as_str().unwrap();
    text.starts_with("<diarist-log ").then(|| text.to_owned())
}

/// The lines of a block behind its preamble.
fn lines(sent: &[Value]) -> Vec<String> {
    let block = block(sent).unwrap();
    let (_, log) = block.split_once("<observations>\n").unwrap();
    log.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_new_day_changes_no_block_before_new_observations() {
    let mut world = World::with(&[]).await;
    world
        .say("User flies to Oslo. (meaning Mar 6, 2026)", None)
        .await;
    let first = world.until_active(None).await;
    assert_eq!(
        lines(&first)[..2],
        ["[as of Mar 4, 2026]", "Date: Mar 4, 2026 (the same day)"]
    );
    assert!(lines(&first)[2].ends_with("(meaning Mar 6, 2026 - 2 days after)"));

    // Three days later: every byte that went out goes out again.
    let before = world.goes_out(None).await.body();
    world.clock.advance(3 * DAY);
    assert_eq!(world.goes_out(None).await.body(), before);
    let next = world.say("Good morning", None).await;
    assert_eq!(block(&next), block(&first));

    // And what is added then only adds.
    let second = world.until_active(None).await;
    let (old, new) = (block(&first).unwrap(), block(&second).unwrap());
    assert!(new.starts_with(&old), "{old}\n---\n{new}");
    let added: Vec<&str> = new[old.len()..].lines().collect();
    assert_eq!(added[0], "[as of Mar 7, 2026]");
    assert!(
        added.contains(&"Date: Mar 4, 2026 (3 days before)"),
        "{added:?}"
    );
    let third = world.until_active(None).await;
    let newest = block(&third).unwrap();
    assert!(newest.starts_with(&new));
    assert_eq!(
        newest.matches("\n[as of ").count(),
        2,
        "one day is named once"
    );
    assert_eq!(
        newest
            .matches("[3 days later]\nDate: Mar 7, 2026 (the same day)")
            .count(),
        1
    );
}

#[tokio::test]
async fn dates_use_the_time_zone_of_the_client() {
    let mut world = World::with(&[]).await;
    // Noon in UTC is 02:00 of the next day there.
    let zone = Some("Pacific/Kiritimati");
    let sent = world.until_active(zone).await;
    assert_eq!(lines(&sent)[0], "[as of Mar 5, 2026]");
    let prompts = world.prompts();
    assert!(
        prompts[0].starts_with("Today is Mar 5, 2026."),
        "{}",
        prompts[0]
    );
    assert!(prompts[0].contains("\nUser (02:00): "), "{}", prompts[0]);

    // Without a name, and with one that nobody knows, it is the configured one.
    for zone in [
        None,
        Some("Atlantis/Poseidonis"),
        Some("../../etc/passwd"),
        Some(""),
    ] {
        let mut world = World::with(&[("TIMEZONE", "America/New_York")]).await;
        let sent = world.until_active(zone).await;
        assert_eq!(lines(&sent)[0], "[as of Mar 4, 2026]");
        assert!(world.prompts()[0].contains("\nUser (07:00): "), "{zone:?}");
    }
}

#[tokio::test]
async fn the_observer_prompt_contains_pauses_if_temporal_markers_are_on() {
    for wanted in [false, true] {
        let markers = wanted.to_string();
        let mut world = World::with(&[("TEMPORAL_MARKERS", &markers)]).await;
        world.say("Hello", None).await;
        world
            .clock
            .advance(2 * HOUR + Duration::from_secs(5 * 60 + 30));
        world.say("Back again", None).await;
        world.clock.advance(Duration::from_mins(9));
        world.say("Still here", None).await;
        let mut sent = world.until_active(None).await;
        let prompts = world.prompts().concat();
        let marker = "[2 hours 5 minutes later]\nUser (14:05): Back again";
        assert_eq!(prompts.contains(marker), wanted, "{prompts}");
        assert_eq!(
            prompts.matches(" later]").count(),
            usize::from(wanted),
            "{prompts}"
        );
        // The answer before the pause was given before it.
        let (before, _) = prompts.split_once("Back again").unwrap();
        assert!(before.contains("\nAssistant: Good."), "{before}");
        // What is sent raw is the client's own.
        let raw = sent.split_off(2);
        let reminder = diarist::memory::render::REMINDER;
        assert!(
            raw.iter()
                .all(|it| it["content"] == reminder || world.turns.contains(it))
        );
    }
}

#[tokio::test]
async fn changed_settings_take_effect_at_the_next_activation() {
    let mut world = World::with(&[]).await;
    let first = world.until_active(None).await;
    let before = world.goes_out(None).await.body();
    let mut settings = (*world.settings.current()).clone();
    settings.placement = Some(Placement::AppendToSystem);
    settings.policy.message_tokens = 1_500;
    settings.observation.instruction = Some("Keep recipes.".to_owned());
    world.settings.replace(settings);
    world
        .memory
        .capabilities
        .set_placement(Some(Placement::AppendToSystem));
    assert_eq!(world.goes_out(None).await.body(), before);
    let mut moved = None;
    for number in 0..20 {
        let sent = world.say(&format!("More {number}"), None).await;
        if sent[1]["role"] == "system" {
            assert!(moved.is_none(), "it went back");
            assert_eq!(block(&sent), block(&first), "nothing changed yet");
        } else {
            moved = Some(sent);
        }
    }
    let moved = moved.expect("the next activation stands where it is wanted now");
    let system = moved[0]["content"].as_str().unwrap();
    let (old, _) = block(&first)
        .unwrap()
        .split_once("\n\n")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert!(system.starts_with("Be kind.") && system.contains(&old));
}
