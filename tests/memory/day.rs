//! Two recorded days, and the questions that an operator asks about cache and cost: two tenants with the same names of
//! conversations, three models, every cause alone. The provider's record is the truth; the answers come from the command.

use std::collections::{BTreeMap, BTreeSet};

use assert_cmd::Command;
use diarist_provider::{
    CacheKind, CallerKind, Conversation, OBSERVER_MODEL, REFLECTOR_MODEL, RecordedRequest,
    SimulatedCache, Style, Verdict, estimate_tokens,
};
use serde_json::Value;

use crate::memory::confusion::{Act, Answered, CAUSES, Client, KINDS, Kind, Play, Table, WANTED};
use crate::memory::tools::{SampleConversation, eventually, refusing};

const STEPS: &str = "openai/gpt-4.1";
const BREAKPOINTS: &str = "openai/gpt-5.6";
const MARKS: &str = "anthropic/claude-sonnet-5";

/// Dollars for a million tokens: uncached, read, answer, written.
const PRICES: [(&str, [f64; 4]); 6] = [
    (STEPS, [2.0, 0.5, 8.0, 2.0]),
    ("deepseek/deepseek-chat", [0.27, 0.07, 1.1, 0.27]),
    (BREAKPOINTS, [1.25, 0.125, 10.0, 1.5625]),
    (MARKS, [3.0, 0.3, 15.0, 3.75]),
    (OBSERVER_MODEL, [0.1, 0.025, 0.4, 0.1]),
    (REFLECTOR_MODEL, [0.2, 0.05, 0.8, 0.2]),
];

/// Numbers may differ by this share.
const TOLERANCE: f64 = 0.01;

/// The ends of the estimate are those of whole conversations. What one turn reads anew there, the next one reads from the
/// cache, so the turns with one cause may be off by this share more.
const TOLERANCE_OF_TURNS: f64 = 0.15;

const TENANTS: [&str; 2] = ["Bearer sk-ada", "Bearer sk-bob"];

/// What happens to a conversation that is too short for observations.
const ACTS: [Act; 24] = [
    Act::Edit,
    Act::Grow,
    Act::Insert,
    Act::Grow,
    Act::ChangeTools,
    Act::Grow,
    Act::ChangeSystem,
    Act::Grow,
    Act::Wait,
    Act::Forget,
    Act::GoBack,
    Act::Grow,
    Act::Stream,
    Act::Retry,
    Act::Grow,
    Act::Stream,
    Act::Grow,
    Act::Unmarked,
    Act::Grow,
    Act::Unmarked,
    Act::Grow,
    Act::GoBack,
    Act::Grow,
    Act::ChangeModel,
];

/// The sums of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: f64,
    no_usage: f64,
    prompt: f64,
    cached: f64,
    cost: f64,
    /// The calls of memory.
    memory: f64,
    without: f64,
    /// The part of it in conversations in which observations replaced messages. The provider never counted these messages,
    /// so the report has an estimate, and two ends between which the truth must lie.
    estimated: f64,
}

struct Day {
    answered: Vec<Answered>,
    /// How many model calls of memory the provider has answered, and what they cost.
    calls: (usize, f64),
    /// Conversations in which observations replaced messages.
    replaced: BTreeSet<String>,
    /// The lines up to here are told to be of the day before.
    dated_back: usize,
    sums: BTreeMap<(&'static str, String), Sums>,
    /// What the whole histories would have cost with a cache that forgets nothing.
    ideal: SimulatedCache,
    table: Table,
}

fn price(model: &str) -> [f64; 4] {
    let found = PRICES.iter().find(|(name, _)| *name == model);
    found.unwrap().1.map(|dollars| dollars / 1e6)
}

pub fn cost(model: &str, usage: diarist_provider::PromptUsage, output: u32) -> f64 {
    let [input, read, answer, write] = price(model);
    let written = usage.written_tokens().unwrap_or(0);
    let uncached = usage.prompt_tokens - usage.cached_tokens - written;
    f64::from(uncached) * input
        + f64::from(usage.cached_tokens) * read
        + f64::from(written) * write
        + f64::from(output) * answer
}

fn call_cost(call: &RecordedRequest) -> f64 {
    let usage = call.prompt_usage.unwrap();
    cost(
        call.model.as_deref().unwrap(),
        usage,
        call.completion_tokens.unwrap(),
    )
}

impl Day {
    /// `memory` is what the calls of memory cost since the request before.
    fn note(&mut self, kind: Kind, act: Act, credential: &str, answered: Answered, memory: f64) {
        self.table.note(kind.name, act, &answered);
        let Answered { now, line, .. } = &answered;
        let (usage, model) = (now.usage(), now.model());
        let output = now.record.completion_tokens.unwrap();
        let owner = (credential, model);
        let request = now.sent.as_object().unwrap();
        let (whole, stored) = self.ideal.read(usage.kind, owner, request);
        self.ideal.store(&stored);
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        let thread = format!("{}\0{}", text("tenant"), text("thread"));
        if now.replaced() > 0 {
            self.replaced.insert(thread.clone());
        }
        let paid = cost(model, usage, output);
        let (without, estimated) = if self.replaced.contains(&thread) {
            let without = cost(model, whole, output);
            (without, without)
        } else {
            (paid, 0.0)
        };
        let cause = answered.truth.label().to_owned();
        let day = dated(&text("time"), self.dated_back == 0);
        for (by, name) in [
            ("all", String::new()),
            ("model", model.to_owned()),
            ("tenant", text("tenant")),
            ("thread", thread),
            ("day", day),
            ("cause", cause),
        ] {
            // Calls of memory have no cause.
            let payer = if by == "cause" { "memory" } else { &name };
            let payer = self.sums.entry((by, payer.to_owned())).or_default();
            payer.memory += memory;
            let sums = self.sums.entry((by, name)).or_default();
            sums.requests += 1.0;
            if !now.has_usage {
                sums.no_usage += 1.0;
                continue;
            }
            sums.prompt += f64::from(usage.prompt_tokens);
            sums.cached += f64::from(usage.cached_tokens);
            sums.cost += paid;
            sums.without += without;
            sums.estimated += estimated;
        }
        self.answered.push(answered);
    }

    /// A conversation in which one thing after another happens, and none of it is memory's.
    async fn short(&mut self, play: &mut Play, client: &mut Client) {
        let mut prompt = 0;
        while prompt < 1_400 {
            prompt = self.step(play, client, Act::Grow).await;
        }
        let has_marks = play.kind.cache == CacheKind::Marks;
        for act in ACTS {
            if act != Act::Unmarked || has_marks {
                self.step(play, client, act).await;
            }
        }
    }

    /// A conversation that grows, is observed and reflected, and goes without memory now and then.
    async fn long(&mut self, play: &mut Play, client: &mut Client) {
        for number in 0..66 {
            let act = if number % 22 == 21 {
                Act::Off
            } else {
                Act::Grow
            };
            self.step(play, client, act).await;
        }
    }

    /// How many tokens the prompt had.
    async fn step(&mut self, play: &mut Play, client: &mut Client, act: Act) -> u32 {
        let answered = play.step(client, act).await;
        let tokens = answered.now.usage().prompt_tokens;
        // Memory is at rest after each step, so what was called since the one before is of this conversation.
        let (before, calls) = (self.calls, memory_calls(play));
        self.calls = calls;
        let memory = calls.1 - before.1;
        self.note(play.kind, act, client.credential, answered, memory);
        tokens
    }
}

fn client(credential: &'static str, name: &str, seed: u64) -> Client {
    let style = [Style::Travel, Style::Coding][(seed % 2) as usize];
    let conversation = Conversation::generate(900 + seed, 120, style);
    let mut client = Client::new(name.to_owned(), conversation, "5m");
    client.credential = credential;
    client
}

/// The calls of memory that the provider has answered: how many, and what they cost.
fn memory_calls(play: &Play) -> (usize, f64) {
    let mut calls = play.rig.provider.record_for(CallerKind::Observer);
    calls.extend(play.rig.provider.record_for(CallerKind::Reflector));
    (calls.len(), calls.iter().map(|call| call_cost(call)).sum())
}

/// The day of a time, or the day before.
fn dated(time: &str, one_earlier: bool) -> String {
    let day: jiff::civil::Date = time[..10].parse().unwrap();
    let day = if one_earlier {
        day.yesterday().unwrap()
    } else {
        day
    };
    day.to_string()
}

fn audit_lines(play: &Play) -> String {
    std::fs::read_to_string(play.rig.folder.path().join("audit.jsonl")).unwrap()
}

/// Lets the first lines be of the day before: the time of the audit is the system's.
fn date_back(play: &Play, lines: usize) {
    const START: &str = "{\"time\":\"";
    let text = audit_lines(play);
    let dated = text.lines().enumerate().map(|(at, line)| {
        let time = line.strip_prefix(START).unwrap();
        format!("{START}{}{}\n", dated(time, at < lines), &time[10..])
    });
    let path = play.rig.folder.path().join("audit.jsonl");
    std::fs::write(path, dated.collect::<String>()).unwrap();
}

/// The command about this file.
fn audit(play: &Play, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("diarist"));
    command
        .env_clear()
        .env("HOME", "/home/ada")
        .arg("audit")
        .args(args);
    for (model, [input, read, answer, write]) in PRICES {
        command.arg("--price");
        command.arg(format!("{model}={input},{read},{answer},{write}"));
    }
    command.arg(play.rig.folder.path().join("audit.jsonl"));
    command
}

pub fn report(play: &Play, args: &[&str]) -> Value {
    let args = [args, &["--format", "json"]].concat();
    let output = audit(play, &args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn close(what: &str, reported: &Value, truth: f64) {
    let reported = reported.as_f64().unwrap();
    let apart = (reported - truth).abs();
    // Sums of dollars are rounded to billionths.
    let most = TOLERANCE * truth.abs() + 1e-9;
    assert!(apart <= most, "{what}: {reported} and not {truth}");
}

/// The truth lies between the two ends of the report, which may be off by `apart`.
fn between(what: &str, [low, high]: [&Value; 2], truth: f64, apart: f64) {
    let [low, high] = [low, high].map(|end| end.as_f64().unwrap());
    // Sums of dollars are rounded to billionths.
    let apart = apart + 1e-9;
    assert!(
        low - apart <= truth && truth <= high + apart,
        "{what}: {truth} is not between {low} and {high}"
    );
}

/// The dollars of a group.
fn same_dollars(what: &str, reported: &Value, sums: &Sums) {
    close(&format!("{what} cost"), &reported["cost"], sums.cost);
    let memory = &reported["memory_cost"];
    close(&format!("{what} memory"), memory, sums.memory);
    let without = sums.without;
    let net = without - sums.cost - sums.memory;
    if sums.estimated <= 0.0 {
        close(
            &format!("{what} without"),
            &reported["without_diarist"],
            without,
        );
        // Nothing was replaced, so nothing was saved.
        close(&format!("{what} net"), &reported["net"], -sums.memory);
    }
    let tolerance = if what.starts_with("cause") {
        TOLERANCE_OF_TURNS
    } else {
        TOLERANCE
    };
    let apart = tolerance * without;
    let ends = [&reported["without_low"], &reported["without_high"]];
    between(&format!("{what} without"), ends, without, apart);
    let ends = [&reported["net_low"], &reported["net_high"]];
    between(&format!("{what} net"), ends, net, apart);
}

/// The groups of a report are those of the truth, with its numbers.
fn same_groups(play: &Play, day: &Day, by: &str) {
    let report = report(play, &["--by", by]);
    let fields = report["by"].as_array().unwrap();
    let mut reported = BTreeMap::new();
    for group in report["groups"].as_array().unwrap() {
        let name: Vec<&str> = fields
            .iter()
            .map(|field| group[field.as_str().unwrap()].as_str().unwrap())
            .collect();
        reported.insert(name.join("\0"), group.clone());
    }
    let truth = day.sums.iter().filter(|((kind, _), _)| *kind == by);
    let truth: BTreeMap<&String, &Sums> = truth.map(|((_, name), sums)| (name, sums)).collect();
    let names: BTreeSet<&String> = truth.keys().copied().collect();
    assert_eq!(reported.keys().collect::<BTreeSet<_>>(), names, "{by}");
    for (name, sums) in truth {
        let (what, group) = (format!("{by} {name}"), &reported[name]);
        close(
            &format!("{what} requests"),
            &group["requests"],
            sums.requests,
        );
        if sums.prompt > 0.0 {
            close(
                &format!("{what} prompt"),
                &group["prompt_tokens"],
                sums.prompt,
            );
            close(
                &format!("{what} hits"),
                &group["hit_rate"],
                sums.cached / sums.prompt,
            );
        }
        // Without any usage, the cost is not known.
        if sums.prompt > 0.0 || sums.requests < 1.0 {
            same_dollars(&what, group, sums);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_audit_command_answers_every_documented_question() {
    let never = [("AUDIT__ASK_USAGE", "never")];
    let mut play = Play::new(KINDS[0], 1, &never).await;
    let mut day = Day {
        answered: Vec::new(),
        calls: (0, 0.0),
        replaced: BTreeSet::new(),
        dated_back: 0,
        sums: BTreeMap::new(),
        ideal: SimulatedCache::new(&estimate_tokens()),
        table: Table::default(),
    };
    let mut seed = 0;
    for (number, (kind, models)) in [
        (KINDS[0], [STEPS, BREAKPOINTS]),
        (KINDS[2], [BREAKPOINTS, STEPS]),
        (KINDS[3], [MARKS, STEPS]),
    ]
    .into_iter()
    .enumerate()
    {
        if number == 2 {
            day.dated_back = audit_lines(&play).lines().count();
        }
        play.kind = Kind { models, ..kind };
        play.rig.provider.rules(|rules| rules.cache = kind.cache);
        for credential in TENANTS {
            for name in ["notes", "trip"] {
                seed += 1;
                let name = format!("{name}-{}", kind.name);
                day.short(&mut play, &mut client(credential, &name, seed))
                    .await;
            }
            seed += 1;
            let name = format!("main-{}", kind.name);
            day.long(&mut play, &mut client(credential, &name, seed))
                .await;
        }
    }
    day.table.print("one day");
    for cause in CAUSES {
        let (_, all) = day.table.right_and_all(cause);
        assert!(all >= 8, "{cause} came {all} times only");
    }
    let (overall, mean) = day.table.agreement();
    assert!(overall >= WANTED && mean >= WANTED, "{overall} {mean}");

    date_back(&play, day.dated_back);
    for by in ["model", "tenant", "thread", "day", "cause"] {
        same_groups(&play, &day, by);
    }
    same_totals(&play, &day);
    documented(&play, &day).await;
    check_failed_call_is_reported(&play).await;
}

fn same_totals(play: &Play, day: &Day) {
    let total = &report(play, &[])["total"];
    let sums = day.sums[&("all", String::new())];
    close("requests", &total["requests"], sums.requests);
    close("no usage", &total["no_usage"], sums.no_usage);
    close("prompt", &total["prompt_tokens"], sums.prompt);
    close("cached", &total["cached_tokens"], sums.cached);
    close("hit rate", &total["hit_rate"], sums.cached / sums.prompt);
    close("calls", &total["memory_calls"], day.calls.0 as f64);
    same_dollars("total", total, &sums);
    // The likely number is no worse than this for the whole, if it can be twice so far off for one conversation.
    let without = total["without_diarist"].as_f64().unwrap();
    assert!((without / sums.without - 1.0).abs() < 0.1, "{without}");
    println!(
        "cost ${:.4}, memory ${:.4}, without about {}; with a cache that forgets nothing ${:.4}",
        sums.cost, sums.memory, total["without_diarist"], sums.without
    );
}

/// The table of questions in the document: each has a command that answers, a metric that is there, and a panel.
async fn documented(play: &Play, day: &Day) {
    let read = |path: &str| {
        std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let document = read("docs/audit.md");
    let (_, section) = document
        .split_once("\n### The thirteen questions\n")
        .unwrap();
    let section = section.split("\n#").next().unwrap();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| question"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 13);
    let metrics = play.rig.metrics().await;
    let dashboard: Value = serde_json::from_str(&read("docs/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let sample = |cause: &str| {
        let mut of_cause = day
            .answered
            .iter()
            .filter(|it| it.truth.cause == Some(cause));
        &of_cause.next().unwrap().line
    };
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    for row in rows {
        let [question, command, metric, panel] = row[..] else {
            panic!("{row:?}");
        };
        let line = sample("activation");
        let command = command
            .trim_matches('`')
            .strip_prefix("diarist audit")
            .unwrap();
        let args: Vec<String> = command
            .split_whitespace()
            .map(|arg| match arg.trim_matches('\'') {
                "REQUEST" => text(line, "request_id"),
                "TENANT" => text(line, "tenant"),
                "CONVERSATION" => text(line, "thread"),
                arg => arg.to_owned(),
            })
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = audit(play, &args).output().unwrap();
        assert!(output.status.success(), "{question}: {output:?}");
        assert!(!output.stdout.is_empty(), "{question}");
        let name = metric.trim_matches('`').split('{').next().unwrap();
        assert!(
            metrics.contains(&format!("# TYPE {name} ")),
            "{question}: {name}"
        );
        let mut titled = panels.iter().filter(|it| it["title"] == panel);
        let queries = titled
            .next()
            .unwrap_or_else(|| panic!("{question}: no panel {panel}"))["targets"]
            .to_string();
        assert!(
            queries.contains(name),
            "{question}: {panel} does not show {name}"
        );
    }
    for (cause, word) in [
        ("activation", "an activation"),
        ("reflection", "A reflection"),
        ("model_changed", "changed the model"),
        ("below_minimum", "shorter than the shortest"),
        ("tools_changed", "changed its tools"),
        ("system_changed", "changed its system message"),
        ("message_changed", "changed an older message"),
        ("message_inserted", "inserted messages"),
        ("forked", "from an earlier message"),
        ("idle", "pause was longer"),
        ("provider", "only the provider knows"),
        ("memory_switched", "on for one request and off"),
        ("cache_marks", "up to marks"),
    ] {
        let id = text(sample(cause), "request_id");
        let output = audit(play, &["--why", &id]).output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(stdout.contains(word), "{cause}: {stdout}");
    }
}

/// A call of the Observer that fails is in the report, and a check for monitoring sees it.
async fn check_failed_call_is_reported(play: &Play) {
    let rig = &play.rig;
    let check = |expected: i32| {
        let output = audit(play, &["--check", "unusable_calls==0"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
    };
    check(0);
    rig.provider
        .inject_next(CallerKind::Observer, 1, &refusing(500, "overloaded"));
    let failed = || {
        rig.audit("call")
            .iter()
            .any(|line| line["outcome"] == "failed")
    };
    let conversation = SampleConversation::new("failing");
    for turn in 1..30 {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    eventually("the line of a failed call", failed).await;
    check(1);
    let calls = rig.provider.record_for(CallerKind::Observer);
    let failed = calls
        .iter()
        .filter(|call| call.verdict == Verdict::Failed(500))
        .count();
    close(
        "unusable calls",
        &report(play, &[])["total"]["unusable_calls"],
        failed as f64,
    );
}
