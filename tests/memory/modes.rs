//! `off`, `read` and `on`: by header, by rule, by the operator for all.

use diarist_provider::{CallerKind, Options};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

const SMALL: [(&str, &str); 2] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
];

const ME: &str = "Bearer sk-test";

/// Counts the rows of the tables that a request is recorded in, and how often requests came and messages were confirmed:
/// what a request wrote shows here.
async fn rows(rig: &Rig) -> i64 {
    rig.number(
        "SELECT (SELECT count(*) FROM nodes) + (SELECT count(*) FROM requests)
              + (SELECT sum(times) FROM requests) + (SELECT count(*) FROM jobs)
              + (SELECT count(*) FROM parts) + (SELECT count(*) FROM snapshots)
              + (SELECT count(*) FROM lineages) + (SELECT sum(requests) FROM lineages)
              + (SELECT sum(confirmed) FROM nodes)",
    )
    .await
}

/// What a chat client asks beside the conversation: all of it again, and a question of its own.
fn side_call(conversation: &SampleConversation, turn: usize) -> Value {
    let mut body = conversation.body(turn);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "An answer."}));
    messages.push(json!({"role": "user", "content": "Give this conversation a title."}));
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_call_that_repeats_the_history_reads_its_memory_and_writes_nothing() {
    let mut settings = SMALL.to_vec();
    settings.push((
        "MEMORY__RULES",
        r#"[{ header = "x-task", value = "title*", memory = "read" }]"#,
    ));
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let before = (
        rows(&rig).await,
        rig.provider.record_for(CallerKind::Observer).len(),
    );

    let title = [("x-task", "title_generation")];
    for round in 0..3 {
        let side_body = side_call(&conversation, ACTIVE + round);
        let answer = rig.send_as(ME, &title, &side_body).await;
        assert_eq!((answer.status, answer.memory()), (200, "active; mode=read"));
        assert!(rig.last().body.len() < side_body.to_string().len());
        assert!(memchr::memmem::find(&rig.last().body, b"<diarist-log").is_some());
        rig.quiet().await;
    }
    let after = (
        rows(&rig).await,
        rig.provider.record_for(CallerKind::Observer).len(),
    );
    assert_eq!(after, before, "nothing is written, nothing observed");
    let line = rig.audited(ACTIVE + 3).await.pop().unwrap();
    assert_eq!(line["mode"], "read");
    assert_eq!(line["mode_by"], "rule_1");
    // The conversation itself goes on.
    let answer = rig.play_turns(&conversation, ACTIVE + 1..=ACTIVE + 1).await;
    assert_eq!(answer.memory(), "active");
    assert!(rows(&rig).await > before.0);
    let line = rig.audit_entry(&answer).await;
    assert_eq!(
        (&line["mode"], &line["mode_by"]),
        (&json!("on"), &json!("default"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_of_a_request_wins_over_the_rules() {
    let mut settings = SMALL.to_vec();
    settings.push(("MEMORY__RULES", r#"[{ model = "GPT-*", memory = "off" }]"#));
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.send(&conversation.body(1)).await;
    assert_eq!(answer.memory(), "off; reason=rule");
    assert_eq!(rig.last().body, conversation.body(1).to_string());
    let line = rig.audited(1).await.pop().unwrap();
    assert_eq!(
        (&line["mode"], &line["mode_by"]),
        (&json!("off"), &json!("rule_1"))
    );
    rig.quiet().await;
    assert_eq!(rig.number("SELECT count(*) FROM nodes").await, 0);

    let on = [("x-diarist-memory", "on")];
    let answer = rig.play_turns_as(ME, &on, &conversation, 1..=ACTIVE).await;
    assert_eq!(answer.memory(), "active");
    // The same conversation, read: all that is known of it, and nothing new.
    let before = rows(&rig).await;
    let read = [("x-diarist-memory", "Read")];
    let answer = rig
        .play_turns_as(ME, &read, &conversation, ACTIVE + 1..=ACTIVE + 3)
        .await;
    assert_eq!(answer.memory(), "active; mode=read");
    assert_eq!(rows(&rig).await, before);
    // What the client says of no memory counts without a rule as well.
    let off = [("x-diarist-memory", "off")];
    let answer = rig.send_as(ME, &off, &conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "off; reason=asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_mode_sends_stored_observations_and_stores_nothing() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let expected = {
        rig.send(&conversation.body(ACTIVE)).await;
        rig.last().body.clone()
    };
    rig.quiet().await;
    rig.stop().await;
    let before = rows(&rig).await;
    let observed = rig.provider.record_for(CallerKind::Observer).len();
    rig.set("MEMORY__READ_ONLY", "true");
    rig.start().await;

    let answer = rig.send(&conversation.body(ACTIVE)).await;
    assert_eq!(answer.memory(), "active; mode=read");
    assert_eq!(rig.last().body, expected, "a repetition is the same bytes");
    // No header opens what the operator closed.
    let on = [("x-diarist-memory", "on")];
    let answer = rig
        .play_turns_as(ME, &on, &conversation, ACTIVE + 1..=2 * ACTIVE)
        .await;
    assert_eq!(answer.memory(), "active; mode=read");
    let other = rig
        .play_turns(&SampleConversation::new("bob"), 1..=ACTIVE)
        .await;
    assert_eq!(other.memory(), "watching; mode=read");
    assert_eq!(rows(&rig).await, before);
    assert_eq!(
        rig.provider.record_for(CallerKind::Observer).len(),
        observed
    );
    let line = rig.audited(3 * ACTIVE + 2).await.pop().unwrap();
    assert_eq!(
        (&line["mode"], &line["mode_by"]),
        (&json!("read"), &json!("read_only"))
    );
}

/// What is observed and not yet in use serves a request that does not fit, without a trace.
#[tokio::test(flavor = "multi_thread")]
async fn a_too_long_request_in_read_mode_gets_all_ready_observations() {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=12).await;
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    let before = rows(&rig).await;
    let read = [("x-diarist-memory", "read")];
    let mut sent = Vec::new();
    for _ in 0..2 {
        let answer = rig.send_as(ME, &read, &side_call(&conversation, 12)).await;
        let wanted = "active; rung=observed; mode=read";
        assert_eq!((answer.status, answer.memory()), (200, wanted));
        rig.quiet().await;
        sent.push(rig.last().body.clone());
    }
    assert_eq!(sent[0], sent[1]);
    assert_eq!(rows(&rig).await, before);
}
