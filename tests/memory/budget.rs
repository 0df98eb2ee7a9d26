//! What memory may cost: the Observer is shown at most 1.5 times what is new, and the audit says
//! when it has to wait. Threads of their own for requests under another key.

use diarist_provider::CallerKind;
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

/// How often the Observer was shown what was asked in a turn: all of it, which no observation that
/// it is shown as well repeats.
fn times_observed(rig: &Rig, turn: usize) -> usize {
    let question = &SampleConversation::new("ada").messages(turn)[2 * turn - 1]["content"];
    let words = question.as_str().unwrap().trim().to_owned();
    let prompts = rig.provider.record_for(CallerKind::Observer);
    prompts
        .iter()
        .map(|entry| String::from_utf8_lossy(&entry.body).matches(&words).count())
        .sum()
}

/// The request of this turn of a conversation that is answered so briefly that nothing of it tells it
/// from others but its beginning.
fn brief(conversation: &SampleConversation, turn: usize) -> Value {
    let mut body = conversation.body(turn);
    let messages = body["messages"].as_array_mut().unwrap();
    for answer in messages.iter_mut().filter(|m| m["role"] == "assistant") {
        answer["content"] = json!("Yes.");
    }
    body
}

/// The same with another first message: a conversation of its own that says what was said before.
fn edited(conversation: &SampleConversation, turn: usize) -> Value {
    let mut body = brief(conversation, turn);
    body["messages"][1]["content"] = json!("Let us begin differently.");
    body
}

async fn send(rig: &Rig, body: &Value) {
    assert_eq!(rig.send(body).await.status, 200);
    rig.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_observer_pauses_for_an_edited_conversation_until_new_messages_come() {
    const TURNS: usize = 40;
    const LATER: usize = 130;
    let rig = Rig::small().await;
    let pauses = async |change: &str| {
        let name = format!("diarist_observer_pauses_total{{change=\"{change}\"}}");
        rig.metric(&name).await
    };
    let (paused_before, resumed_before) = (pauses("paused").await, pauses("resumed").await);
    let conversation = SampleConversation::new("ada");
    for turn in 1..=TURNS {
        send(&rig, &brief(&conversation, turn)).await;
    }
    let before: usize = (1..=TURNS).map(|turn| times_observed(&rig, turn)).sum();
    for turn in TURNS..=LATER {
        send(&rig, &edited(&conversation, turn)).await;
    }
    let lines = rig.audited(TURNS + LATER - TURNS + 1).await;
    let paused = |line: &Value| line["reason"] == "observer_paused";
    assert!(!lines[..TURNS].iter().any(paused), "only as it was said");

    // What is new is confirmed by the second request with it; the third is told.
    let waiting = &lines[TURNS..];
    let first = waiting.iter().position(paused).unwrap();
    assert_eq!(first, 2, "{}", waiting[first]);
    let resumed = waiting.iter().rposition(paused).unwrap() + 1;
    println!("paused in {first}..{resumed} of {}", waiting.len());
    assert!(resumed < waiting.len(), "it goes on with what is new");

    let again: usize = (1..=LATER).map(|turn| times_observed(&rig, turn)).sum();
    println!("shown {before} turns, then {again} in all");
    assert!(again > TURNS + before / 4, "as far as the slack goes");
    assert!(again * 2 <= LATER * 3, "{again} of {LATER}");
    assert!(pauses("paused").await > paused_before);
    assert!(pauses("resumed").await > resumed_before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_thread_name_shares_the_memory_of_the_common_beginning() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let ones = [("x-diarist-thread", "one")];
    let twos = [("x-diarist-thread", "two")];
    rig.play_turns_as("Bearer sk-test", &ones, &conversation, 1..=ACTIVE)
        .await;
    let mut other = conversation.body(ACTIVE + 1);
    let messages = other["messages"].as_array_mut().unwrap();
    *messages.last_mut().unwrap() = json!({"role": "user", "content": "Now to something else."});
    let answer = rig.send_as("Bearer sk-test", &twos, &other).await;
    assert_eq!(answer.memory(), "active");
    rig.quiet().await;
    // The first goes on, and so does somebody who gives no key.
    rig.play_turns_as(
        "Bearer sk-test",
        &ones,
        &conversation,
        ACTIVE + 1..=ACTIVE + 1,
    )
    .await;
    rig.play_turns(&conversation, ACTIVE + 2..=ACTIVE + 2).await;

    let count = "SELECT count(*) FROM lineages";
    assert_eq!(rig.number(count).await, 2);
    let requests = "SELECT requests FROM lineages WHERE thread_key = 'one'";
    assert_eq!(
        rig.number(requests).await,
        i64::try_from(ACTIVE + 2).unwrap()
    );
    let own = "SELECT count(*) FROM nodes JOIN lineages ON id = lineage WHERE thread_key = 'two'";
    assert_eq!(
        rig.number(own).await,
        2,
        "the answer both have, and its own question"
    );
}
