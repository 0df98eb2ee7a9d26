//! The metrics of money say what the report says of the same lines, in a process of its own.

use std::process::Command;

use diarist_provider::Options;
use serde_json::Value;

use crate::memory::process::{CONFIG, Program};
use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, metric};

const PRICES: &str = "[audit]\nprices = [\"gpt-test=2,0.5,10\", \"observer-mini=0.25,0.025,2\", \"reflector-mini=0.3,0.03,3\"]\n";

fn report(program: &Program) -> Value {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("diarist"))
        .env_clear()
        .env("HOME", "/home/ada")
        .args(["audit", "--format", "json", "--config"])
        .arg(program.path("diarist.toml"))
        .arg(program.path("audit.jsonl"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn series(model: &str, kind: &str) -> String {
    format!("diarist_cost_nanodollars_total{{model=\"{model}\",kind=\"{kind}\"}}")
}

fn without(model: &str) -> String {
    format!("diarist_cost_without_nanodollars_total{{model=\"{model}\"}}")
}

fn unpriced(kind: &str) -> String {
    format!("diarist_unpriced_total{{kind=\"{kind}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_cost_metrics_equal_the_costs_of_the_audit_report() {
    let mut program = Program::start().await;
    program.configure(&format!("{CONFIG}{PRICES}"));
    program.terminate().await;
    program.again().await;
    let page = program.metrics().await;
    for model in ["gpt-test", "observer-mini", "other"] {
        for name in ["request", "observe", "reflect"].map(|kind| series(model, kind)) {
            assert!(page.contains(&format!("{name} 0\n")), "{name}");
        }
        let name = without(model);
        assert!(page.contains(&format!("{name} 0\n")), "{name}");
    }
    for name in ["request", "observe", "reflect"].map(unpriced) {
        assert!(page.contains(&format!("{name} 0\n")), "{name}");
    }
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE + 6 {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
        program.wait_recorded(turn).await;
    }
    let nameless = SampleConversation {
        model: "a model without a price",
        ..SampleConversation::new("bob")
    };
    program.send(&nameless.body(1)).await;
    // The lines are written after the answers, and a call of memory may end between the page and the report.
    let mut total = Value::Null;
    let mut page = String::new();
    for _ in 0..600 {
        let before = std::mem::replace(&mut total, report(&program)["total"].clone());
        let is_complete = |page: &str| {
            total["requests"] == ACTIVE + 7 && metric(page, &unpriced("request")) > 0.0
        };
        if total == before && is_complete(&page) {
            break;
        }
        page = program.metrics().await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let dollars = |name: &str| metric(&page, name) / 1e9;
    let close = |name: &str, expected: &Value, found: f64| {
        let expected = expected.as_f64().unwrap();
        assert!(expected > 0.0, "{name}: {total}");
        // The report rounds to a millionth of a dollar.
        assert!(
            (found - expected).abs() < 2e-6,
            "{name}: {expected} {found}"
        );
    };
    let request = dollars(&series("gpt-test", "request"));
    let memory: f64 = ["observer-mini", "reflector-mini"]
        .iter()
        .flat_map(|model| ["observe", "reflect"].map(|kind| dollars(&series(model, kind))))
        .sum();
    let without = dollars(&without("gpt-test"));
    close("cost", &total["cost"], request);
    close("without", &total["without_diarist"], without);
    close("memory", &total["memory_cost"], memory);
    // Which is larger depends on the prices: here the cache is cheap, and the conversation short.
    assert!((without - request).abs() > 1e-6, "{without} {request}");
    let unknown = metric(&page, &unpriced("request"));
    assert!((unknown - 1.0).abs() < 0.5, "{unknown}");
    assert!(!page.contains("a model without a price\",kind=\"request"));
}

/// A stream that ends before its usage, or never has one, is not counted as nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_without_reported_usage_has_an_estimate_in_the_audit() {
    let rig = Rig::with(Options::default(), &[("AUDIT__ASK_USAGE", "never")]).await;
    let conversation = SampleConversation::new("ada");
    let sent = async |body: Value| {
        let answer = rig.send(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.quiet().await;
        let line = rig.audit_entry(&answer).await;
        let number = |field: &str| line[field].as_u64();
        (number("prompt_tokens"), number("estimated_prompt_tokens"))
    };
    assert_eq!(
        sent(conversation.streamed(1)).await,
        (None, None),
        "the first of its model"
    );
    for turn in 1..=4 {
        let (reported, estimated) = sent(conversation.body(turn)).await;
        assert!(reported.is_some() && estimated.is_none(), "{estimated:?}");
    }
    let (reported, estimated) = sent(conversation.streamed(5)).await;
    assert_eq!(reported, None);
    let truth = u64::from(rig.last().prompt_usage.unwrap().prompt_tokens);
    let estimated = estimated.unwrap();
    assert!(
        estimated.abs_diff(truth) * 10 < truth,
        "{estimated} {truth}"
    );

    let output = std::process::Command::new(env!("CARGO_BIN_EXE_diarist"))
        .args(["audit", "--format", "json"])
        .arg(rig.folder.path().join("audit.jsonl"))
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["total"]["unreported_prompt_tokens"], estimated);
}
