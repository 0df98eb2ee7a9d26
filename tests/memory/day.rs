//! One recorded day, and the questions that an operator asks about cache and cost: two tenants with the same names of
//! conversations, three models, every cause alone. The provider's record is the truth; the answers come from the command.

use std::collections::{BTreeMap, BTreeSet};

use assert_cmd::Command;
use diarist_provider::{
    CacheKind, CallerKind, Conversation, OBSERVER_MODEL, REFLECTOR_MODEL, RecordedRequest,
    SimulatedCache, Style, Verdict, estimate_tokens,
};
use serde_json::Value;

use crate::memory::confusion::{Act, Answered, CAUSES, Client, KINDS, Kind, Play, Table, WANTED};
use crate::memory::tools::{Talk, eventually, refusing};

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

const TENANTS: [&str; 2] = ["Bearer sk-ada", "Bearer sk-bob"];

/// What happens to a conversation that is too short for observations.
const ACTS: [Act; 22] = [
    Act::Edit,
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
    without: f64,
}

struct Day {
    answered: Vec<Answered>,
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
    fn note(&mut self, kind: Kind, act: Act, credential: &str, answered: Answered) {
        self.table.note(kind.name, act, &answered);
        let Answered { now, line, .. } = &answered;
        let (usage, model) = (now.usage(), now.model());
        let output = now.record.completion_tokens.unwrap();
        let owner = (credential, model);
        let request = now.sent.as_object().unwrap();
        let (without, stored) = self.ideal.read(usage.kind, owner, request);
        self.ideal.store(&stored);
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        let thread = format!("{}\0{}", text("tenant"), text("thread"));
        let cause = answered.truth.label().to_owned();
        let day = text("time")[..10].to_owned();
        for (by, name) in [
            ("all", String::new()),
            ("model", model.to_owned()),
            ("tenant", text("tenant")),
            ("thread", thread),
            ("day", day),
            ("cause", cause),
        ] {
            let sums = self.sums.entry((by, name)).or_default();
            sums.requests += 1.0;
            if !now.has_usage {
                sums.no_usage += 1.0;
                continue;
            }
            sums.prompt += f64::from(usage.prompt_tokens);
            sums.cached += f64::from(usage.cached_tokens);
            sums.cost += cost(model, usage, output);
            sums.without += cost(model, without, output);
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
        self.note(play.kind, act, client.credential, answered);
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

fn close(what: &str, told: &Value, truth: f64) {
    let told = told.as_f64().unwrap();
    let apart = (told - truth).abs();
    assert!(
        apart <= TOLERANCE * truth.abs(),
        "{what}: {told} and not {truth}"
    );
}

/// The groups of a report are those of the truth, with its numbers.
fn same_groups(play: &Play, day: &Day, by: &str) {
    let report = report(play, &["--by", by]);
    let fields = report["by"].as_array().unwrap();
    let mut told = BTreeMap::new();
    for group in report["groups"].as_array().unwrap() {
        let name: Vec<&str> = fields
            .iter()
            .map(|field| group[field.as_str().unwrap()].as_str().unwrap())
            .collect();
        // Models of memory have no requests.
        if group["requests"].as_u64() > Some(0) {
            told.insert(name.join("\0"), group.clone());
        }
    }
    let truth = day.sums.iter().filter(|((kind, _), _)| *kind == by);
    let truth: BTreeMap<&String, &Sums> = truth.map(|((_, name), sums)| (name, sums)).collect();
    let names: BTreeSet<&String> = truth.keys().copied().collect();
    assert_eq!(told.keys().collect::<BTreeSet<_>>(), names, "{by}");
    for (name, sums) in truth {
        let (what, group) = (format!("{by} {name}"), &told[name]);
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
            close(&format!("{what} cost"), &group["cost"], sums.cost);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_questions_about_a_day_are_answered() {
    let never = [("AUDIT__ASK_USAGE", "never")];
    let mut play = Play::new(KINDS[0], 1, &never).await;
    let mut day = Day {
        answered: Vec::new(),
        sums: BTreeMap::new(),
        ideal: SimulatedCache::new(&estimate_tokens()),
        table: Table::default(),
    };
    let mut seed = 0;
    for (kind, models) in [
        (KINDS[0], [STEPS, BREAKPOINTS]),
        (KINDS[2], [BREAKPOINTS, STEPS]),
        (KINDS[3], [MARKS, STEPS]),
    ] {
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

    for by in ["model", "tenant", "thread", "day", "cause"] {
        same_groups(&play, &day, by);
    }
    same_totals(&play, &day);
    documented(&play, &day).await;
    fails_once(&play).await;
}

fn same_totals(play: &Play, day: &Day) {
    let total = &report(play, &[])["total"];
    let sums = day.sums[&("all", String::new())];
    close("requests", &total["requests"], sums.requests);
    close("no usage", &total["no_usage"], sums.no_usage);
    close("prompt", &total["prompt_tokens"], sums.prompt);
    close("cached", &total["cached_tokens"], sums.cached);
    close("hit rate", &total["hit_rate"], sums.cached / sums.prompt);
    close("cost", &total["cost"], sums.cost);
    let mut calls = play.rig.provider.record_for(CallerKind::Observer);
    calls.extend(play.rig.provider.record_for(CallerKind::Reflector));
    let memory: f64 = calls.iter().map(|call| call_cost(call)).sum();
    close("calls", &total["memory_calls"], calls.len() as f64);
    close("cost of memory", &total["memory_cost"], memory);
    let without = total["without_diarist"].as_f64().unwrap();
    close("net", &total["net"], without - sums.cost - memory);
    println!(
        "cost ${:.4}, memory ${memory:.4}, without about ${without:.4}; with a cache that forgets nothing ${:.4}",
        sums.cost, sums.without
    );
    // An estimate by bytes, of conversations that only grow.
    assert!(
        (without / sums.without - 1.0).abs() < 0.1,
        "{without} {}",
        sums.without
    );
    // Each tenant pays for its own memory.
    for credential in TENANTS {
        let own = day
            .answered
            .iter()
            .find(|it| it.now.record.credential.reveal() == credential);
        let tenant = own.unwrap().line["tenant"].as_str().unwrap();
        let told = &report(play, &["--tenant", tenant])["total"]["memory_cost"];
        let calls = calls
            .iter()
            .filter(|call| call.credential.reveal() == credential);
        close(tenant, told, calls.map(|call| call_cost(call)).sum());
    }
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
        ("forked", "from an earlier message"),
        ("idle", "pause was longer"),
        ("provider", "only the provider knows"),
        ("memory_switched", "on for one request and off"),
        ("cache_marks", "up to marks"),
    ] {
        let id = text(sample(cause), "request_id");
        let output = audit(play, &["--why", &id]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(word), "{cause}: {said}");
    }
}

/// A call of the Observer that fails is in the report, and a check for monitoring sees it.
async fn fails_once(play: &Play) {
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
    let talk = Talk::new("failing");
    for turn in 1..30 {
        assert_eq!(rig.send(&talk.body(turn)).await.status, 200);
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
