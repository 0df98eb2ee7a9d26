//! The verdicts of the audit against what the prompt cache really did: for each kind of cache, conversations in which
//! clients and providers do whatever costs a cache, one thing at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use diarist_provider::{CacheKind, Conversation, Options, Style};
use serde_json::{Value, json};

use crate::memory::cache_truth::{self, Exchange, Truth};
use crate::memory::corpus;
use crate::memory::rig::Rig;
use crate::support::depth;
use crate::support::dice::Dice;
use crate::support::skipped::skipped;

/// At least this share must agree, of all requests and as the mean over causes.
pub const WANTED: f64 = 0.99;

/// All causes that docs/audit.md lists, and the verdicts that need none.
pub const CAUSES: [&str; 15] = [
    "warm",
    "cold_start",
    "activation",
    "reflection",
    "tools_changed",
    "system_changed",
    "message_changed",
    "message_inserted",
    "forked",
    "model_changed",
    "idle",
    "below_minimum",
    "memory_switched",
    "cache_marks",
    "provider",
];

const THRESHOLDS: [(&str, &str); 2] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "3000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1200"),
];

/// What a client, its provider or time does before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Grow,
    Retry,
    Edit,
    Insert,
    GoBack,
    ChangeTools,
    ChangeSystem,
    ChangeModel,
    /// Longer than the cache lives.
    Wait,
    /// Shorter than that.
    Pause,
    Forget,
    Off,
    Read,
    /// An answer that nobody asked for usage.
    Stream,
    /// No marks in this request.
    Unmarked,
    /// Many messages at once.
    Leap,
}

/// Each act as often as it stands there.
const ACTS: [Act; 40] = {
    let mut acts = [Act::Grow; 40];
    let rare = [
        Act::Retry,
        Act::Edit,
        Act::Edit,
        Act::Insert,
        Act::Insert,
        Act::GoBack,
        Act::GoBack,
        Act::ChangeTools,
        Act::ChangeSystem,
        Act::ChangeModel,
        Act::Wait,
        Act::Pause,
        Act::Forget,
        Act::Off,
        Act::Read,
        Act::Stream,
        Act::Stream,
        Act::Unmarked,
        Act::Leap,
    ];
    let mut at = 0;
    while at < rare.len() {
        acts[at] = rare[at];
        at += 1;
    }
    acts
};

/// A cache, the models that are asked, and how long it keeps a prompt.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub cache: CacheKind,
    pub models: [&'static str; 2],
    pub lifetime: Duration,
}

pub const KINDS: [Kind; 4] = [
    Kind {
        name: "steps",
        cache: CacheKind::Steps,
        models: ["openai/gpt-4.1", "openai/gpt-4o"],
        lifetime: Duration::from_mins(5),
    },
    Kind {
        name: "units",
        cache: CacheKind::Units,
        models: ["deepseek/deepseek-chat", "deepseek/deepseek-reasoner"],
        lifetime: Duration::from_hours(1),
    },
    Kind {
        name: "breakpoints",
        cache: CacheKind::Breakpoints,
        models: ["openai/gpt-5.6", "openai/gpt-5.6-mini"],
        lifetime: Duration::from_mins(30),
    },
    Kind {
        name: "marks",
        cache: CacheKind::Marks,
        models: ["anthropic/claude-sonnet-5", "anthropic/claude-opus-5"],
        lifetime: Duration::from_mins(5),
    },
];

/// A client with its conversation.
pub struct Client {
    pub name: String,
    pub credential: &'static str,
    conversation: Conversation,
    /// Sizes of its requests, in messages, and the next one.
    requests: Vec<usize>,
    next: usize,
    model: usize,
    edits: usize,
    /// The lifetime that its marks ask for.
    ttl: &'static str,
    /// The time of its last request.
    last_request: Duration,
    truth: cache_truth::Conversation,
}

impl Client {
    pub fn new(name: String, conversation: Conversation, ttl: &'static str) -> Self {
        Self {
            name,
            credential: "Bearer sk-test",
            requests: conversation.requests().collect(),
            conversation,
            next: 0,
            model: 0,
            edits: 0,
            ttl,
            last_request: Duration::ZERO,
            truth: cache_truth::Conversation::default(),
        }
    }

    fn is_done(&self) -> bool {
        self.next + 14 >= self.requests.len()
    }

    /// How many messages its last request had.
    fn sent(&self) -> usize {
        self.next
            .checked_sub(1)
            .map_or(0, |last| self.requests[last])
    }

    fn words(&mut self, what: &str) -> Value {
        self.edits += 1;
        let text = format!("{what} {} of {}. ", self.edits, self.name);
        json!(text + &"It is told in other words from here on. ".repeat(9))
    }

    /// Does it to the conversation; what is done with time, provider and headers is not its matter.
    fn apply(&mut self, act: Act, dice: &mut Dice) {
        match act {
            Act::Retry => self.next -= 1,
            Act::Edit => {
                let place = self.choose_text(dice);
                self.conversation.messages[place]["content"] = self.words("Edit");
            }
            Act::Insert => {
                let users: Vec<usize> = (1..self.sent() - 1)
                    .filter(|at| self.conversation.messages[*at]["role"] == "user")
                    .collect();
                let place = *dice.pick(&users);
                let message = json!({"role": "user", "content": self.words("Insertion")});
                self.conversation.messages.insert(place, message);
                let behind = self.requests.iter_mut().filter(|sent| **sent > place);
                behind.for_each(|sent| *sent += 1);
            }
            Act::GoBack => {
                self.next -= dice.between(2, 4);
                let newest = self.requests[self.next] - 1;
                self.conversation.messages[newest]["content"] = self.words("Return");
            }
            Act::ChangeTools => {
                let name = format!("tool_{}", self.next);
                let tool = json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
                match self
                    .conversation
                    .tools
                    .as_mut()
                    .and_then(Value::as_array_mut)
                {
                    Some(tools) => tools.push(tool),
                    None => self.conversation.tools = Some(json!([tool])),
                }
            }
            Act::ChangeSystem => {
                let text = self.conversation.messages[0]["content"].as_str().unwrap();
                let text = format!("Version {}. {text}", self.next);
                self.conversation.messages[0]["content"] = json!(text);
            }
            Act::ChangeModel => self.model = 1 - self.model,
            Act::Leap => self.next += 11,
            Act::Grow
            | Act::Wait
            | Act::Pause
            | Act::Forget
            | Act::Off
            | Act::Read
            | Act::Stream
            | Act::Unmarked => {}
        }
    }

    /// A place of what was sent before its last two messages where a text stands.
    fn choose_text(&self, dice: &mut Dice) -> usize {
        loop {
            let place = dice.between(1, self.sent() - 3);
            let message = &self.conversation.messages[place];
            if message["content"].is_string() && message.get("tool_calls").is_none() {
                return place;
            }
        }
    }

    fn body(&mut self, kind: &Kind, has_marks: bool) -> Value {
        let sent = self.requests[self.next];
        self.next += 1;
        let mut body = self
            .conversation
            .request(sent, kind.models[self.model], false);
        if kind.cache == CacheKind::Marks && has_marks {
            for place in [0, sent - 1] {
                let message = &mut body["messages"][place];
                let text = message["content"].take();
                let mark = json!({"type": "ephemeral", "ttl": self.ttl});
                message["content"] = json!([{"type": "text", "text": text, "cache_control": mark}]);
            }
        }
        body
    }
}

/// How often the audit said what, by what was true.
#[derive(Default)]
pub struct Table(BTreeMap<(&'static str, String), usize>);

impl Table {
    /// Adds a request, and prints it if the audit is wrong.
    pub fn note(&mut self, kind: &str, act: Act, answered: &Answered) {
        let Answered { truth, now, line } = answered;
        if !self.add(*truth, line) {
            println!("{kind} {act:?}: {truth:?}, {:?}\n  {line}", now.usage());
        }
    }

    fn add(&mut self, truth: Truth, line: &Value) -> bool {
        let verdict = line["verdict"].as_str().unwrap_or("none").to_owned();
        let reported = line["verdict_cause"]
            .as_str()
            .unwrap_or(&verdict)
            .to_owned();
        let agrees = reported == truth.label() && verdict == truth.verdict;
        let reported = if agrees || reported != truth.label() {
            reported
        } else {
            format!("{reported}/{verdict}")
        };
        *self.0.entry((truth.label(), reported)).or_default() += 1;
        agrees
    }

    fn merge(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            *self.0.entry(key.clone()).or_default() += count;
        }
    }

    pub fn right_and_all(&self, truth: &str) -> (usize, usize) {
        let rows = self
            .0
            .iter()
            .filter(|((true_label, _), _)| *true_label == truth);
        rows.fold((0, 0), |(right, all), ((label, reported), count)| {
            (
                right + if label == reported { *count } else { 0 },
                all + count,
            )
        })
    }

    fn labels(&self) -> BTreeSet<&'static str> {
        self.0.keys().map(|(truth, _)| *truth).collect()
    }

    /// The share that agrees: of all, and as the mean over what was true.
    pub fn agreement(&self) -> (f64, f64) {
        let share = |(right, all): (usize, usize)| right as f64 / all as f64;
        let rows: Vec<(usize, usize)> = self
            .labels()
            .iter()
            .map(|label| self.right_and_all(label))
            .collect();
        let sum = rows
            .iter()
            .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        let mean = rows.iter().copied().map(share).sum::<f64>() / rows.len() as f64;
        (share(sum), mean)
    }

    pub fn print(&self, name: &str) {
        let (overall, mean) = self.agreement();
        let mut text = format!(
            "{name}: {:.2} % agree, {:.2} % as the mean over causes\n",
            overall * 100.0,
            mean * 100.0
        );
        for label in self.labels() {
            let (right, all) = self.right_and_all(label);
            let wrong: Vec<String> = self
                .0
                .iter()
                .filter(|((truth, reported), _)| *truth == label && reported != label)
                .map(|((_, reported), count)| format!("{reported} {count}"))
                .collect();
            writeln!(
                text,
                "  {label:<16} {right:>5} of {all:>5}  {}",
                wrong.join(", ")
            )
            .unwrap();
        }
        println!("{text}");
    }
}

/// A request with its line, and what is true of it.
pub struct Answered {
    pub now: Exchange,
    pub truth: Truth,
    pub line: Value,
}

pub struct Play {
    pub kind: Kind,
    pub rig: Rig,
    dice: Dice,
    now: Duration,
    table: Table,
}

impl Play {
    pub async fn new(kind: Kind, seed: u64, settings: &[(&str, &str)]) -> Self {
        let settings = [&THRESHOLDS[..], settings].concat();
        let rig = Rig::with(Options::default(), &settings).await;
        rig.provider.rules(|rules| rules.cache = kind.cache);
        Self {
            kind,
            rig,
            dice: Dice::new(seed),
            now: Duration::ZERO,
            table: Table::default(),
        }
    }

    fn act_for(&mut self, client: &Client) -> Act {
        let act = *self.dice.pick(&ACTS);
        let has_marks = self.kind.cache == CacheKind::Marks;
        match act {
            _ if client.next < 8 => Act::Grow,
            Act::Unmarked if !has_marks => Act::Grow,
            act => act,
        }
    }

    async fn play(&mut self, clients: &mut [Client], steps: usize) {
        for _ in 0..steps {
            let at = self.dice.below(clients.len());
            if clients[at].is_done() {
                continue;
            }
            let act = self.act_for(&clients[at]);
            let answered = self.step(&mut clients[at], act).await;
            self.table.note(self.kind.name, act, &answered);
        }
    }

    pub async fn step(&mut self, client: &mut Client, act: Act) -> Answered {
        let lifetime = match client.ttl {
            "1h" if self.kind.cache == CacheKind::Marks => Duration::from_hours(1),
            _ => self.kind.lifetime,
        };
        let passes = match act {
            Act::Wait => lifetime + Duration::from_mins(1),
            Act::Pause => lifetime.mul_f64(0.37),
            _ => Duration::ZERO,
        };
        self.rig.skip_time(passes);
        self.rig.provider.skip_time(passes);
        self.now += passes;
        let last_request = std::mem::replace(&mut client.last_request, self.now);
        let is_late = self.now > last_request + lifetime;
        if act == Act::Forget {
            self.rig.provider.forget_prompts();
        }
        client.apply(act, &mut self.dice);
        let mut body = client.body(&self.kind, act != Act::Unmarked);
        if act == Act::Stream {
            body["stream"] = json!(true);
        }
        let mut headers = vec![("x-diarist-thread", client.name.as_str())];
        match act {
            Act::Off => headers.push(("x-diarist-memory", "off")),
            Act::Read => headers.push(("x-diarist-memory", "read")),
            _ => {}
        }
        let answer = self.rig.send_as(client.credential, &headers, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let now = Exchange {
            sent: body,
            record: self.rig.last(),
            is_off: act == Act::Off,
            went_back: act == Act::GoBack,
            is_late,
            has_usage: act != Act::Stream,
        };
        self.rig.quiet().await;
        let line = self.rig.audit_entry(&answer).await;
        Answered {
            truth: client.truth.next(now.clone()),
            now,
            line,
        }
    }
}

/// The recorded conversations, as many of each file.
fn recorded(each: usize) -> Vec<Conversation> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let mut all = Vec::new();
    for name in ["tau_long.jsonl", "swe_agent.jsonl", "tau_airline.jsonl"] {
        if let Ok(lines) = std::fs::read_to_string(folder.join(name)) {
            let read = Conversation::read_all(&lines).unwrap();
            let long = read.into_iter().filter(|it| it.requests().count() > 24);
            all.extend(long.take(each));
            continue;
        }
        skipped(&format!(
            "../shared/data/{name} is not beside the project; verdicts about its conversations are not judged"
        ));
    }
    all
}

fn clients(number: usize) -> Vec<Client> {
    let style = |seed: u64| [Style::Travel, Style::Coding][(seed % 2) as usize];
    let made =
        (0..6).map(|seed| Conversation::generate(seed + 40 * number as u64, 90, style(seed)));
    made.chain(recorded(2))
        .chain(corpus::conversations())
        .enumerate()
        .map(|(at, conversation)| {
            let ttl = if at % 3 == 2 { "1h" } else { "5m" };
            Client::new(format!("talk-{at}"), conversation, ttl)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_audit_verdicts_agree_with_the_simulated_cache() {
    // The plain form plays the first and the last kind: they have nothing in common.
    let kinds = KINDS.into_iter().enumerate().step_by(depth::long_or(1, 3));
    // With 250 steps, one verdict more or less decides.
    let (steps, least) = depth::long_or((500, 8), (400, 1));
    let mut whole = Table::default();
    for (number, kind) in kinds {
        let never = [("AUDIT__ASK_USAGE", "never")];
        let mut play = Play::new(kind, 7 + number as u64, &never).await;
        play.play(&mut clients(number), steps).await;
        play.table.print(kind.name);
        whole.merge(&play.table);
    }
    whole.print("all kinds");
    for cause in CAUSES {
        let (_, all) = whole.right_and_all(cause);
        assert!(all >= least, "{cause} came {all} times only");
    }
    let (overall, mean) = whole.agreement();
    assert!(overall >= WANTED && mean >= WANTED, "{overall} {mean}");
}
