//! What a conversation was sent with, while it goes on along another branch or its window slides: the
//! notes it has are kept, byte for byte, and those of another branch are not put in their place.

use diarist_provider::{Behaviour, CallerKind, Failure, Options};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::SampleConversation;

fn messages(body: &[u8]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"].as_array().unwrap().clone()
}

fn too_long() -> Behaviour {
    let body = json!({"message": "Input is too long for requested model."});
    Behaviour {
        fail: Some(Failure {
            status: 400,
            retry_after: None,
            body: Some(("application/json", body.to_string())),
        }),
        ..Behaviour::default()
    }
}

/// A request was observed while its client waited, and nobody took it all the same. What was written for
/// it serves that request and what goes on from it; a branch that left before has notes of its own, and
/// would be told the same in other words.
#[tokio::test(flavor = "multi_thread")]
async fn observations_for_a_refused_request_are_not_sent_to_another_branch() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.provider.inject_next(CallerKind::Actor, 2, &too_long());
    let answer = rig.send(&conversation.body(12)).await;
    assert_eq!(answer.status, 400);
    let tried = rig.last();
    assert!(
        String::from_utf8_lossy(&tried.body).contains("<diarist-log"),
        "it was observed, and sent once more"
    );
    // Longer than that request, and with another newest question: another branch.
    let mut branch = conversation.body(14);
    let turns = branch["messages"].as_array_mut().unwrap();
    let question_index = turns
        .iter()
        .rposition(|turn| turn == &conversation.messages(12)[23]);
    turns[question_index.unwrap()]["content"] = json!("ada asks for something else.");
    let answer = rig.send(&branch).await;
    assert_eq!((answer.status, answer.memory()), (200, "watching"));
    assert_eq!(rig.last().body, branch.to_string());
    // What goes on from the request itself need not wait again.
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(13)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    assert_eq!(rig.got().len(), before + 1);
}

/// A client drops its oldest messages by itself while a trim leaves out more than those. The note keeps
/// its words: a number that fell with every message dropped would cost the cache of the notes each time.
#[tokio::test(flavor = "multi_thread")]
async fn the_note_of_a_trim_stays_as_it_is_while_the_window_slides() {
    let rig = Rig::with(Options::default(), &[("MEMORY__OVERFLOW", "trim")]).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let conversation = SampleConversation::new("ada");
    let answer = rig.send(&conversation.body(24)).await;
    assert_eq!(answer.memory(), "active; rung=trimmed");
    let note = messages(&rig.last().body)[1].clone();
    assert!(note["content"].as_str().unwrap().contains("<diarist-gap>"));
    rig.quiet().await;
    for (turn, dropped) in [(25, 0), (26, 4)] {
        let mut body = conversation.body(turn);
        body["messages"].as_array_mut().unwrap().drain(1..=dropped);
        let answer = rig.send(&body).await;
        assert_eq!(
            (answer.status, answer.memory()),
            (200, "active; rung=trimmed"),
            "turn {turn}"
        );
        assert_eq!(messages(&rig.last().body)[1], note, "turn {turn}");
        rig.quiet().await;
    }
}
