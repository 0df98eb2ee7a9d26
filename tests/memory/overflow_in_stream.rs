//! A request that does not fit its model, and is told so inside the stream of an answer of status 200.

use diarist_provider::{Behaviour, CallerKind, Options};
use serde_json::json;

use crate::memory::overflow::observers;
use crate::memory::rig::Rig;
use crate::memory::tools::{SampleConversation, event_stream, refusing};

/// Says what is too long in the first event of a stream, under status 200.
fn inside(comments: bool) -> Behaviour {
    Behaviour {
        refuse_in_stream: true,
        comments,
        ..Behaviour::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_too_long_refusal_inside_a_stream_leads_to_a_shorter_request() {
    for (overflow, rung) in [("trim", "trimmed"), ("observe", "awaited")] {
        let mut rig = Rig::with(Options::default(), &[("MEMORY__OVERFLOW", overflow)]).await;
        rig.provider.rules(|rules| rules.window = Some(8_000));
        rig.provider
            .inject(CallerKind::Actor, inside(overflow == "trim"));
        let conversation = SampleConversation::new("ada");
        let answer = rig.send(&conversation.streamed(24)).await;
        assert_eq!(answer.status, 200);
        // The head was written when nobody knew.
        assert_eq!(answer.memory(), "watching");
        let text = answer.text();
        assert!(!text.contains("error"), "{text}");
        assert_eq!(text.matches("data: [DONE]").count(), 1, "{text}");
        assert_eq!(rig.got().len(), 2);
        let line = rig.audited(1).await.pop().unwrap();
        assert_eq!(
            (&line["rung"], &line["status"]),
            (&json!(rung), &json!(200))
        );
        assert!(line["error"].is_null() && line["memory"] == "active");
        // Whoever asks again is answered at once, also by a process that was not there.
        let sent = rig.last().body.clone();
        rig.quiet().await;
        for _ in 0..2 {
            let before = rig.got().len();
            let answer = rig.send(&conversation.streamed(24)).await;
            assert!(answer.text().contains("[DONE]"));
            assert_eq!((rig.got().len(), &rig.last().body), (before + 1, &sent));
            rig.quiet().await;
            rig.restart().await;
        }
    }
}

/// The free rung, for whoever chose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_too_long_refusal_inside_a_stream_applies_ready_observations() {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=12).await;
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    rig.provider.inject(CallerKind::Actor, inside(false));
    let (observer_calls, before) = (observers(&rig), rig.got().len());
    let answer = rig.send(&conversation.streamed(13)).await;
    assert!(answer.text().contains("[DONE]") && !answer.text().contains("error"));
    assert_eq!(
        (observers(&rig), rig.got().len()),
        (observer_calls, before + 2)
    );
    let line = rig.audited(13).await.pop().unwrap();
    assert_eq!(line["rung"], "observed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_refusal_inside_a_stream_is_forwarded_and_not_recorded() {
    let rig = Rig::with(Options::default(), &[]).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    rig.provider.inject(CallerKind::Actor, inside(false));
    let conversation = SampleConversation::new("ada");
    for round in 0..2 {
        let answer = rig.send(&conversation.streamed(24)).await;
        assert_eq!((answer.status, answer.memory()), (200, "watching"));
        let text = answer.text();
        assert!(text.contains("context_length_exceeded"), "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "as it came: {text}");
        assert_eq!(rig.got().len(), round + 1, "nothing else is tried");
        rig.quiet().await;
        assert_eq!(rig.number("SELECT count(*) FROM lineages").await, 0);
        assert_eq!(rig.number("SELECT count(*) FROM requests").await, 0);
    }
    let line = rig.audited(2).await.pop().unwrap();
    assert_eq!(line["error"], "too_long");
}

const TOO_LONG: &str = "Input is too long for requested model.";

/// Told by a status first, and then inside the stream of what was sent instead: that is one request, whose
/// client waits for the Observer once, and of which no more is tried than of any.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_tried_before_the_head_is_not_repeated_inside_the_stream() {
    for (overflow, rung, refused, sent) in [
        // The client's own, and what was observed of it.
        ("observe", "awaited", 1, 2),
        // The client's own, and three times with less of it.
        ("trim", "trimmed", 3, 4),
    ] {
        let rig = Rig::with(Options::default(), &[("MEMORY__OVERFLOW", overflow)]).await;
        let conversation = SampleConversation::new("ada");
        let event = json!({"error": {"message": TOO_LONG, "type": "invalid_request_error"}});
        rig.provider
            .inject_next(CallerKind::Actor, refused, &refusing(400, TOO_LONG));
        rig.provider
            .inject_next(CallerKind::Actor, 20, &event_stream(&event));
        let answer = rig.send(&conversation.streamed(24)).await;
        assert_eq!((answer.status, rig.got().len()), (200, sent), "{overflow}");
        assert_eq!(answer.memory(), format!("active; rung={rung}"));
        assert!(answer.text().contains(TOO_LONG), "{}", answer.text());
        let line = rig.audited(1).await.pop().unwrap();
        assert_eq!(
            (&line["rung"], &line["error"]),
            (&json!(rung), &json!("too_long"))
        );
        rig.quiet().await;
        assert_eq!(rig.number("SELECT count(*) FROM requests").await, 0);
    }
}
