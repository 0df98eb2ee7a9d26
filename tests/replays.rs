//! Recorded conversations through the whole proxy, turn by turn, against the strict provider, with
//! and without Diarist. Uses the conversations beside the project where they are there, and always
//! some of its own.
//!
//! `DIARIST_REPLAY=all cargo test --release --test proxy replays` plays every conversation in every mode;
//! without it a sample is played. `DIARIST_TESTS=long` plays a larger sample
//! and plants facts in every conversation.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod facts;
mod planted;
mod scripted_observers;

use std::path::Path;

use diarist_provider::{CallerKind, Conversation, Options, Provider, Rules, Style, signature_for};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::memory::rig::Rig;
use crate::support::depth;
use crate::support::skipped::skipped;

/// The thresholds of a replay, in tokens.
#[derive(Clone, Copy)]
struct Budget {
    messages: u32,
    observations: u32,
}

const SMALL: Budget = Budget {
    messages: 2_000,
    observations: 1_000,
};
const PUBLISHED: Budget = Budget {
    messages: 30_000,
    observations: 40_000,
};

/// The provider counts a quarter of the bytes, Diarist real tokens: this much they may differ on
/// JSON and emoji.
const COUNTS_DIFFER: f64 = 1.4;

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
fn chosen() -> String {
    std::env::var("DIARIST_REPLAY").unwrap_or_default()
}

/// Whether every conversation is played in every mode.
fn all() -> bool {
    let chosen = chosen();
    assert!(
        ["", "all"].contains(&chosen.as_str()),
        "DIARIST_REPLAY is {chosen:?}: it may be \"all\", or unset"
    );
    chosen == "all"
}

/// Whether facts are planted in every conversation, and more conversations are played in each mode.
fn is_long() -> bool {
    all() || depth::is_long()
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
            Err(_) => skipped(&format!(
                "../shared/data/{name} is not beside the project; its conversations are not played"
            )),
        }
    }
    all
}

/// What one turn cost and was.
struct Turn {
    block: Option<String>,
    cut: usize,
}

/// What a conversation cost, without Diarist and with it.
#[derive(Default)]
struct Totals {
    prompt: [u64; 2],
    uncached: [u64; 2],
    activations: usize,
    reflections: usize,
    turns: usize,
    /// Of the Observer's and the Reflector's calls: in and out.
    memory_tokens: [u64; 2],
    /// Of the conversation before its last request, without its head.
    raw_tokens: usize,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        for i in 0..2 {
            self.prompt[i] += other.prompt[i];
            self.uncached[i] += other.uncached[i];
            self.memory_tokens[i] += other.memory_tokens[i];
        }
        self.activations += other.activations;
        self.reflections += other.reflections;
        self.turns += other.turns;
    }
}

struct Play<'a> {
    conversation: &'a Conversation,
    mode: &'static str,
    budget: Budget,
}

impl Play<'_> {
    fn body(&self, sent: usize) -> Value {
        let mut body = self.conversation.request(sent, "gpt-test", false);
        match self.mode {
            "json_object" => ask_for_json(&mut body),
            "signature" => sign(&mut body),
            _ => {}
        }
        body
    }
}

/// The word stands in the first user message only: when that is covered, the block must hold it.
fn ask_for_json(body: &mut Value) {
    body["response_format"] = serde_json::json!({"type": "json_object"});
    let messages = body["messages"].as_array_mut().unwrap();
    let question = messages
        .iter_mut()
        .find(|message| message["role"] == "user")
        .unwrap();
    question["content"] = format!("Answer in JSON. {}", question["content"]).into();
}

/// A client of a model that signs its calls sends the signatures back.
fn sign(body: &mut Value) {
    let messages = body["messages"].as_array_mut().unwrap();
    let calls = messages
        .iter_mut()
        .filter_map(|m| m.get_mut("tool_calls")?.as_array_mut());
    for call in calls.flatten() {
        let signature = signature_for(call["id"].as_str().unwrap());
        call["extra_content"] = serde_json::json!({"google": {"thought_signature": signature}});
    }
}

/// INV-BOUND: however long the history, what is sent is bounded once memory had its time.
fn bounded(at: &str, budget: Budget, body: &Value, sent: usize, before: usize, prompt: u32) {
    let messages = body["messages"].as_array().unwrap();
    let weigh = |messages: &[Value]| -> f64 {
        messages
            .iter()
            .map(|m| m.to_string().len() as f64 / 4.0)
            .sum()
    };
    let head = messages
        .iter()
        .take_while(|m| is_system(&m.to_string()))
        .count();
    let tools = body
        .get("tools")
        .map_or(0.0, |tools| tools.to_string().len() as f64 / 4.0);
    let fixed = tools + weigh(&messages[..head]) + weigh(&messages[before.min(sent)..sent]);
    let budgets = 1.2 * f64::from(budget.messages + budget.observations);
    let bound = fixed + COUNTS_DIFFER * budgets;
    assert!(
        f64::from(prompt) <= bound,
        "{at}: {prompt} tokens, bound {bound}"
    );
}

async fn play(play: &Play<'_>, rig: &Rig, direct: &Provider) -> Totals {
    let mut totals = Totals::default();
    let mut before: Option<Turn> = None;
    let mut newest = 0;
    for sent in play.conversation.requests() {
        let body = play.body(sent);
        // Written once: bodies are long, and there are many.
        let text = body.to_string();
        let baseline = rig
            .client
            .post(format!("{}/chat/completions", direct.base_url()))
            .header("authorization", "Bearer sk-direct")
            .body(text.clone())
            .send()
            .await
            .unwrap();
        let sender = [("authorization", "Bearer sk-test")];
        let answer = rig.post(&sender, text.clone()).await;
        let at = format!("{} {} at {sent}", play.mode, play.conversation.id);
        assert_eq!(
            answer.status,
            baseline.status().as_u16(),
            "{at}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        let raw = direct.record().pop().unwrap();
        let forwarded = rig.provider.record_for(CallerKind::Actor).pop().unwrap();
        if let (Some(raw), Some(measured)) = (raw.prompt_usage, forwarded.prompt_usage) {
            let turn = check(&at, text.as_bytes(), &forwarded.body);
            let activated = before
                .as_ref()
                .is_some_and(|b| b.block != turn.block || b.cut != turn.cut);
            let uncached = measured.prompt_tokens - measured.cached_tokens;
            let uncached_raw = raw.prompt_tokens - raw.cached_tokens;
            bounded(
                &at,
                play.budget,
                &body,
                sent,
                newest,
                measured.prompt_tokens,
            );
            newest = sent;
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
    let accepted = |part| {
        let record = rig.provider.record_for(part);
        record
            .into_iter()
            .filter(|entry| entry.is_accepted())
            .collect::<Vec<_>>()
    };
    totals.reflections = accepted(CallerKind::Reflector).len();
    for entry in [CallerKind::Observer, CallerKind::Reflector]
        .into_iter()
        .flat_map(accepted)
    {
        totals.memory_tokens[0] += entry.prompt_usage.map_or(0, |m| u64::from(m.prompt_tokens));
        totals.memory_tokens[1] += u64::from(entry.completion_tokens.unwrap_or_default());
    }
    // What the last request brought is newest and stays raw, whatever its size.
    let requests: Vec<usize> = play.conversation.requests().collect();
    let settled = requests.iter().rev().nth(1).copied().unwrap_or(0);
    let raw_messages = play.conversation.messages[..settled].iter();
    let raw_messages = raw_messages.skip_while(|m| is_system(&m.to_string()));
    totals.raw_tokens = raw_messages.map(|m| m.to_string().len() / 4).sum();
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

/// Plays every conversation in every mode given, prints what it cost, and returns the most
/// activations and Reflector calls of one conversation.
async fn replay(budget: Budget, modes: &[Mode], conversations: &[Conversation]) -> (usize, usize) {
    let mut most = (0, 0);
    for (mode, rules) in modes {
        let mut sum = Totals::default();
        for conversation in conversations {
            let mut options = Options::default();
            rules(&mut options.rules);
            let rules = options.rules.clone();
            let direct = Provider::start(Options {
                rules,
                ..Options::default()
            })
            .await
            .unwrap();
            let settings = [budget.messages, budget.observations].map(|number| number.to_string());
            let mut rig = Rig::with(
                options,
                &[
                    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", &settings[0]),
                    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", &settings[1]),
                ],
            )
            .await;
            let totals = play(
                &Play {
                    conversation,
                    mode,
                    budget,
                },
                &rig,
                &direct,
            )
            .await;
            rig.stop().await;
            print_totals(&format!("{mode} {}", conversation.id), &totals);
            if budget.messages == SMALL.messages && totals.raw_tokens > 6_000 {
                assert!(
                    totals.activations > 0,
                    "{mode} {} never activated",
                    conversation.id
                );
            }
            sum.add(&totals);
            most = (
                most.0.max(totals.activations),
                most.1.max(totals.reflections),
            );
        }
        print_totals(&format!("{mode} in all"), &sum);
    }
    most
}

#[expect(clippy::print_stdout, reason = "the numbers are the point of a replay")]
fn print_totals(what: &str, totals: &Totals) {
    println!(
        "{what}: {} turns, {} activations, {} reflections; prompt {} -> {}, uncached {} -> {}; memory's own {} in, {} out",
        totals.turns,
        totals.activations,
        totals.reflections,
        totals.prompt[0],
        totals.prompt[1],
        totals.uncached[0],
        totals.uncached[1],
        totals.memory_tokens[0],
        totals.memory_tokens[1]
    );
}

/// Conversations that keep to the strictest rules themselves, and some that were recorded.
fn sample() -> Vec<Conversation> {
    let mut some = conversations();
    some.retain(|c| !c.id.starts_with("tau-long"));
    some.truncate(depth::long_or(14, 5));
    some
}

/// What is played in each of the strict modes: all conversations, the sample, or a part of the sample that
/// is another one in each mode.
fn in_strict_modes() -> Vec<(Mode, Vec<Conversation>)> {
    let modes = &MODES[1..];
    let part = |at: usize| {
        let sample = sample().into_iter().enumerate();
        let part = sample.filter(|(place, _)| place % modes.len() == at);
        part.map(|(_, conversation)| conversation).collect()
    };
    let played = |at| match () {
        () if all() => conversations(),
        () if is_long() => sample(),
        () => part(at),
    };
    let modes = modes.iter().enumerate();
    modes.map(|(at, mode)| (*mode, played(at))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_with_small_thresholds_succeed() {
    let mut played = if is_long() { conversations() } else { sample() };
    if !is_long() {
        // The others of the sample are played in the strict modes.
        played.truncate(1);
    }
    let (activations, reflections) = replay(SMALL, &MODES[..1], &played).await;
    assert!(
        activations >= 20 && reflections >= 3,
        "{activations} {reflections}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn strict_replays_with_small_thresholds_succeed() {
    let mut most = 0;
    for (mode, played) in in_strict_modes() {
        let (activations, _) = replay(SMALL, &[mode], &played).await;
        most = most.max(activations);
    }
    assert!(most >= 20, "{most}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn replays_with_published_thresholds_succeed() {
    let long = [
        Conversation::generate(21, 120, Style::Travel),
        Conversation::generate(22, 120, Style::Coding),
    ];
    let played = if all() {
        [conversations(), long.to_vec()].concat()
    } else {
        long[..depth::long_or(2, 1)].to_vec()
    };
    let modes = if all() { &MODES[..] } else { &MODES[..1] };
    let (activations, _) = replay(PUBLISHED, modes, &played).await;
    assert!(activations >= 1, "{activations}");
}
