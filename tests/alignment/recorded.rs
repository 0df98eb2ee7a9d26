//! The recordings of real clients, where they lie beside the project, in the order in which they were
//! made: what does not go out was shown to the Observer, and the Observer is not shown things again
//! and again. A table tells the rest.

use std::collections::HashSet;

use diarist::provider::{Options, Part};
use serde_json::Value;

use crate::rig::Rig;

const CLIENTS: [&str; 10] = [
    "ai-sdk",
    "aider",
    "codex-via-litellm",
    "continue",
    "langchain",
    "litellm",
    "llm-cli",
    "openai-agents",
    "openai-python",
    "opencode",
];

fn recording(client: &str) -> Option<Vec<Value>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/clients");
    let lines = std::fs::read_to_string(format!("{folder}/{client}.jsonl")).ok()?;
    Some(
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

/// The words of a message as the Observer would be shown them: enough to know them by.
fn words(message: &Value) -> Option<String> {
    let said = match &message["content"] {
        Value::String(said) => said.clone(),
        Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
        _ => return None,
    };
    let line = said.trim().lines().next()?.trim().to_owned();
    // What redaction or escaping may change proves nothing here.
    let plain = line.chars().all(|c| c.is_alphanumeric() || c == ' ');
    (plain && line.len() >= 16).then_some(line)
}

#[derive(Debug, Default)]
struct Row {
    requests: usize,
    refused: usize,
    views: i64,
    active: usize,
    raw: usize,
    left_out: usize,
    calls: usize,
    shown: i64,
    confirmed: i64,
}

async fn number(rig: &Rig, query: &'static str) -> i64 {
    use sqlx::ConnectOptions as _;
    let file = rig.folder.path().join("diarist.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut database = options.connect().await.unwrap();
    sqlx::query_scalar(query)
        .fetch_one(&mut database)
        .await
        .unwrap()
}

async fn replay(lines: &[Value]) -> Row {
    let rig = Rig::with(
        Options::default(),
        &[
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "1000"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "20000"),
        ],
    )
    .await;
    let mut row = Row::default();
    for line in lines {
        row.requests += 1;
        let mut body = line["body"].clone();
        body["stream"] = Value::Bool(false);
        body.as_object_mut().unwrap().remove("stream_options");
        body["tools"].take();
        body.as_object_mut().unwrap().remove("tools");
        let headers: Vec<(&str, &str)> = ["x-session-id", "x-conversation-id"]
            .into_iter()
            .filter_map(|name| Some((name, line["headers"][name].as_str()?)))
            .collect();
        let answer = rig.send_as("Bearer sk-test", &headers, &body).await;
        rig.quiet().await;
        if answer.status != 200 {
            row.refused += 1;
            continue;
        }
        row.active += usize::from(answer.memory().starts_with("active"));
        let got = rig.provider.record_of(Part::Actor).pop().unwrap();
        let sent = got.json().unwrap();
        let sent: HashSet<String> = sent["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(Value::to_string)
            .collect();
        let shown: String = rig
            .provider
            .record_of(Part::Observer)
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.body).into_owned())
            .collect();
        for message in body["messages"].as_array().unwrap() {
            if sent.contains(&message.to_string()) {
                row.raw += 1;
                continue;
            }
            row.left_out += 1;
            if let Some(words) = words(message) {
                assert!(
                    shown.contains(&words),
                    "{words:?} is neither sent nor observed"
                );
            }
        }
    }
    row.calls = rig.provider.record_of(Part::Observer).len();
    row.views = number(&rig, "SELECT count(*) FROM views").await;
    row.shown = number(&rig, "SELECT coalesce(sum(shown_tokens), 0) FROM accounts").await;
    row.confirmed = number(
        &rig,
        "SELECT coalesce(sum(confirmed_tokens), 0) FROM accounts",
    )
    .await;
    row
}

#[tokio::test(flavor = "multi_thread")]
async fn real_clients_lose_nothing_and_cost_no_more_than_they_say() {
    println!("client             requests refused views active    raw  left out  calls  shown/new");
    for client in CLIENTS {
        let Some(lines) = recording(client) else {
            println!("{client}: no recording beside the project");
            continue;
        };
        let row = replay(&lines).await;
        println!(
            "{client:18} {:8} {:7} {:5} {:6} {:6} {:9} {:6}  {}/{}",
            row.requests,
            row.refused,
            row.views,
            row.active,
            row.raw,
            row.left_out,
            row.calls,
            row.shown,
            row.confirmed
        );
        assert!(row.shown * 2 <= row.confirmed * 3, "{client}: {row:?}");
        assert!(row.refused * 4 < row.requests, "{client}: {row:?}");
    }
}
