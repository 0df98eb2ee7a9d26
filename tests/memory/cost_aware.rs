//! The policy that weighs costs, on the wire: when memory is made, when it is used, and what always wins.

use std::time::Duration;

use diarist_provider::Options;

use crate::memory::rig::{PATIENCE, Rig};
use crate::memory::tools::SampleConversation;

/// Small chunks; `message_tokens` is far away.
async fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut all = vec![
        ("MEMORY__POLICY", "cost_aware"),
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "20000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "500"),
        ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "1000"),
    ];
    all.extend_from_slice(settings);
    Rig::with(Options::default(), &all).await
}

/// A price at which memory is made as soon as there is something to observe.
const FREE: [(&str, &str); 3] = [
    ("MEMORY__COST__MAX_LOSS", "10"),
    ("MEMORY__COST__OBSERVER_INPUT", "0"),
    ("MEMORY__COST__OBSERVER_OUTPUT", "0"),
];

/// Prices at which memory never pays.
const DEAR: [(&str, &str); 3] = [
    ("MEMORY__COST__OBSERVER_INPUT", "1000"),
    ("MEMORY__COST__OBSERVER_OUTPUT", "1000"),
    ("MEMORY__COST__HISTORY_LIMIT", "20000"),
];

const SNAPSHOTS: &str = "SELECT count(*) FROM snapshots";
const PARTS: &str = "SELECT count(*) FROM parts";

#[tokio::test(flavor = "multi_thread")]
async fn cheap_memory_is_used_below_the_threshold_once_it_pays() {
    let rig = rig(&FREE).await;
    let conversation = SampleConversation::new("ada");
    // Two turns have paid nothing yet; 30 turns are half of message_tokens.
    let answer = rig.play_turns(&conversation, 1..=4).await;
    assert_eq!(answer.memory(), "watching");
    let answer = rig.play_turns(&conversation, 5..=30).await;
    assert_eq!(answer.memory(), "active");
    let line = rig.audit_entry(&answer).await;
    assert_eq!(line["cause"], "threshold");
}

/// By default costs decide about a model of known price, and thresholds about another one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn known_model_prices_select_the_cost_aware_policy_by_default() {
    let prices = r#"["priced=2,0.2,8", "observer-mini=0,0,0", "reflector-mini=0,0,0"]"#;
    let settings = [
        ("AUDIT__PRICES", prices),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "500"),
        ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "1000"),
        ("MEMORY__COST__MAX_LOSS", "10"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    for (model, memory) in [("priced", "active"), ("gpt-test", "watching")] {
        let conversation = SampleConversation {
            model,
            ..SampleConversation::new(model)
        };
        let answer = rig.play_turns(&conversation, 1..=30).await;
        assert_eq!(answer.memory(), memory, "{model}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn expensive_memory_is_not_made_before_the_history_limit() {
    let rig = rig(&DEAR).await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=40).await;
    assert_eq!(answer.memory(), "watching");
    assert_eq!(rig.number(PARTS).await, 0);
    // At the limit it is made whatever it costs.
    let answer = rig.play_turns(&conversation, 41..=70).await;
    assert_eq!(answer.memory(), "active");
    assert!(rig.number(PARTS).await > 0);
}

/// What is ready is used while the cache is cold, without a key that asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_conversation_is_activated_long_before_the_threshold() {
    let mut rig = rig(&FREE).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=6).await;
    assert_eq!(rig.number("SELECT count(*) FROM timers").await, 1);
    assert_eq!(rig.number(SNAPSHOTS).await, 0);
    rig.stop().await;
    let mut database = rig.database().await;
    sqlx::raw_sql("UPDATE timers SET due_ms = 1, activate_ms = 1")
        .execute(&mut database)
        .await
        .unwrap();
    rig.start().await;
    let waited = tokio::time::timeout(PATIENCE, async {
        while rig.number(SNAPSHOTS).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "no snapshot was prepared");
    let answer = rig.send(&conversation.body(7)).await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(rig.audit_entry(&answer).await["cause"], "idle");
}
