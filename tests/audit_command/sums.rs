//! Whatever the rows stand for, they add up to the total: also memory's calls and what they cost.

use serde_json::Value;

use super::{command, request, stdout};

const PRICES: [&str; 4] = ["--price", "big=2,0.5,10", "--price", "nano=1,0.1,4"];

/// The numbers that are sums; shares are none.
const SUMS: [&str; 14] = [
    "requests",
    "errors",
    "prompt_tokens",
    "cached_tokens",
    "uncached_tokens",
    "completion_tokens",
    "memory_calls",
    "memory_prompt_tokens",
    "important_items",
    "lost_items",
    "cost",
    "memory_cost",
    "without_diarist",
    "net",
];

fn memory(time: &str, thread: &str, fields: &str) -> String {
    format!(
        r#"{{"time":"2026-11-{time}.000Z","tenant":"ada","thread":"{thread}","model":"nano",{fields}}}"#
    )
}

/// A conversation with `big` and memory by `nano`, one that asks `nano` itself, and a call of which no request is known.
fn lines() -> String {
    let who = ("ada", "main");
    let call = r#""call":"observe","outcome":"kept","prompt_tokens":1000000,"completion_tokens":0"#;
    let usage = r#""status":200,"prompt_tokens":1000000,"cached_tokens":0,"completion_tokens":0"#;
    [
        request("r1", "22T08:00:00", who, "big", usage),
        request("r2", "23T08:00:00", ("ada", "side"), "nano", usage),
        memory("23T08:01:00", "main", call),
        memory(
            "23T08:01:01",
            "main",
            r#""wrote":"observation","kept":{"high":[9,10]}"#,
        ),
        memory("23T08:02:00", "unknown", call),
        request(
            "r3",
            "23T08:03:00",
            who,
            "big",
            &format!(r#"{usage},"verdict":"miss","verdict_cause":"activation""#),
        ),
    ]
    .join("\n")
}

struct Report(tempfile::TempDir);

impl Report {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("audit.jsonl"), lines()).unwrap();
        Self(folder)
    }

    fn json(&self, args: &[&str]) -> Value {
        let args = [&PRICES[..], args, &["--format", "json", "audit.jsonl"]].concat();
        let mut command = command(&args);
        let assert = command.current_dir(self.0.path()).assert().success();
        serde_json::from_str(&stdout(&assert)).unwrap()
    }

    /// The number of the row with this name; `None` without such a row.
    fn cell(&self, by: &str, row: &str, number: &str) -> Option<f64> {
        let report = self.json(&["--by", by]);
        let field = report["by"].as_array().unwrap().last().unwrap().clone();
        let mut rows = report["groups"].as_array().unwrap().iter();
        let row = rows.find(|it| it[field.as_str().unwrap()] == row)?;
        row[number].as_f64()
    }
}

#[test]
fn the_rows_add_up_to_the_total() {
    let report = Report::new();
    for by in ["model", "thread", "tenant", "day", "cause"] {
        let report = report.json(&["--by", by]);
        for name in SUMS {
            let rows = report["groups"].as_array().unwrap().iter();
            let sum: f64 = rows.filter_map(|row| row[name].as_f64()).sum();
            let total = report["total"][name].as_f64().unwrap();
            assert!((sum - total).abs() < 1e-6, "{by} {name}: {sum} of {total}");
        }
    }
}

#[test]
fn a_call_of_memory_is_charged_to_the_model_of_its_conversation() {
    let report = Report::new();
    let cell = |row, number| report.cell("model", row, number);
    assert_eq!(cell("big", "memory_cost"), Some(1.0));
    assert_eq!(cell("big", "net"), Some(-1.0));
    assert_eq!(cell("big", "lost_items"), Some(1.0));
    assert_eq!(cell("nano", "memory_cost"), Some(0.0));
    // No line says what its conversation asks.
    assert_eq!(cell("memory", "memory_cost"), Some(1.0));
    for (model, requests, memory) in [("big", 2, 1.0), ("nano", 1, 0.0), ("memory", 0, 1.0)] {
        let total = &report.json(&["--model", model])["total"];
        assert_eq!(total["requests"], requests, "{model}");
        assert_eq!(total["memory_cost"], memory, "{model}");
    }
    // What came before the period still says whose call it is.
    let later = &report.json(&["--model", "big", "--since", "2026-11-23"])["total"];
    assert_eq!(later["memory_cost"], 1.0);
}

#[test]
fn the_report_names_the_command_that_shows_lost_items() {
    let report = Report::new();
    let text = |args: &[&str]| {
        let mut command = command(&[args, &["audit.jsonl"]].concat());
        stdout(&command.current_dir(report.0.path()).assert().success())
    };
    let hint = "The important items that were lost: diarist threads show";
    assert!(text(&["--thread", "main"]).contains(&format!("{hint} main --lost\n")));
    assert!(text(&[]).contains(&format!("{hint} CONVERSATION --lost\n")));
    assert!(
        !text(&["--thread", "side"]).contains(hint),
        "nothing was lost there"
    );
}

#[test]
fn the_cost_of_memory_has_its_own_row_beside_the_causes() {
    let report = Report::new();
    let cell = |row, number| report.cell("cause", row, number);
    assert_eq!(cell("memory", "memory_cost"), Some(2.0));
    assert_eq!(cell("memory", "memory_calls"), Some(2.0));
    assert_eq!(cell("memory", "net"), Some(-2.0));
    assert_eq!(cell("memory", "lost_items"), Some(1.0));
    assert_eq!(cell("activation", "requests"), Some(1.0));
}
