//! The metrics of money say what the report says of the same lines, in a process of its own.

use std::process::Command;

use serde_json::Value;

use crate::memory::process::{CONFIG, Program};
use crate::memory::tools::{ACTIVE, Talk, metric};

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
async fn the_metrics_of_money_are_those_of_the_report() {
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
    let talk = Talk::new("ada");
    for turn in 1..=ACTIVE + 6 {
        assert_eq!(program.send(&talk.body(turn)).await.status, 200);
        program.wait_recorded(turn).await;
    }
    let nameless = Talk {
        model: "a model without a price",
        ..Talk::new("bob")
    };
    program.send(&nameless.body(1)).await;
    // The lines are written after the answers.
    let mut total = Value::Null;
    let mut page = String::new();
    for _ in 0..600 {
        total = report(&program)["total"].clone();
        page = program.metrics().await;
        if total["requests"] == ACTIVE + 7 && metric(&page, &unpriced("request")) > 0.0 {
            break;
        }
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
