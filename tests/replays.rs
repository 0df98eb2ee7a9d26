//! Recorded conversations through the whole proxy, turn by turn, against the strict provider, with
//! and without Diarist. Uses the conversations beside the project where they are there, and always
//! some of its own.
//!
//! `DIARIST_REPLAY=all cargo test --release --test replays` plays every conversation in every mode;
//! without it a sample is played.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "memory/rig.rs"]
#[expect(dead_code, reason = "shared with another test binary")]
mod rig;

use std::path::Path;

use diarist::provider::{Conversation, Options, Part, Provider, Rules, Style};
use rig::Rig;
use serde_json::Value;
use serde_json::value::RawValue;

const MESSAGE_TOKENS: u64 = 2_000;
const OBSERVATION_TOKENS: u64 = 1_000;

/// One step of the simulated cache.
const STEP: u32 = 128;

type Mode = (&'static str, fn(&mut Rules));

const MODES: [Mode; 6] = [
    ("plain", |_| {}),
    ("alternate", |rules| rules.alternate = true),
    ("single_system", |rules| rules.single_system = true),
    ("system_first", |rules| rules.system_first = true),
    ("json_object", |rules| rules.json_object = true),
    ("signature", |rules| rules.signature = true),
];

#[expect(
    clippy::disallowed_methods,
    reason = "a test has no other way to be asked for more"
)]
fn all() -> bool {
    std::env::var("DIARIST_REPLAY").is_ok_and(|value| value == "all")
}

fn conversations() -> Vec<Conversation> {
    let mut all = vec![
        Conversation::generate(11, 90, Style::Travel),
        Conversation::generate(12, 70, Style::Coding),
    ];
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    for name in ["tau_long.jsonl", "swe_agent.jsonl", "tau_airline.jsonl"] {
        match std::fs::read_to_string(data.join(name)) {
            Ok(lines) => all.extend(Conversation::read_all(&lines).unwrap()),
            Err(_) => {
                println!("{name} is not beside the project: only made-up conversations are played");
            }
        }
    }
    all
}

/// What one turn cost and was.
struct Turn {
    block: Option<String>,
    cut: usize,
}

#[derive(Default)]
struct Totals {
    prompt: [u64; 2],
    uncached: [u64; 2],
    activations: usize,
    reflections: usize,
    turns: usize,
    memory_tokens: u64,
}

struct Play<'a> {
    conversation: &'a Conversation,
    mode: &'static str,
    json: bool,
}

impl Play<'_> {
    fn body(&self, sent: usize) -> Value {
        let mut body = self.conversation.request(sent, "gpt-test", false);
        if self.json {
            body["response_format"] = serde_json::json!({"type": "json_object"});
        }
        body
    }
}

async fn play(play: &Play<'_>, rig: &Rig, direct: &Provider) -> Totals {
    let mut totals = Totals::default();
    let mut before: Option<Turn> = None;
    for sent in play.conversation.requests() {
        let body = play.body(sent);
        let baseline = rig
            .client
            .post(format!("{}/chat/completions", direct.base_url()))
            .header("authorization", "Bearer sk-direct")
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        let answer = rig.send(&body).await;
        let at = format!("{} {} at {sent}", play.mode, play.conversation.id);
        assert_eq!(
            answer.status,
            baseline.status().as_u16(),
            "{at}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        let raw = direct.record().pop().unwrap();
        let forwarded = rig.provider.record_of(Part::Actor).pop().unwrap();
        if let (Some(raw), Some(measured)) = (raw.measured, forwarded.measured) {
            let turn = check(&at, body.to_string().as_bytes(), &forwarded.body);
            let activated = before
                .as_ref()
                .is_some_and(|b| b.block != turn.block || b.cut != turn.cut);
            let uncached = measured.prompt_tokens - measured.cached_tokens;
            let uncached_raw = raw.prompt_tokens - raw.cached_tokens;
            if !activated {
                assert!(
                    uncached <= uncached_raw + STEP,
                    "{at}: {uncached} uncached tokens, {uncached_raw} without Diarist; {measured:?} {raw:?}"
                );
            }
            totals.turns += 1;
            totals.activations +=
                usize::from(activated && before.as_ref().is_some_and(|b| b.cut != turn.cut));
            totals.prompt[0] += u64::from(raw.prompt_tokens);
            totals.prompt[1] += u64::from(measured.prompt_tokens);
            totals.uncached[0] += u64::from(uncached_raw);
            totals.uncached[1] += u64::from(uncached);
            before = Some(turn);
        }
        rig.quiet().await;
        rig.provider.forget_bodies();
        direct.forget_bodies();
    }
    totals.reflections = rig.provider.record_of(Part::Reflector).len();
    totals.memory_tokens = [Part::Observer, Part::Reflector]
        .into_iter()
        .flat_map(|part| rig.provider.record_of(part))
        .filter_map(|entry| entry.measured)
        .map(|measured| u64::from(measured.prompt_tokens))
        .sum();
    totals
}

/// The shape of what was forwarded: every message raw in its place, or covered by the block.
fn check(at: &str, received: &[u8], forwarded: &[u8]) -> Turn {
    let (mine, mine_rest) = messages(received);
    let (sent, sent_rest) = messages(forwarded);
    assert_eq!(
        mine_rest, sent_rest,
        "{at}: fields beside the messages changed"
    );
    let head = mine.iter().take_while(|m| is_system(m)).count();
    if mine == sent {
        return Turn {
            block: None,
            cut: 0,
        };
    }
    // INV-TAIL: the longest common suffix is raw; before it stand block, pin and reminder.
    let tail = mine
        .iter()
        .rev()
        .zip(sent.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let cut = mine.len() - tail;
    let inserted = &sent[..sent.len() - tail];
    let ours: Vec<_> = inserted
        .iter()
        .filter(|message| !mine.contains(message))
        .collect();
    let block = ours.iter().find(|message| is_system(message));
    let block =
        block.unwrap_or_else(|| panic!("{at}: messages are gone and nothing stands for them"));
    let raw_before: Vec<_> = inserted.iter().filter(|m| mine.contains(m)).collect();
    assert!(
        raw_before.len() + 1 >= head,
        "{at}: a leading system message is gone"
    );
    let newest_user = mine.iter().rposition(|m| role(m) == "user");
    if let Some(newest) = newest_user {
        assert!(
            sent.contains(&mine[newest]),
            "{at}: the newest user message is not raw"
        );
    }
    assert!(cut > head, "{at}");
    Turn {
        block: Some((*block).clone()),
        cut: cut - head,
    }
}

fn messages(body: &[u8]) -> (Vec<String>, Vec<(String, String)>) {
    let all: std::collections::BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(body).unwrap();
    let messages: Vec<Box<RawValue>> = serde_json::from_str(all["messages"].get()).unwrap();
    let rest = all
        .iter()
        .filter(|(key, _)| *key != "messages")
        .map(|(k, v)| (k.clone(), v.get().to_owned()));
    (
        messages.iter().map(|m| m.get().to_owned()).collect(),
        rest.collect(),
    )
}

fn role(message: &str) -> String {
    serde_json::from_str::<Value>(message).unwrap()["role"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn is_system(message: &str) -> bool {
    ["system", "developer"].contains(&role(message).as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn small_thresholds() {
    let modes: &[Mode] = if all() { &MODES } else { &MODES[..1] };
    let mut longest = 0;
    for (mode, rules) in modes {
        let mut sum = Totals::default();
        for conversation in conversations() {
            let mut options = Options {
                keep_bodies: true,
                ..Options::default()
            };
            rules(&mut options.rules);
            let direct = Provider::start(Options {
                rules: options.rules.clone(),
                ..Options::default()
            })
            .await
            .unwrap();
            let settings = [
                (
                    "MEMORY__OBSERVATION__MESSAGE_TOKENS",
                    MESSAGE_TOKENS.to_string(),
                ),
                (
                    "MEMORY__REFLECTION__OBSERVATION_TOKENS",
                    OBSERVATION_TOKENS.to_string(),
                ),
            ];
            let settings: Vec<_> = settings.iter().map(|(k, v)| (*k, v.as_str())).collect();
            let mut rig = Rig::with(options, &settings).await;
            let began = std::time::Instant::now();
            let totals = play(
                &Play {
                    conversation: &conversation,
                    mode,
                    json: *mode == "json_object",
                },
                &rig,
                &direct,
            )
            .await;
            rig.stop().await;
            println!(
                "{mode} {}: {} turns, {} activations, {} reflector calls, prompt {} -> {}, uncached {} -> {}, memory {} in {:?}",
                conversation.id,
                totals.turns,
                totals.activations,
                totals.reflections,
                totals.prompt[0],
                totals.prompt[1],
                totals.uncached[0],
                totals.uncached[1],
                totals.memory_tokens,
                began.elapsed()
            );
            for i in 0..2 {
                sum.prompt[i] += totals.prompt[i];
                sum.uncached[i] += totals.uncached[i];
            }
            sum.memory_tokens += totals.memory_tokens;
            longest = longest.max(totals.activations);
        }
        println!(
            "{mode} in all: prompt {} -> {}, uncached {} -> {}, memory {}",
            sum.prompt[0], sum.prompt[1], sum.uncached[0], sum.uncached[1], sum.memory_tokens
        );
    }
    assert!(
        longest >= 20,
        "the longest conversation activated {longest} times"
    );
}
