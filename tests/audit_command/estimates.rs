//! Where prices come from, and what the estimate without Diarist assumes.

use assert_cmd::Command;
use serde_json::{Value, json};

use super::{Files, PRICES, command, stderr, stdout};

#[test]
fn command_line_prices_override_configured_prices() {
    let files = Files::new();
    let config = files.folder.path().join("diarist.toml");
    let path = files.path();
    let text =
        format!("[audit]\npath = {path:?}\nprices = [\"big=2,0.5,10\", \"writes=4,0.4,20,5\"]");
    std::fs::write(&config, text).unwrap();
    let cost = |command: &mut Command, args: &[&str]| {
        let assert = command.args(args).args(["--format", "json"]).assert();
        let report: Value = serde_json::from_str(&stdout(&assert.success())).unwrap();
        report["total"]["cost"].clone()
    };
    let config = ["--config", config.to_str().unwrap()];
    let expected = files.json(&[])["total"]["cost"].clone();
    assert!(expected.is_number());
    assert_eq!(cost(&mut command(&[]), &config), expected);
    assert_eq!(cost(&mut files.audit(&[]), &config), expected);
    assert_eq!(cost(&mut files.audit(&[]), &[]), Value::Null, "no price");
    let free = ["--price", "big=0,0,0", "--price", "writes=0,0,0"];
    let args = [&config[..], &free].concat();
    assert_eq!(cost(&mut command(&[]), &args), json!(0.0));
}

#[test]
fn the_report_states_the_cache_assumption_of_the_estimate_without_diarist() {
    let files = Files::new();
    let text = |args: &[&str]| {
        let args = [&PRICES[..], args].concat();
        stdout(&files.audit(&args).assert().success())
    };
    assert!(text(&[]).contains("its beginning always cached"));
    let forgetting = text(&["--repeat-forgetting"]);
    assert!(
        forgetting.contains("cached unless the provider was seen to forget"),
        "{forgetting}"
    );
    let json = |args: &[&str]| files.json(args)["repeats_forgetting"].clone();
    assert_eq!(
        (json(&[]), json(&["--repeat-forgetting"])),
        (json!(false), json!(true))
    );
}

#[test]
fn two_prices_of_one_model_are_an_error() {
    let files = Files::new();
    let twice = [
        "--price",
        "big=1,1,1",
        "--price",
        "own=1,1,1",
        "--price",
        "big=2,1,1",
    ];
    let message = stderr(&files.audit(&twice).assert().code(1));
    assert!(message.contains("--price names big twice"), "{message}");
    let message = stderr(&files.audit(&["--check", "errors=>2"]).assert().code(2));
    assert!(message.contains("write >= or <="), "{message}");
}
