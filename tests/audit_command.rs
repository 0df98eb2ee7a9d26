//! `diarist audit` on a made day: two tenants with the same thread names, three models, lines without usage, lines
//! of memory, and lines that are none. Every number was computed by hand.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod estimates;
mod files;
mod reported;
mod sums;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Stdio;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use serde_json::{Value, json};
use tempfile::TempDir;

const PRICES: [&str; 4] = ["--price", "big=2,0.5,10", "--price", "writes=4,0.4,20,5"];

/// One request line: time of the day, tenant, thread, model, and further fields.
fn request(id: &str, time: &str, who: (&str, &str), model: &str, fields: &str) -> String {
    let (tenant, thread) = who;
    format!(
        r#"{{"time":"2026-11-{time}.000Z","request_id":"{id}","tenant":"{tenant}","thread":"{thread}","model":"{model}","stream":false,{fields}}}"#
    )
}

fn day() -> String {
    let (ada, bob) = (("ada", "main"), ("bob", "main"));
    let lines = [
        // Went out as it came: 1,000,000 tokens, none cached. $2 + $1 = $3, and as much without Diarist.
        request("r1", "22T08:00:00", ada, "big",
            r#""status":200,"memory":"watching","bytes_received":500,"bytes_sent":500,"messages_received":1,"messages_sent":1,"prompt_tokens":1000000,"cached_tokens":0,"completion_tokens":100000,"total_ms":9,"ended":"complete""#),
        // 500,000 × $2 + 500,000 × $0.5 + $1 = $2.25, and as much without.
        request("r2", "22T08:01:00", ada, "big",
            r#""status":200,"memory":"watching","bytes_received":500,"bytes_sent":500,"messages_received":3,"messages_sent":3,"prompt_tokens":1000000,"cached_tokens":500000,"completion_tokens":100000,"total_ms":9,"ended":"complete""#),
        // Active: 400,000 tokens sent of 1,600,000. $0.8 + $1 = $1.8. Without: 1,000,000 cached ($0.5), 600,000 new
        // ($1.2), answer $1: $2.7.
        request("r3", "23T08:02:00", ada, "big",
            r#""status":200,"memory":"active","snapshot":"7","cut":3,"cause":"threshold","rung":"whole","reason":"longest","bytes_received":4000,"bytes_sent":1000,"messages_received":5,"messages_sent":3,"prompt_tokens":400000,"cached_tokens":0,"completion_tokens":100000,"total_ms":9,"ended":"complete","verdict":"partial","verdict_cause":"activation""#),
        // The same name of another tenant, another model, with writes: 100,000 × $4 + 100,000 × $0.4 + 200,000 × $5
        // + 50,000 × $20 = $0.4 + $0.04 + $1 + $1 = $2.44, and as much without.
        request("r4", "23T09:00:00", bob, "writes",
            r#""status":200,"memory":"watching","bytes_received":500,"bytes_sent":500,"messages_received":1,"messages_sent":1,"prompt_tokens":400000,"cached_tokens":100000,"cache_write_tokens":200000,"completion_tokens":50000,"total_ms":9,"ended":"complete""#),
        // A stream without usage.
        request("r5", "23T09:01:00", bob, "big",
            r#""status":200,"memory":"watching","bytes_received":5,"bytes_sent":5,"total_ms":9,"ended":"complete""#),
        // A prompt without a count of its cached part, and a model without a price.
        request("r6", "23T09:02:00", bob, "own-model",
            r#""status":200,"memory":"watching","bytes_received":5,"bytes_sent":5,"prompt_tokens":700,"completion_tokens":7,"total_ms":9,"ended":"complete","reasoning_tokens":5"#),
        // Refused: an error that costs nothing.
        request("r7", "23T09:03:00", bob, "big",
            r#""status":429,"memory":"watching","bytes_received":5,"bytes_sent":5,"total_ms":9,"ended":"complete""#),
        // Memory: 200,000 × $2 + 300,000 × $0.5 + 10,000 × $10 = $0.65.
        r#"{"time":"2026-11-23T08:01:30.000Z","call":"observe","tenant":"ada","thread":"main","model":"big","prompt_tokens":500000,"cached_tokens":300000,"completion_tokens":10000,"outcome":"stored","total_ms":800}"#.to_owned(),
        r#"{"time":"2026-11-23T08:01:31.000Z","wrote":"observation","part":"7","tenant":"ada","thread":"main","model":"big","messages":[1,3],"tokens_in":400,"tokens_out":40,"kept":{"name":[3,3],"high":[9,10]}}"#.to_owned(),
        // Half a line with the next one behind it, a line of something else, an empty one.
        r#"{"time":"2026-11-23T08:01:31.000Z","request_id":"tor{"time":"2026-11-23T09:01:00.000Z"}"#.to_owned(),
        r#"{"timestamp":"2026-11-23T08:01:31Z","level":"INFO","message":"ready"}"#.to_owned(),
        String::new(),
    ];
    lines.join("\n") + "\n{\"time\":\"2026-11-2"
}

struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("audit.jsonl"), day()).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("audit.jsonl")
    }

    fn audit(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.arg(self.path());
        command
    }

    /// The report as JSON.
    fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = PRICES.iter().chain(args).copied().collect();
        let assert = self.audit(&args).args(["--format", "json"]).assert();
        serde_json::from_str(&stdout(&assert.success())).unwrap()
    }
}

/// The command in an environment of its own.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("diarist"));
    command.env_clear().env("HOME", "/home/ada");
    command.arg("audit").args(args);
    command
}

fn stdout(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

/// The named numbers of a group.
fn numbers(group: &Value, names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| group[name].clone()).collect()
}

#[test]
fn the_totals_of_a_day_are_exact() {
    let total = &Files::new().json(&[])["total"];
    let expected = json!({
        "requests": 7, "errors": 1, "error_rate": 0.142_857_143, "active": 1, "active_share": 0.142_857_143,
        "no_usage": 1, "no_cached": 1, "prompt_tokens": 2_800_700, "cached_tokens": 600_000,
        // 600,000 of the 2,800,000 of prompts that report both.
        "hit_rate": 0.214_285_714, "cache_write_tokens": 200_000, "completion_tokens": 350_007,
        "reasoning_tokens": 5, "memory_calls": 1, "unusable_calls": 0, "memory_prompt_tokens": 500_000,
        "memory_cached_tokens": 300_000, "memory_completion_tokens": 10_000,
        "cost": 9.49, "memory_cost": 0.65, "without_diarist": 10.39, "net": 0.25,
        "unpriced_requests": 2, "unpriced_calls": 0,
        // 1,600,000 of 4,000,000, as the costs without Diarist are computed above.
        "without_prompt_tokens": 4_000_000, "without_hit_rate": 0.4,
        // 5 bytes, where 2,000 bytes of this model were 2,400,000 tokens.
        "unreported_prompt_tokens": 6_000, "important_items": 10, "lost_items": 1,
        "uncached_tokens": 2_200_000,
        // The third request: 300,000 tokens less, or as many more and half of its beginning forgotten.
        "without_low": 9.79, "without_high": 11.740_048, "net_low": -0.35, "net_high": 1.600_048,
        "impossible_usage": 0, "one_sided_requests": 0, "unreported_requests": 1,
    });
    assert_eq!(*total, expected, "{total:#}");
}

#[test]
fn groups_are_sorted_by_the_requested_column() {
    let files = Files::new();
    let order = |by: &str, sort: &str| -> Vec<String> {
        let args = ["--by", by, "--sort", sort];
        let groups = files.json(&args)["groups"].as_array().unwrap().clone();
        let field = if by == "thread" { "tenant" } else { by };
        let names = groups.iter().map(|group| group[field].as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    // Uncached: 1,900,000 and 300,000. Unknown numbers stand last.
    assert_eq!(order("model", "uncached"), ["big", "writes", "own-model"]);
    assert_eq!(order("model", "cost"), ["big", "writes", "own-model"]);
    assert_eq!(order("model", "net"), ["writes", "big", "own-model"]);
    assert_eq!(order("thread", "prompt"), ["ada", "bob"]);
    assert_eq!(order("thread", "net"), ["bob", "ada"]);
    command(&["--sort", "net"]).assert().failure().code(64);
}

#[test]
fn groups_are_exact_and_tenants_with_equal_thread_names_stay_apart() {
    let files = Files::new();
    let of_group = |args: &[&str], key: &[&str]| -> Vec<Vec<Value>> {
        let report = files.json(args);
        let names = [
            key,
            &["requests", "prompt_tokens", "hit_rate", "cost", "net"],
        ]
        .concat();
        let groups = report["groups"].as_array().unwrap().iter();
        groups.map(|group| numbers(group, &names)).collect()
    };
    assert_eq!(
        json!(of_group(&["--by", "thread"], &["tenant", "thread"])),
        json!([
            ["ada", "main", 3, 2_400_000, 0.208_333_333, 7.05, 0.25],
            ["bob", "main", 4, 400_700, 0.25, 2.44, 0.0],
        ])
    );
    assert_eq!(
        json!(of_group(&["--by", "model"], &["model"])),
        json!([
            ["big", 5, 2_400_000, 0.208_333_333, 7.05, 0.25],
            ["writes", 1, 400_000, 0.25, 2.44, 0.0],
            ["own-model", 1, 700, null, null, null],
        ])
    );
    // What the day before sent is still known on the second day.
    assert_eq!(
        json!(of_group(&["--by", "day"], &["day"])),
        json!([
            ["2026-11-22", 2, 2_000_000, 0.25, 5.25, 0.0],
            ["2026-11-23", 5, 800_700, 0.125, 4.24, 0.25],
        ])
    );
    assert_eq!(
        json!(of_group(
            &["--by", "tenant", "--since", "2026-11-23"],
            &["tenant"]
        )),
        json!([
            ["bob", 4, 400_700, 0.25, 2.44, 0.0],
            ["ada", 1, 400_000, 0.0, 1.8, 0.25]
        ])
    );
    // Calls of memory have no cause, and a line of their own.
    assert_eq!(
        json!(of_group(&["--by", "cause"], &["verdict_cause"])),
        json!([
            ["", 6, 2_400_700, 0.25, 7.69, 0.0],
            ["activation", 1, 400_000, 0.0, 1.8, 0.9],
            ["memory", 0, null, null, 0.0, -0.65],
        ])
    );
}

#[test]
fn filters_count_only_the_matching_requests() {
    let files = Files::new();
    let requests = |args: &[&str]| files.json(args)["total"]["requests"].as_u64().unwrap();
    assert_eq!(requests(&["--tenant", "ada"]), 3);
    assert_eq!(requests(&["--thread", "main"]), 7);
    assert_eq!(requests(&["--thread", "other"]), 0);
    assert_eq!(requests(&["--model", "writes"]), 1);
    assert_eq!(requests(&["--until", "2026-11-23"]), 2);
    let hour = [
        "--since",
        "2026-11-23T09:01:00Z",
        "--until",
        "2026-11-23T10:03:00+01:00",
    ];
    assert_eq!(requests(&hour), 2);
}

#[test]
fn the_report_names_unknown_prices_and_left_out_lines() {
    let files = Files::new();
    let assert = files.audit(&PRICES).assert().success();
    let text = stdout(&assert);
    for expected in [
        "From 2026-11-22 08:00 to 2026-11-23 09:03 UTC",
        "leave out 1 request without usage",
        "The hit rate leaves out 1 request ",
        "No price is known for: own-model.",
        "The costs leave out 2 requests ",
        "estimate",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let text = stderr(&assert);
    assert!(
        text.contains("2 lines left out: they are not JSON"),
        "{text}"
    );
    assert!(
        text.contains("1 line left out: it is JSON, but not of the audit"),
        "{text}"
    );
    // Without any price there is no money.
    let text = stdout(&files.audit(&[]).assert().success());
    assert!(
        !text.contains('$') && text.contains("big, own-model, writes"),
        "{text}"
    );
}

#[test]
fn gzipped_files_and_standard_input_are_combined_into_one_report() {
    let files = Files::new();
    let zipped = files.folder.path().join("audit.jsonl.1.gz");
    let mut gzip = flate2::write::GzEncoder::new(
        std::fs::File::create(&zipped).unwrap(),
        flate2::Compression::fast(),
    );
    gzip.write_all(day().as_bytes()).unwrap();
    gzip.finish().unwrap();
    let assert = files
        .audit(&[
            "--format",
            "csv",
            "--by",
            "tenant",
            zipped.to_str().unwrap(),
            "-",
        ])
        .write_stdin(day())
        .assert()
        .success();
    let text = stdout(&assert);
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert!(lines[0].starts_with("tenant,requests,errors,"), "{text}");
    assert!(lines[1].starts_with("ada,9,0,0,3,"), "{text}");
    assert!(lines[2].starts_with("bob,12,3,0.25,0,"), "{text}");
    assert_eq!(lines[3..], [""], "{text}");
}

#[test]
fn the_configured_file_is_read_if_none_is_named() {
    let files = Files::new();
    let path = files.path();
    let assert = command(&["--audit", path.to_str().unwrap()])
        .assert()
        .success();
    assert!(stdout(&assert).contains("requests"));
    let message = stderr(&command(&[]).assert().code(1));
    assert!(message.contains("give the file"), "{message}");
    let message = stderr(&command(&["/nowhere/audit.jsonl"]).assert().code(1));
    assert!(
        message.contains("cannot read /nowhere/audit.jsonl"),
        "{message}"
    );
}

#[test]
fn a_check_reports_its_result_as_exit_code() {
    let files = Files::new();
    let check = |conditions: &str, code: i32| {
        let assert = files.audit(&PRICES).args(["--check", conditions]).assert();
        stderr(&assert.code(code))
    };
    assert!(!check("net>=0.2,requests==7", 0).contains("hold"));
    let message = check("hit_rate>=0.8,net>=0", 1);
    assert!(
        message.contains("hit_rate>=0.8 does not hold: hit_rate is 0.214285714"),
        "{message}"
    );
    assert!(!message.contains("net"), "{message}");
    let message = check("hitrate>=0.8", 2);
    assert!(message.contains("hit_rate"), "{message}");
    let mut nothing = files.audit(&["--since", "2090-01-01", "--check", "errors==0"]);
    let message = stderr(&nothing.assert().code(2));
    assert!(message.contains("nothing was checked"), "{message}");
    let unreadable = ["--check", "net>=0", "/nowhere/audit.jsonl"];
    command(&unreadable).assert().code(2);
}

#[test]
fn a_request_is_explained_by_the_previous_line_of_its_conversation() {
    let files = Files::new();
    let explained = |id: &str| {
        let assert = files.audit(&PRICES).args(["--why", id]).assert().success();
        stdout(&assert)
    };
    let text = explained("r3");
    for expected in [
        "Tenant ada, conversation main, model big.",
        "Observations (snapshot 7) replaced 3 messages.",
        "They cost $1.8000.",
        "It is compared with the request that came at 2026-11-22T08:01:00.000Z and ended 24 h before this one came",
        "(an activation)",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    // Ada's requests came before it, under the same name.
    let text = explained("r4");
    assert!(text.contains("No earlier request of this tenant"), "{text}");
    let message = stderr(&files.audit(&["--why", "nobody"]).assert().code(1));
    assert!(
        message.contains("no line has the request_id \"nobody\""),
        "{message}"
    );
}

/// As the verdict compares: not with the one that came last, nor with one that was refused.
#[test]
fn overlapping_requests_are_compared_with_the_one_that_ended_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let line =
        |id: &str, time: &str, fields: &str| request(id, time, ("ada", "main"), "big", fields);
    let lines = [
        line("short", "22T08:00:10", r#""status":200,"total_ms":1000"#),
        line("refused", "22T08:00:12", r#""status":400,"total_ms":1000"#),
        line(
            "failed",
            "22T08:00:12",
            r#""status":200,"error":"error","total_ms":2000"#,
        ),
        line("long", "22T08:00:00", r#""status":200,"total_ms":20000"#),
        line(
            "this",
            "22T08:00:15",
            r#""status":200,"idle_ms":0,"verdict":"miss","total_ms":9000"#,
        ),
        line("last", "22T08:00:16", r#""status":200,"total_ms":60000"#),
    ];
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let explained = |id: &str| {
        let mut command = command(&["--why", id]);
        stdout(&command.arg(&path).assert().success())
    };
    let text = explained("this");
    let expected = "came at 2026-11-22T08:00:00.000Z and ended while this one was in progress";
    assert!(text.contains(expected), "{text}");
    let text = explained("last");
    assert!(text.contains("came at 2026-11-22T08:00:15.000Z"), "{text}");
    assert!(explained("short").contains("No earlier request"));
}

#[test]
fn the_html_report_loads_nothing_from_elsewhere() {
    let files = Files::new();
    let page = stdout(
        &files
            .audit(&PRICES)
            .args(["--format", "html"])
            .assert()
            .success(),
    );
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for expected in [
        "prefers-color-scheme: dark",
        "2026-11-22: 25.0 %",
        "<td>$0.2500<small>-$0.3500 to $1.6000</small></td>",
        "own-model",
        ">activation</td><td>1</td><td>400,000</td><td>400,000</td><td>0.0 %</td>",
        "<td>1 of 10</td>",
        "<b>1 of 10</b><span>important items lost</span>",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    assert_eq!(page.matches("<svg").count(), 2, "{page}");
    assert!(
        !page.contains("<script") && !page.contains("http"),
        "{page}"
    );
    // The call of memory has no price: a bar of what it would have cost without it would stand alone.
    let page = stdout(
        &files
            .audit(&["--format", "html", PRICES[2], PRICES[3]])
            .assert()
            .success(),
    );
    assert!(page.contains("days have no bars"), "{page}");
    let costs = page.split("Cost by day").nth(1).unwrap_or_default();
    assert!(!costs.contains("<rect class=\"second\""), "{page}");
    let message = stderr(
        &files
            .audit(&["--format", "html", "--by", "day"])
            .assert()
            .code(1),
    );
    assert!(message.contains("leave out --by"), "{message}");
}

/// A command that runs until it is killed.
struct Watching(std::process::Child);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_watched_audit_file_is_reported_again_after_growth_and_rotation() {
    let files = Files::new();
    let path = files.path();
    let line = |id: &str| {
        request(
            id,
            "23T09:00:00",
            ("ada", "main"),
            "big",
            r#""memory":"off""#,
        )
    };
    std::fs::write(&path, line("a") + "\n" + &line("b")[..40]).unwrap();
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("diarist"))
        .env_clear()
        .args(["audit", "--watch", "--format", "json"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut watching = Watching(child);
    let mut reports = BufReader::new(watching.0.stdout.take().unwrap()).lines();
    let mut requests = || -> u64 {
        let report: Value = serde_json::from_str(&reports.next().unwrap().unwrap()).unwrap();
        assert_eq!(report["torn_lines"], 0, "{report}");
        report["total"]["requests"].as_u64().unwrap()
    };
    assert_eq!(requests(), 1);
    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    file.write_all(format!("{}\n", &line("b")[40..]).as_bytes())
        .unwrap();
    assert_eq!(requests(), 2);
    std::fs::rename(&path, files.folder.path().join("audit.jsonl.1")).unwrap();
    std::fs::write(&path, line("c") + "\n").unwrap();
    assert_eq!(requests(), 3);
    let message = stderr(&command(&["--watch", "a", "b"]).assert().code(1));
    assert!(message.contains("follows one file"), "{message}");
}

/// Three days of three conversations, two of them with the same name: what the samples of `docs/audit.md` show.
fn sample_days() -> String {
    let mut text = String::new();
    for (tenant, thread, model) in [
        ("6739d3a48a1a", "trip", "claude-sonnet-5"),
        ("f2c09b1e77d4", "trip", "claude-sonnet-5"),
        ("6739d3a48a1a", "notes", "own-model"),
    ] {
        let mut before = 0;
        for turn in 0..60_u64 {
            let day = 21 + turn / 20;
            let time = format!(
                "2026-11-{day}T{:02}:{:02}:00.000Z",
                9 + turn % 20 / 3,
                turn % 3 * 20
            );
            let whole = 4_000 + 1_500 * turn;
            let activations = whole.saturating_sub(20_000) / 20_000;
            let active = activations > 0;
            let sent = if active {
                12_000 + whole % 20_000
            } else {
                whole
            };
            let snapshot = if active {
                format!(r#""snapshot":"{activations}","cut":{activations}8,"cause":"threshold","#)
            } else {
                String::new()
            };
            let activated = sent < before;
            let cached = if activated { 4_096 } else { before / 128 * 128 };
            let state = if active { "active" } else { "watching" };
            let usage = if turn % 20 == 7 {
                String::new()
            } else {
                format!(
                    r#""prompt_tokens":{sent},"cached_tokens":{cached},"completion_tokens":420,"#
                )
            };
            text += &format!(
                r#"{{"time":"{time}","request_id":"{tenant}-{thread}-{turn}","tenant":"{tenant}","thread":"{thread}","model":"{model}","stream":true,"status":200,"messages_received":{},"messages_sent":9,"bytes_received":{},"bytes_sent":{},{snapshot}"rung":"whole","memory":"{state}",{usage}"total_ms":2100,"ended":"complete"}}"#,
                2 * turn + 2,
                whole * 4,
                sent * 4,
            );
            text.push('\n');
            if activated {
                text += &format!(
                    r#"{{"time":"{time}","call":"observe","tenant":"{tenant}","thread":"{thread}","model":"small-model","prompt_tokens":22000,"cached_tokens":1920,"completion_tokens":1500,"outcome":"stored","total_ms":9000}}"#
                );
                text.push('\n');
            }
            before = sent;
        }
    }
    text
}

/// The words of a command as a shell takes them.
fn words(command: &str) -> Vec<String> {
    let quoted = command.split('\'').enumerate();
    quoted
        .flat_map(|(at, piece)| match at % 2 {
            0 => piece.split_whitespace().map(str::to_owned).collect(),
            _ => vec![piece.to_owned()],
        })
        .collect()
}

#[test]
fn the_command_prints_the_samples_of_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("audit.jsonl"), sample_days()).unwrap();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/audit.md")).unwrap();
    let samples: Vec<(&str, &str)> = document
        .split("```text\n$ diarist audit ")
        .skip(1)
        .map(|rest| rest.split_once("\n```").unwrap().0)
        .map(|sample| sample.split_once('\n').unwrap())
        .collect();
    assert!(samples.len() >= 4, "{samples:?}");
    for (typed, shown) in samples {
        let args = words(typed);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = command(&args).current_dir(folder.path()).output().unwrap();
        let printed =
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        let printed = printed.replace('\r', "");
        assert_eq!(
            printed.trim_end(),
            shown,
            "diarist audit {typed}\n{printed}"
        );
    }
}
