//! The first request of a conversation waits: the second one brings both to the database.

use diarist_provider::Options;

use crate::memory::rig::{PATIENCE, Rig};
use crate::memory::tools::{ACTIVE, SampleConversation};

const REQUESTS: &str = "SELECT count(*) FROM requests";
const MESSAGES: &str = "SELECT count(*) FROM nodes";

/// A rig whose first requests wait.
async fn waiting_rig() -> Rig {
    let rig = Rig::small().await;
    rig.wait_until_keys_are_read().await;
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_written_with_its_second_request() {
    let rig = waiting_rig().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=1).await;
    assert_eq!(rig.number(MESSAGES).await, 0);
    rig.play_turns(&conversation, 2..=2).await;
    assert_eq!(rig.number(REQUESTS).await, 2);
    // A question, its answer, and the next question. Only the first one was in both requests.
    assert_eq!(rig.number(MESSAGES).await, 3);
    let confirmed = "SELECT count(*) FROM nodes WHERE confirmed = 1";
    assert_eq!(rig.number(confirmed).await, 1);
}

/// A script asks each question once. Nobody else's conversation is kept waiting for it either.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_with_one_request_leaves_no_row() {
    let rig = waiting_rig().await;
    for name in ["ada", "bob", "cleo", "dora"] {
        rig.play_turns(&SampleConversation::new(name), 1..=1).await;
    }
    assert_eq!(rig.number("SELECT count(*) FROM lineages").await, 0);
    rig.play_turns(&SampleConversation::new("bob"), 2..=2).await;
    assert_eq!(rig.number("SELECT count(*) FROM lineages").await, 1);
}

/// The same request again is a second one.
#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_counts_as_the_second_request() {
    let rig = waiting_rig().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=1).await;
    rig.play_turns(&conversation, 1..=1).await;
    assert_eq!(rig.number(REQUESTS).await, 1);
    assert_eq!(rig.number("SELECT times FROM requests").await, 2);
}

/// A client that drops its oldest message with every request never continues what waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_sliding_window_is_recorded_at_its_second_request() {
    let rig = waiting_rig().await;
    let conversation = SampleConversation::new("ada");
    for turn in 6..=7 {
        let mut body = conversation.body(turn);
        let messages = body["messages"].as_array_mut().unwrap();
        messages.drain(1..messages.len() - 6);
        rig.send(&body).await;
        rig.quiet().await;
    }
    assert_eq!(rig.number(REQUESTS).await, 1, "the second one is written");
}

/// A process that starts reads in the background what the database knows. No conversation of before counts
/// as a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_process_uses_the_stored_memory() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let sent = rig.last().body.clone();
    rig.restart().await;
    rig.send(&conversation.body(ACTIVE)).await;
    assert_eq!(rig.last().body, sent);
    let answer = rig.play_turns(&conversation, ACTIVE + 1..=ACTIVE + 1).await;
    assert_eq!(answer.memory(), "active");
}

/// Two processes with one SQLite file would each decide without what the other has just written.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_second_process_serves_without_memory_until_the_first_one_ends() {
    let mut first = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    first.play_turns(&conversation, 1..=ACTIVE).await;
    let database = format!("sqlite://{}", first.file().display());
    let second = Rig::with(Options::default(), &[("STORE__URL", &database)]).await;
    let ready = second.admin("/readyz").await;
    assert!(
        ready.text().contains("another Diarist serves with"),
        "{}",
        ready.text()
    );
    let answer = second.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "bypass; reason=store; rung=original");
    assert_eq!(
        second.last().body,
        conversation.body(ACTIVE + 1).to_string()
    );

    first.stop().await;
    let began = std::time::Instant::now();
    // A new request each time: what went out once without memory goes out so again.
    let mut turn = ACTIVE + 2;
    while second.send(&conversation.body(turn)).await.memory() != "active" {
        turn += 1;
        assert!(began.elapsed() < PATIENCE, "the second never took over");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
