//! A request that is refused for what it holds, and is told so inside the stream of an answer of status 200.

use diarist_provider::{Behaviour, CallerKind, Cut, LineEnd};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, answering, event_stream, refusing};

/// Says what is wrong with a request in the first event of a stream.
fn inside() -> Behaviour {
    Behaviour {
        refuse_in_stream: true,
        ..Behaviour::default()
    }
}

/// Where the block stands in the newest request.
fn block(rig: &Rig) -> Option<usize> {
    let body = rig.last().json().unwrap();
    let holds = |message: &Value| message["content"].to_string().contains("<diarist-log");
    body["messages"].as_array().unwrap().iter().position(holds)
}

/// What the provider answers whoever asks it without anybody between.
async fn direct(rig: &Rig, body: &Value) -> String {
    let url = format!("{}/chat/completions", rig.provider.base_url());
    let request = rig.client.post(url).body(body.to_string());
    request.send().await.unwrap().text().await.unwrap()
}

/// A conversation with a block that stands in a message of its own.
async fn active() -> (Rig, SampleConversation) {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    assert_eq!((answer.memory(), block(&rig)), ("active", Some(1)));
    (rig, conversation)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placement_refused_inside_a_stream_is_left_out_and_then_lowered() {
    let odd = [
        inside(),
        Behaviour {
            comments: true,
            frame_bytes: Some(7),
            line_end: LineEnd::CrLf,
            ..inside()
        },
    ];
    for behaviour in odd {
        let (rig, conversation) = active().await;
        rig.provider.rules(|rules| rules.single_system = true);
        rig.provider.inject(CallerKind::Actor, behaviour);
        let (body, before) = (conversation.streamed(ACTIVE + 1), rig.got().len());
        let answer = rig.send(&body).await;
        // The head was written when nobody knew.
        assert_eq!((answer.status, answer.memory()), (200, "active"));
        let text = answer.text();
        assert!(!text.contains("error"), "the second answer only: {text}");
        assert_eq!(text.matches("data: [DONE]").count(), 1, "{text}");
        let [refused, original] = &rig.got()[before..] else {
            panic!("two requests")
        };
        assert!(refused.refusal().is_some() && original.is_accepted());
        assert_eq!(original.body, body.to_string());
        rig.quiet().await;
        let line = rig.audited(ACTIVE + 1).await.pop().unwrap();
        assert_eq!(
            (&line["rung"], &line["memory"], &line["status"]),
            (&json!("refused"), &json!("bypass"), &json!(200))
        );
        assert!(line["error"].is_null(), "{line}");
        assert_eq!(line["bytes_sent"], body.to_string().len());
        // The same again goes out as it was taken, and what follows it with the block where it may stand.
        for (turn, place) in [(ACTIVE + 1, None), (ACTIVE + 2, Some(0))] {
            let before = rig.got().len();
            let answer = rig.send(&conversation.streamed(turn)).await;
            assert!(!answer.text().contains("error"), "{}", answer.text());
            assert_eq!((rig.got().len(), block(&rig)), (before + 1, place));
            rig.quiet().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_refusal_of_an_unchanged_request_passes_unchanged() {
    let rig = Rig::small().await;
    rig.provider.rules(|rules| rules.single_system = true);
    rig.provider.inject(CallerKind::Actor, inside());
    let mut body = SampleConversation::new("ada").streamed(2);
    let late = json!({"role": "system", "content": "Be brief."});
    body["messages"].as_array_mut().unwrap().insert(2, late);
    let direct = direct(&rig, &body).await;
    assert!(direct.contains("invalid_request_error"), "{direct}");
    let before = rig.got().len();
    let answer = rig.send(&body).await;
    assert_eq!((answer.status, answer.text()), (200, direct));
    assert_eq!(rig.got().len(), before + 1, "nothing else is tried");
    rig.quiet().await;
    let line = rig.audited(1).await.pop().unwrap();
    assert_eq!(line["error"], "error");
    assert_eq!(rig.number("SELECT count(*) FROM requests").await, 0);
}

/// As under a status: the client hears of its own prompt, and nothing is learned.
#[tokio::test(flavor = "multi_thread")]
async fn the_client_gets_the_refusal_if_the_original_is_refused_too() {
    let (rig, conversation) = active().await;
    let refused = |message: &str| json!({"error": {"message": message, "code": 400}});
    let before = rig.got().len();
    for message in ["not so", "nor so"] {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &event_stream(&refused(message)));
    }
    let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
    let whole = format!("data: {}\n\ndata: [DONE]\n\n", refused("nor so"));
    assert_eq!((answer.status, answer.text()), (200, whole));
    assert_eq!(rig.got().len(), before + 2);
    rig.quiet().await;
    let line = rig.audited(ACTIVE + 1).await.pop().unwrap();
    assert_eq!(
        (&line["rung"], &line["error"]),
        (&json!("refused"), &json!("error"))
    );
    // A second answer that is no stream is of no use to whoever has the head of one.
    rig.provider
        .inject_next(CallerKind::Actor, 1, &event_stream(&refused("not so")));
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(400, "not that either"));
    let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
    let whole = format!("data: {}\n\ndata: [DONE]\n\n", refused("not so"));
    assert_eq!((answer.status, answer.text()), (200, whole));
    rig.quiet().await;
    // Nor is a stream that breaks off before it says anything.
    for cut in [Cut::AfterBytes(0), Cut::ResetAfterEvents(0)] {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &event_stream(&refused("not so")));
        rig.provider
            .inject_next(CallerKind::Actor, 1, &Behaviour::cutting(cut));
        let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
        let whole = format!("data: {}\n\ndata: [DONE]\n\n", refused("not so"));
        assert_eq!((answer.status, answer.text()), (200, whole), "{cut:?}");
        rig.quiet().await;
    }
    let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
    assert_eq!((answer.memory(), block(&rig)), ("active", Some(1)));
}

/// An error that blames nothing of the request is sent on, and no block moves because of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_fault_inside_a_stream_passes_and_lowers_no_placement() {
    let (rig, conversation) = active().await;
    for error in [
        json!({"error": {"message": "Overloaded", "type": "overloaded_error"}}),
        json!({"error": {"message": "no", "type": "BadRequestError", "code": 503}}),
        json!({"error": {"message": "no", "type": "invalid_request_error", "code": "invalid_api_key"}}),
    ] {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &event_stream(&error));
        let before = rig.got().len();
        let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
        assert_eq!(
            answer.text(),
            format!("data: {error}\n\ndata: [DONE]\n\n"),
            "as it came"
        );
        assert_eq!(rig.got().len(), before + 1, "{error}");
        rig.quiet().await;
    }
    let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
    assert_eq!((answer.memory(), block(&rig)), ("active", Some(1)));
}

/// The question for usage is at fault. What goes on was not asked it, so a report that comes all the same
/// is what the client would have had without anybody between.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_usage_request_is_not_repeated_and_no_usage_is_removed() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut own = conversation.streamed(1);
    own["stream_options"] = json!({"include_usage": true});
    rig.send(&own).await;
    rig.quiet().await;
    rig.provider
        .rules(|rules| rules.refuse_stream_options = true);
    let behaviour = Behaviour {
        unrequested_usage: true,
        ..inside()
    };
    rig.provider.inject(CallerKind::Actor, behaviour);
    let (body, before) = (conversation.streamed(2), rig.got().len());
    let answer = rig.send(&body).await;
    assert_eq!(rig.got().len(), before + 2);
    let first_request = rig.got()[before].json().unwrap();
    assert_eq!(first_request["stream_options"]["include_usage"], true);
    assert_eq!(rig.last().body, body.to_string());
    let text = answer.text();
    assert!(!text.contains("error") && text.contains("[DONE]"), "{text}");
    assert_eq!(text.matches("\"choices\":[]").count(), 1, "{text}");
    rig.quiet().await;
    let before = rig.got().len();
    rig.send(&conversation.streamed(3)).await;
    assert_eq!(rig.got().len(), before + 1, "never again");
    assert!(rig.last().json().unwrap().get("stream_options").is_none());
}

/// A stream that goes on in the place of a refused one is in plain bytes, as its head said.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_after_a_refusal_is_requested_uncompressed() {
    let (rig, conversation) = active().await;
    rig.provider.rules(|rules| rules.single_system = true);
    rig.provider.inject(CallerKind::Actor, inside());
    let before = rig.got().len();
    let body = conversation.streamed(ACTIVE + 1);
    let headers = [("accept-encoding", "gzip, br")];
    rig.send_as("Bearer sk-test", &headers, &body).await;
    let [first, second] = &rig.got()[before..] else {
        panic!("two requests")
    };
    assert_eq!(first.headers["accept-encoding"], "gzip, br");
    assert_eq!(second.headers["accept-encoding"], "identity");
}

/// It does not fit without its block, which is refused where it stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_too_long_without_its_block_gets_a_lower_placement() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=16).await;
    let room = rig.last().prompt_usage.unwrap().prompt_tokens + 700;
    rig.provider.rules(|rules| {
        rules.single_system = true;
        rules.window = Some(room);
    });
    rig.provider.inject(CallerKind::Actor, inside());
    let before = rig.got().len();
    let answer = rig.send(&conversation.streamed(17)).await;
    let text = answer.text();
    assert!(!text.contains("error") && text.contains("[DONE]"), "{text}");
    assert_eq!((rig.got().len(), block(&rig)), (before + 3, Some(0)));
    rig.quiet().await;
    let line = rig.audited(17).await.pop().unwrap();
    assert_eq!(
        (&line["rung"], &line["memory"]),
        (&json!("lowered"), &json!("active"))
    );
    let before = rig.got().len();
    let answer = rig.send(&conversation.streamed(18)).await;
    assert_eq!(answer.memory(), "active");
    assert_eq!((rig.got().len(), block(&rig)), (before + 1, Some(0)));
}

/// The head of the second answer says 200; what it begins with says that nothing was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_200_head_before_a_refusal_lowers_no_placement() {
    let (rig, conversation) = active().await;
    let refused = json!({"error": {"message": "nor so", "type": "invalid_request_error"}});
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(400, "not so"));
    rig.provider
        .inject_next(CallerKind::Actor, 1, &event_stream(&refused));
    let before = rig.got().len();
    let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "bypass; reason=refused; rung=refused");
    assert!(answer.text().contains("nor so"), "{}", answer.text());
    assert_eq!(rig.got().len(), before + 2);
    rig.quiet().await;
    let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
    assert_eq!((answer.memory(), block(&rig)), ("active", Some(1)));
}

/// It says nothing of where a block may stand, nor of usage: another model would have said the same, and this
/// one takes the next request as it would have taken this.
#[tokio::test(flavor = "multi_thread")]
async fn a_content_filter_refusal_changes_neither_placement_nor_usage_requests() {
    let (rig, conversation) = active().await;
    let mut own = SampleConversation::new("bob").streamed(1);
    own["stream_options"] = json!({"include_usage": true});
    rig.send(&own).await;
    rig.quiet().await;
    let mut turn = ACTIVE;
    let filters = [
        json!({"message": "flagged", "type": "invalid_request_error", "code": "content_filter"}),
        json!({"message": "no", "type": "data_inspection_failed", "code": "data_inspection_failed"}),
        json!({"message": "Content Exists Risk", "type": "invalid_request_error", "code": "invalid_request_error"}),
        json!({"message": "your prompt was flagged as potentially violating our usage policy", "code": "invalid_prompt"}),
    ];
    for error in filters.map(|error| json!({ "error": error })) {
        for refused in [answering(400, &error), event_stream(&error)] {
            turn += 1;
            rig.provider.inject_next(CallerKind::Actor, 1, &refused);
            let (body, before) = (conversation.streamed(turn), rig.got().len());
            let answer = rig.send(&body).await;
            let text = answer.text();
            assert_eq!(answer.status, 200, "{text}");
            assert!(!text.contains("error") && text.contains("[DONE]"), "{text}");
            assert_eq!(rig.got().len(), before + 2, "once more: {error}");
            assert_eq!(rig.last().body, body.to_string(), "as the client made it");
            rig.quiet().await;
            turn += 1;
            let before = rig.got().len();
            let answer = rig.send(&conversation.streamed(turn)).await;
            assert_eq!(answer.memory(), "active", "{error}");
            assert_eq!((rig.got().len(), block(&rig)), (before + 1, Some(1)));
            let request = rig.last().json().unwrap();
            let asks = &request["stream_options"]["include_usage"];
            assert_eq!(asks, true, "still asked: {error}");
            rig.quiet().await;
        }
    }
}
