//! What a client no longer sends is covered at once, but what is due anyway comes first: it may cover that
//! as well, and one snapshot costs the cache of the tail once.

use diarist_provider::Options;
use serde_json::Value;

use crate::memory::rig::Rig;
use crate::memory::tools::SampleConversation;

async fn rig() -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "3500"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "600"),
        ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "40000"),
    ];
    Rig::with(Options::default(), &settings).await
}

/// The causes of all snapshots, oldest first.
async fn causes(rig: &Rig) -> Vec<String> {
    let mut database = rig.database().await;
    sqlx::query_scalar("SELECT cause FROM snapshots ORDER BY id")
        .fetch_all(&mut database)
        .await
        .unwrap()
}

/// The request of this turn without the first `gone` messages behind the system's.
fn without(conversation: &SampleConversation, turn: usize, gone: usize) -> Value {
    let mut body = conversation.body(turn);
    body["messages"].as_array_mut().unwrap().drain(1..=gone);
    body
}

/// What is prepared when a client drops its first messages in `turn`.
async fn dropping_in(turn: usize) -> Vec<String> {
    let (rig, conversation) = (rig().await, SampleConversation::new("ada"));
    rig.gives_its_answers();
    rig.play_turns(&conversation, 1..=turn - 1).await;
    assert_eq!(causes(&rig).await, [] as [&str; 0]);
    assert_eq!(rig.send(&without(&conversation, turn, 4)).await.status, 200);
    rig.quiet().await;
    causes(&rig).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_activation_takes_precedence_over_dropped_messages() {
    let (rig, conversation) = (rig().await, SampleConversation::new("ada"));
    let mut due = 0;
    while causes(&rig).await.is_empty() {
        due += 1;
        rig.play_turns(&conversation, due..=due).await;
    }
    assert_eq!(causes(&rig).await, ["threshold"]);
    // Before it is due anyway, what was dropped is reason enough.
    assert_eq!(dropping_in(due - 1).await, ["dropped"]);
    assert_eq!(dropping_in(due).await, ["threshold"]);
}
