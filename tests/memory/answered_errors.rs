//! An error under status 200 is no answer: nothing counts as accepted, and the audit names it.

use diarist_provider::{Behaviour, CallerKind, Failure};
use serde_json::json;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, answering, refusing};

#[tokio::test(flavor = "multi_thread")]
async fn an_error_with_status_200_is_named_and_an_equal_request_is_decided_anew() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let too_long = json!({"message": "no", "code": "context_length_exceeded"});
    let errors = [
        (json!({"error": {"message": "no", "code": 503}}), "error"),
        (
            json!({"object": "error", "message": "no", "code": 400}),
            "error",
        ),
        (json!({"error": too_long}), "too_long"),
        (json!({"id": "x", "error": too_long}), "too_long"),
    ];
    for (turn, (error, name)) in (1..).zip(errors) {
        let body = conversation.body(turn);
        rig.provider
            .inject_next(CallerKind::Actor, 1, &answering(200, &error));
        let failed = rig.send(&body).await;
        assert_eq!((failed.status, failed.json()), (200, error));
        rig.quiet().await;
        let line = rig.audit_entry(&failed).await;
        assert_eq!(line["error"], name, "{line}");
        assert_eq!(line["verdict"], json!(null), "{line}");
        let again = rig.send(&body).await;
        rig.quiet().await;
        let line = rig.audit_entry(&again).await;
        assert_eq!(
            (&line["reason"], &line["error"]),
            (&json!("no_snapshot"), &json!(null))
        );
    }
}

/// The original, sent after a refusal, gets an error too: nobody knows whether it would have been accepted.
#[tokio::test(flavor = "multi_thread")]
async fn an_original_answered_by_an_error_lowers_no_placement() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let refused = refusing(400, "Only one system message is supported by this model.");
    rig.provider.inject_next(CallerKind::Actor, 1, &refused);
    let error = json!({"error": {"message": "Overloaded", "code": 503}});
    rig.provider
        .inject_next(CallerKind::Actor, 1, &answering(200, &error));
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!((answer.status, answer.json()), (200, error));
    rig.quiet().await;
    let answer = rig.play_turns(&conversation, ACTIVE + 2..=ACTIVE + 2).await;
    assert_eq!(answer.memory(), "active");
    let sent = rig.last().json().unwrap();
    let block = sent["messages"][1]["content"].to_string();
    assert!(block.contains("<diarist-log"), "no step down: {sent}");
}

/// There is no error in it, and no answer either.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_events_is_audited_as_empty() {
    let rig = Rig::small().await;
    let empty = Behaviour {
        fail: Some(Failure {
            status: 200,
            retry_after: None,
            body: Some(("text/event-stream; charset=utf-8", String::new())),
        }),
        ..Behaviour::default()
    };
    rig.provider.inject_next(CallerKind::Actor, 1, &empty);
    let answer = rig.send(&SampleConversation::new("ada").streamed(1)).await;
    rig.quiet().await;
    let line = rig.audit_entry(&answer).await;
    assert_eq!(
        (&line["error"], &line["ended"]),
        (&json!("empty"), &json!("complete"))
    );
}
