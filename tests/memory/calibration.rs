//! How many tokens the provider counts where Diarist counts one: the figure is right, it is shown, and thresholds follow
//! it only if the operator wants that, without changing a request that went out before.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use diarist::tokens::{O200k, TokenCounter as _};
use diarist_provider::Options;
use serde_json::{Value, json};

use crate::memory::rig::{Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation};

const CALIBRATE: &str = "MEMORY__CALIBRATE_TOKENS";

/// A provider that counts one token for `bytes` bytes.
async fn rig(bytes: usize, calibrate: &str) -> Rig {
    let options = Options {
        count_tokens: Arc::new(move |text| u32::try_from(text.len().div_ceil(bytes)).unwrap()),
        ..Options::default()
    };
    Rig::with(options, &[SMALL[0], SMALL[1], (CALIBRATE, calibrate)]).await
}

/// Sends a turn; its audit line.
async fn line(rig: &Rig, body: &Value) -> Value {
    let answer = rig.send(body).await;
    rig.quiet().await;
    rig.audit_entry(&answer).await
}

/// The first turn of a conversation of this name with observations.
async fn first_active(rig: &Rig, name: &str) -> usize {
    let conversation = SampleConversation::new(name);
    for turn in 1..=ACTIVE {
        if line(rig, &conversation.body(turn)).await["memory"] == "active" {
            return turn;
        }
    }
    panic!("memory is never active");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_ratio_compares_counts_of_the_messages_only() {
    let rig = rig(3, "false").await;
    let conversation = SampleConversation::new("ada");
    let mut ratio = Value::Null;
    for turn in 1..=ACTIVE + 3 {
        let mut body = conversation.body(turn);
        // Diarist does not count these.
        body["tools"] = json!([{"type": "function", "function": {"name": "look", "description": "to look. ".repeat(400)}}]);
        ratio = line(&rig, &body).await["token_ratio"].clone();
        if turn < 4 {
            assert_eq!(ratio, Value::Null, "turn {turn}: too little is known");
        }
    }
    let counter = O200k::new();
    let texts: Vec<String> = conversation.messages(6)[1..]
        .iter()
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect();
    let counted: u32 = texts.iter().map(|text| counter.count(text)).sum();
    let reported: usize = texts.iter().map(|text| text.len().div_ceil(3)).sum();
    let expected = reported as f64 / f64::from(counted);
    let ratio = ratio.as_f64().unwrap();
    assert!((ratio / expected - 1.0).abs() < 0.05, "{ratio} {expected}");
    // Another model has its own.
    let other = SampleConversation {
        model: "another",
        ..conversation
    };
    assert_eq!(line(&rig, &other.body(1)).await["token_ratio"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn thresholds_follow_the_token_ratio_if_calibration_is_on() {
    let mut turns = Vec::new();
    for (bytes, calibrate) in [(2, "false"), (2, "true"), (5, "true")] {
        let rig = rig(bytes, calibrate).await;
        first_active(&rig, "ada").await;
        turns.push(first_active(&rig, "bob").await);
    }
    let [plain, larger, smaller] = turns[..] else {
        panic!("{turns:?}")
    };
    assert!(larger < plain && plain < smaller, "{turns:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_ratio_does_not_change_repeated_requests() {
    let mut rig = rig(2, "true").await;
    let conversation = SampleConversation::new("ada");
    let mut sent: BTreeMap<usize, Bytes> = BTreeMap::new();
    for turn in 1..=ACTIVE + 3 {
        rig.play_turns(&conversation, turn..=turn).await;
        sent.insert(turn, rig.last().body.clone());
    }
    assert_ne!(
        sent[&(ACTIVE + 3)],
        conversation.body(ACTIVE + 3).to_string()
    );
    for round in 0..2 {
        for (turn, body) in sent.iter().rev() {
            rig.send(&conversation.body(*turn)).await;
            assert_eq!(rig.last().body, body, "turn {turn} in round {round}");
        }
        rig.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_the_token_ratio() {
    let mut rig = rig(3, "false").await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let before = line(&rig, &conversation.body(ACTIVE + 1)).await["token_ratio"].clone();
    assert_ne!(before, Value::Null);
    rig.restart().await;
    let other = SampleConversation::new("bob");
    assert_eq!(line(&rig, &other.body(1)).await["token_ratio"], before);
}
