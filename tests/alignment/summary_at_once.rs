//! A client that summarises goes on at once: its next request comes before the answer with the summary is recorded. Or that
//! request fails, and comes again.

use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind};
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::alignment::harness::{Client, conversation, marks, roomy, set_answer, user};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

/// Longer than what a model says in any conversation.
fn summary() -> String {
    let sentence = "They looked at the harbour, counted the lanterns, and agreed on what to do with each of them. ";
    format!("Summary: {}", sentence.repeat(4).trim())
}

/// A rig in which a conversation was held, its messages, and the same with the question for a summary.
async fn before_the_summary() -> (Rig, Vec<Value>, Vec<Value>) {
    let mut rig = roomy().await;
    let messages = conversation("alice", 40);
    for count in (1..=messages.len()).step_by(2) {
        let mut client = Client::new(&mut rig);
        client
            .send_with_answer(&messages[..count], messages.get(count))
            .await;
    }
    let mut asking = messages.clone();
    asking.push(message("user", "Summarise all of this for somebody else."));
    (rig, messages, asking)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_used_before_it_is_recorded_continues_its_conversation() {
    let (mut rig, _, asking) = before_the_summary().await;
    let head = [
        message("user", format!("What was said before:\n{}", summary())),
        message("assistant", "Good."),
        user("alice", 90),
    ];
    let client = Client::new(&mut rig);
    let [asking, head] = [client.body(&asking), client.body(&head)];

    // Another program writes to the database, so nothing can be recorded for a while.
    let mut writer = rig.database().await;
    let writing = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    set_answer(&rig, Some(&message("assistant", summary())));
    let answer = rig.send_as("Bearer sk-test", &[], &asking).await;
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"],
        json!(summary())
    );
    set_answer(&rig, None);
    let release = async {
        // Long enough for a request that does not wait to be decided; it does not matter if it is not.
        tokio::time::sleep(Duration::from_millis(30)).await;
        writing.rollback().await.unwrap();
    };
    let (answer, ()) = tokio::join!(rig.send_as("Bearer sk-test", &[], &head), release);
    assert_eq!(answer.status, 200);
    let line = rig.audit_entry(&answer).await;
    assert_eq!(line["reason"], "compaction_link");
    let forwarded = rig.forwarded();
    let sent = forwarded.last().unwrap();
    let sent_marks = marks(&sent.to_string());
    assert!(sent_marks.contains("alice#0") && !head.to_string().contains("alice#0"));
}

/// Beside its summary the client keeps messages that prove the conversation. Its first request is refused, and is not
/// recorded; the same request comes again.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_first_request_after_a_summary_is_repeated_with_its_memory() {
    let (mut rig, messages, asking) = before_the_summary().await;
    let mut head = vec![message("user", summary()), message("assistant", "Good.")];
    head.extend_from_slice(&messages[messages.len() - 2..]);
    head.push(user("alice", 90));
    let mut client = Client::new(&mut rig);
    client
        .send_with_answer(&asking, Some(&message("assistant", summary())))
        .await;
    let head = client.body(&head);

    rig.provider
        .inject_next(CallerKind::Actor, 1, &Behaviour::failing(429));
    let refused = rig.send_as("Bearer sk-test", &[], &head).await;
    assert_eq!(refused.status, 429);
    let again = rig.send_as("Bearer sk-test", &[], &head).await;
    assert_eq!(again.status, 200);
    let sent: Vec<_> = rig.provider.record_for(CallerKind::Actor);
    let [.., first, second] = &sent[..] else {
        panic!("two requests went out");
    };
    assert_eq!(
        first.body,
        second.body,
        "{} {}",
        refused.memory(),
        again.memory()
    );
    let sent_marks = marks(&String::from_utf8_lossy(&first.body));
    assert!(sent_marks.contains("alice#0") && !head.to_string().contains("alice#0"));
}
