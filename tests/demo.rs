//! The real binary plays: `demo`, `replay`, and `threads` on what a replay left behind.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod replay;
mod story;
mod threads;

use assert_cmd::Command;
use diarist_provider::{Conversation, Style};
use serde_json::json;

/// The binary in an environment of its own: no key, no configuration of the machine.
fn diarist(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("diarist"));
    command.env_clear().env("HOME", "/home/ada").args(args);
    command
}

/// What it printed, and the code it ended with.
fn run(args: &[&str]) -> (String, Option<i32>) {
    let output = diarist(args).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let complained = String::from_utf8(output.stderr).unwrap();
    (stdout + &complained, output.status.code())
}

/// The number in column `at` (from 0) behind `name` in a table. Dollars come in their smallest unit
/// shown, a hundredth of a cent.
fn number(text: &str, name: &str, at: usize) -> u64 {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(name))
        .unwrap_or_else(|| panic!("no line {name:?} in\n{text}"));
    let rest = line.trim_start().strip_prefix(name).unwrap();
    let cell = rest.split_whitespace().nth(at);
    let cell = cell.unwrap_or_else(|| panic!("no column {at} in {line:?}"));
    cell.replace([',', '$', '.'], "").parse().unwrap()
}

/// Conversations in a file, one a line, as recordings are kept.
fn recording(folder: &tempfile::TempDir, conversations: &[Conversation]) -> String {
    let lines: String = conversations
        .iter()
        .map(|one| {
            let line = json!({
                "id": one.id, "source": one.source, "tools": one.tools, "messages": one.messages,
            });
            format!("{line}\n")
        })
        .collect();
    let path = folder.path().join("recorded.jsonl");
    std::fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

/// One that is long enough for two activations and a reflection at 2,000 and 1,000 tokens.
fn long() -> Conversation {
    Conversation::generate(3, 30, Style::Coding)
}

/// One that never reaches 2,000 tokens.
fn short() -> Conversation {
    let texts = [
        ("user", "Hello."),
        ("assistant", "Hello!"),
        ("user", "And?"),
        ("assistant", "So."),
    ];
    Conversation {
        id: "short".to_owned(),
        source: "made up".to_owned(),
        tools: None,
        messages: texts
            .map(|(role, text)| json!({"role": role, "content": text}))
            .to_vec(),
        facts: Vec::new(),
    }
}
