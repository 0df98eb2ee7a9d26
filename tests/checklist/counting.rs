//! Token counts, records that are not there, and refusals that say "too long".

use bytes::Bytes;
use diarist::history::{History, Scope, Spoken};
use diarist::memory::measure;
use diarist::memory::select::{Before, select};
use diarist::store::{SqliteStore, Store as _};
use diarist::tokens::{Estimate, O200k, TokenCounter};
use diarist::wire::chat;
use diarist::wire::usage::{RefusalKind, refusal};
use serde_json::{Value, json};

use super::Check;

pub const CHECKS: &[Check] = &[
    (&[19, 20], nothing_is_nothing_and_counts_are_whole),
    (&[24], reasoning_adds_nothing),
    (&[25], a_large_result_counts_in_full),
    (&[27], a_picture_is_no_text),
    (&[33], what_was_never_recorded),
    (&[39], no_observations),
    (&[139], wordings),
];

fn parsed(messages: &Value) -> chat::Parsed {
    let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
    chat::parse(&Bytes::from(body)).unwrap()
}

fn spoken(message: &Value) -> Spoken {
    parsed(&json!([message])).spoken(0).unwrap()
}

fn weigh(message: &Value) -> u32 {
    measure::message(&spoken(message), "gpt-4o", &O200k::new())
}

fn nothing_is_nothing_and_counts_are_whole() {
    let counts: [u32; 2] = [O200k::new().count(""), Estimate.count("")];
    assert_eq!(counts, [0, 0]);
    let none: Vec<u32> = Vec::new();
    assert_eq!(none.iter().sum::<u32>(), 0);
}

fn reasoning_adds_nothing() {
    let plain = json!({"role": "assistant", "content": "Yes."});
    let mut thought = plain.clone();
    thought["reasoning_content"] = "word ".repeat(5_000).into();
    assert_eq!(weigh(&thought), weigh(&plain));
}

fn a_large_result_counts_in_full() {
    let words = "one two three four five six seven eight ".repeat(4_000);
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": words});
    // The Observer's cap on one result is 5,000.
    assert!(weigh(&result) >= 32_000, "{}", weigh(&result));
}

fn a_picture_is_no_text() {
    let url = format!("data:image/png;base64,{}", "iVBORw0K".repeat(100_000));
    let picture = json!({"role": "user", "content": [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]});
    // 800,000 characters would be 200,000 tokens; eight tiles of OpenAI's are 85 + 8 x 170.
    assert!(weigh(&picture) < 1_500 + 20, "{}", weigh(&picture));
}

fn scope() -> Scope {
    Scope::of(b"key", None)
}

fn history() -> History {
    parsed(&json!([{"role": "user", "content": "hi"}])).history(&scope())
}

fn what_was_never_recorded() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open("sqlite::memory:").await.unwrap();
        let chain: Vec<_> = history().turns().iter().map(|turn| turn.link).collect();
        let found = store.find(&scope(), &chain).await.unwrap();
        assert!(found.snapshots.is_empty() && found.used.is_none() && !found.tip_known);
        let known = store.known(&scope(), &chain).await.unwrap();
        assert!(known.nodes.is_empty() && known.parts.is_empty() && known.lineage.is_none());
        assert!(store.thread(1).await.unwrap().is_none());
    });
}

fn no_observations() {
    assert_eq!(select(&history(), &[], Before::Unseen).snapshot, None);
}

fn wordings() {
    let kind =
        |status: u16, error: Value| refusal(status, json!({"error": error}).to_string().as_bytes());
    let too_long = Some(RefusalKind::TooLong);
    assert_eq!(
        kind(
            400,
            json!({"code": "context_length_exceeded", "message": "no"})
        ),
        too_long
    );
    for wording in [
        "This model's maximum context length is 8192 tokens",
        "This model's maximum prompt length is 131072 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model",
        "Your request exceeds the context window of this model",
        "The prompt exceeds the maximum context length",
        "Your input exceeds the context limit of the model",
        "The request exceeds the available context size",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)",
        "Please reduce the length of the messages or completion",
    ] {
        assert_eq!(
            kind(400, json!({"message": wording})),
            too_long,
            "{wording}"
        );
        for other in [401, 429] {
            assert_ne!(
                kind(other, json!({"message": wording})),
                too_long,
                "{other}: {wording}"
            );
        }
    }
    assert_eq!(
        kind(500, json!({"message": "The server had an error"})),
        None
    );
}
