//! A changed request never fails where the original would not: whatever status a server refuses it with, the
//! original goes out once, and no more is learned of it than the refusal says.

use diarist_provider::{Behaviour, CallerKind};
use serde_json::{Value, json};

use crate::memory::rig::{Answer, Rig};
use crate::memory::tools::{ACTIVE, SampleConversation, answering, event_stream, refusing};

/// Where the block stands in the newest request.
fn block(rig: &Rig) -> Option<usize> {
    let body = rig.last().json().unwrap();
    let holds = |message: &Value| message["content"].to_string().contains("<diarist-log");
    body["messages"].as_array().unwrap().iter().position(holds)
}

/// A conversation with a block that stands in a message of its own.
async fn active() -> (Rig, SampleConversation) {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    assert_eq!((answer.memory(), block(&rig)), ("active", Some(1)));
    (rig, conversation)
}

/// Sends it, and lets memory rest; the answer, and how many requests it took.
async fn sent(rig: &Rig, body: &Value) -> (Answer, usize) {
    let before = rig.got().len();
    let answer = rig.send(body).await;
    rig.quiet().await;
    (answer, rig.got().len() - before)
}

/// The same history went out as a stream before, or as none: that is no other request that has replaced this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_accepted_with_another_stream_flag_is_tried_as_original() {
    for first in [false, true] {
        let (rig, conversation) = active().await;
        let body = |stream: bool| {
            let mut body = conversation.body(ACTIVE + 1);
            body["stream"] = json!(stream);
            body
        };
        let (answer, requests) = sent(&rig, &body(first)).await;
        assert_eq!((answer.memory(), requests), ("active", 1));
        let refusal = refusing(400, "no");
        rig.provider.inject_next(CallerKind::Actor, 1, &refusal);
        let (answer, requests) = sent(&rig, &body(!first)).await;
        assert_eq!((answer.status, requests), (200, 2), "{}", answer.text());
        assert_eq!(rig.last().body, body(!first).to_string());
    }
}

const TEMPLATE: &str = "System message must be at the beginning.";

/// llama.cpp and Ollama render the prompt by the model's template, and say 500 to what that does not take.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_with_one_system_message_fails_no_request() {
    let rig = Rig::small().await;
    rig.provider.rules(|rules| rules.template = true);
    let conversation = SampleConversation::new("ada");
    let mut refused = Vec::new();
    for turn in 1..=ACTIVE + 4 {
        let (answer, requests) = sent(&rig, &conversation.body(turn)).await;
        assert_eq!(answer.status, 200, "turn {turn}: {}", answer.text());
        if requests > 1 {
            assert_eq!(answer.memory(), "bypass; reason=refused; rung=refused");
            assert_eq!(rig.last().body, conversation.body(turn).to_string());
            refused.push(turn);
        }
        if refused.last().is_some_and(|at| *at < turn) {
            assert_eq!((answer.memory(), block(&rig)), ("active", Some(0)));
        }
    }
    assert_eq!(refused.len(), 1, "one step down and no more: {refused:?}");
    let got = rig.got();
    let refusals: Vec<_> = got.iter().filter_map(|entry| entry.refusal()).collect();
    let [refusal] = &refusals[..] else {
        panic!("{refusals:?}")
    };
    let body = refusal.body();
    assert_eq!((refusal.status, &body["error"]["code"]), (500, &json!(500)));
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains(TEMPLATE)
    );
}

/// The same, where the server says so in the first event of a stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_error_inside_a_stream_lowers_the_placement() {
    let (rig, conversation) = active().await;
    rig.provider.rules(|rules| rules.template = true);
    let inside = Behaviour {
        refuse_in_stream: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Actor, inside);
    for (turn, requests, place) in [(1, 2, None), (2, 1, Some(0))] {
        let (answer, took) = sent(&rig, &conversation.streamed(ACTIVE + turn)).await;
        let text = answer.text();
        assert!(!text.contains("error") && text.contains("[DONE]"), "{text}");
        assert_eq!((took, block(&rig)), (requests, place), "turn {turn}");
    }
}

/// Ollama's error has another shape.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_error_is_recognised_by_its_wording() {
    let (rig, conversation) = active().await;
    let error = json!({"error": {"message": format!("template error: {TEMPLATE}"), "type": "api_error", "param": null, "code": null}});
    rig.provider
        .inject_next(CallerKind::Actor, 1, &answering(500, &error));
    let (answer, requests) = sent(&rig, &conversation.body(ACTIVE + 1)).await;
    assert_eq!((answer.status, requests), (200, 2));
    let (answer, requests) = sent(&rig, &conversation.body(ACTIVE + 2)).await;
    assert_eq!((answer.memory(), requests), ("active", 1));
    assert_eq!(block(&rig), Some(0));
}

/// Nothing is learned of one that gives no reason: the second attempt may have met a server that was well.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_immediate_refusal_is_tried_as_the_original_and_lowers_no_placement() {
    let (rig, conversation) = active().await;
    let mut turn = ACTIVE;
    for status in [400, 404, 405, 406, 409, 415, 422, 451, 500, 501] {
        let event = json!({"error": {"message": "a failure", "code": status}});
        for (stream, refused) in [
            (false, refusing(status, "a failure")),
            (true, event_stream(&event)),
        ] {
            turn += 1;
            rig.provider.inject_next(CallerKind::Actor, 1, &refused);
            let body = if stream {
                conversation.streamed(turn)
            } else {
                conversation.body(turn)
            };
            let (answer, requests) = sent(&rig, &body).await;
            assert_eq!((answer.status, requests), (200, 2), "{status} {stream}");
            assert!(!answer.text().contains("a failure"), "{}", answer.text());
            assert_eq!(rig.last().body, body.to_string(), "{status}");
            turn += 1;
            let (answer, requests) = sent(&rig, &conversation.body(turn)).await;
            assert_eq!((answer.memory(), requests), ("active", 1), "{status}");
            assert_eq!(block(&rig), Some(1), "{status}: no step down");
        }
    }
}

/// Some servers refuse with status 200, and some gateways collect a stream and announce its length.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_with_status_200_is_tried_as_the_original() {
    let (rig, conversation) = active().await;
    let error = json!({"error": {"message": "a failure", "code": 400}});
    for (index, refused) in [answering(200, &error), collected_stream(&error)]
        .into_iter()
        .enumerate()
    {
        let turn = ACTIVE + 1 + 2 * index;
        let body = if index == 0 {
            conversation.body(turn)
        } else {
            conversation.streamed(turn)
        };
        rig.provider.inject_next(CallerKind::Actor, 1, &refused);
        let (answer, requests) = sent(&rig, &body).await;
        assert_eq!((answer.status, requests), (200, 2), "{index}");
        assert!(!answer.text().contains("a failure"), "{}", answer.text());
        assert_eq!(rig.last().body, body.to_string());
        let (answer, requests) = sent(&rig, &conversation.body(turn + 1)).await;
        assert_eq!((answer.memory(), requests), ("active", 1), "{index}");
    }
}

/// A stream of one event whose length is announced.
fn collected_stream(event: &serde_json::Value) -> Behaviour {
    let mut collected = event_stream(event);
    let length = format!("data: {event}\n\ndata: [DONE]\n\n").len();
    collected
        .headers
        .push(("content-length", length.to_string()));
    collected
}

/// A gateway that announces the length of a refusal announces that of the next answer, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_the_original_reaches_the_client_with_an_announced_length() {
    let (rig, conversation) = active().await;
    let refused = json!({"error": {"message": "a failure", "code": 400}});
    let answer = json!({"id": "x", "object": "chat.completion.chunk", "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": "Fine."}, "finish_reason": "stop"}]});
    for event in [&refused, &answer] {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &collected_stream(event));
    }
    let body = conversation.streamed(ACTIVE + 1);
    let (answer, requests) = sent(&rig, &body).await;
    assert_eq!((answer.status, requests), (200, 2));
    assert!(answer.text().contains("Fine."), "{}", answer.text());
    assert!(!answer.text().contains("a failure"), "{}", answer.text());
}

/// Who refuses every change without a reason would cost two requests for ever.
#[tokio::test(flavor = "multi_thread")]
async fn two_unexplained_refusals_in_a_row_lower_the_placement() {
    let (rig, conversation) = active().await;
    for (turn, requests, place) in [(1, 2, None), (2, 2, None), (3, 1, Some(0))] {
        if requests == 2 {
            rig.provider
                .inject_next(CallerKind::Actor, 1, &refusing(500, "no"));
        }
        let (answer, took) = sent(&rig, &conversation.body(ACTIVE + turn)).await;
        assert_eq!((answer.status, took, block(&rig)), (200, requests, place));
    }
}

/// A signature stands beside a credential, under a name that nobody knows.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_signing_credential_stay_unchanged_after_one_refusal() {
    for status in [401, 403] {
        let (rig, conversation) = active().await;
        rig.provider
            .inject_next(CallerKind::Actor, 1, &refusing(status, "Who are you?"));
        let (answer, requests) = sent(&rig, &conversation.body(ACTIVE + 1)).await;
        assert_eq!((answer.status, requests), (200, 2), "{status}");
        assert_eq!(rig.last().body, conversation.body(ACTIVE + 1).to_string());
        for turn in 2..=3 {
            let (answer, requests) = sent(&rig, &conversation.body(ACTIVE + turn)).await;
            assert_eq!((answer.status, requests), (200, 1));
            assert_eq!(answer.memory(), "bypass; reason=signed_body", "{status}");
            assert_eq!(
                rig.last().body,
                conversation.body(ACTIVE + turn).to_string()
            );
            let line = rig.audit_entry(&answer).await;
            assert_eq!(
                (&line["memory"], &line["reason"]),
                (&json!("bypass"), &json!("signed_body"))
            );
        }
        // Another credential signs nothing.
        let body = SampleConversation::new("bob").body(1);
        let other = rig.send_as("Bearer other", &[], &body).await;
        assert_eq!(other.memory(), "watching");
    }
}

/// The credential itself is refused: that is the client's to hear, and it is no signature.
#[tokio::test(flavor = "multi_thread")]
async fn a_credential_refused_with_the_original_too_keeps_its_memory() {
    let (rig, conversation) = active().await;
    rig.provider
        .inject_next(CallerKind::Actor, 2, &Behaviour::failing(401));
    let (answer, requests) = sent(&rig, &conversation.body(ACTIVE + 1)).await;
    assert_eq!((answer.status, requests), (401, 2));
    let (answer, requests) = sent(&rig, &conversation.body(ACTIVE + 1)).await;
    assert_eq!((answer.memory(), requests), ("active", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_errors_and_refusals_of_unchanged_requests_reach_the_client() {
    let (rig, conversation) = active().await;
    for (status, message) in [
        (400, "Your credit balance is too low to access the API."),
        (
            403,
            "You exceeded your current quota, please check your plan and billing details.",
        ),
        (429, "Rate limit reached for requests"),
        (402, "Insufficient credits"),
    ] {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &refusing(status, message));
        let (answer, requests) = sent(&rig, &conversation.body(ACTIVE + 1)).await;
        assert_eq!((answer.status, requests), (status, 1), "{message}");
        assert_eq!(answer.json()["error"]["message"], message);
    }
    for status in [400, 401, 403, 404, 405, 415, 422, 500, 501] {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &refusing(status, "no"));
        let (answer, requests) = sent(&rig, &SampleConversation::new("bob").body(1)).await;
        assert_eq!((answer.status, requests), (status, 1));
        assert_eq!(answer.json()["error"]["message"], "no");
    }
}

/// What one tenant is refused moves its own block. What two are refused is the model's.
#[tokio::test(flavor = "multi_thread")]
async fn two_refused_tenants_lower_the_placement_for_all() {
    let rig = Rig::small().await;
    let tenants = ["Bearer a", "Bearer b", "Bearer c"];
    let conversation = SampleConversation::new("ada");
    for tenant in tenants {
        let answer = rig
            .play_turns_as(tenant, &[], &conversation, 1..=ACTIVE)
            .await;
        assert_eq!(answer.memory(), "active");
    }
    rig.provider.rules(|rules| rules.single_system = true);
    for (tenant, requests) in tenants.into_iter().zip([2, 2, 1]) {
        let before = rig.got().len();
        let body = conversation.body(ACTIVE + 1);
        assert_eq!(rig.send_as(tenant, &[], &body).await.status, 200);
        rig.quiet().await;
        assert_eq!(rig.got().len() - before, requests, "{tenant}");
    }
    assert_eq!(
        block(&rig),
        Some(0),
        "the third stands where it is taken at once"
    );
}

/// A client can make itself any number of tenants with a header that the upstream ignores, and have its own requests
/// refused.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn refusals_of_one_account_do_not_disable_memory_of_another() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let victim = rig
        .play_turns_as("Bearer a", &[], &conversation, 1..=ACTIVE)
        .await;
    assert_eq!(victim.memory(), "active");
    let named = refusing(400, TEMPLATE);
    let unnamed = answering(400, &json!({"error": {"message": "no"}}));
    let refusals = [("Bearer b", "1", &named), ("Bearer b", "2", &named)];
    let refusals = refusals
        .into_iter()
        .chain([("Bearer c", "1", &unnamed), ("Bearer d", "1", &unnamed)]);
    for (account, tenant, refusal) in refusals {
        let headers = [("x-any-auth", tenant)];
        rig.play_turns_as(account, &headers, &conversation, 1..=ACTIVE)
            .await;
        let mut last = String::new();
        for turn in ACTIVE + 1..=ACTIVE + 5 {
            rig.provider.inject_next(CallerKind::Actor, 1, refusal);
            let answer = rig
                .send_as(account, &headers, &conversation.body(turn))
                .await;
            rig.quiet().await;
            last = answer.memory().to_owned();
        }
        assert_eq!(last, "bypass; reason=no_placement", "{account} {tenant}");
    }
    let answer = rig
        .play_turns_as("Bearer a", &[], &conversation, ACTIVE + 1..=ACTIVE + 1)
        .await;
    assert_eq!((answer.memory(), block(&rig)), ("active", Some(1)));
}

/// Nothing but the question for usage was changed, and the refusal does not say so.
#[tokio::test(flavor = "multi_thread")]
async fn after_two_unexplained_refusals_usage_is_not_requested_any_more() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut own = conversation.streamed(1);
    own["stream_options"] = json!({"include_usage": true});
    sent(&rig, &own).await;
    for (turn, asks_usage) in [(2, true), (3, true), (4, false)] {
        if asks_usage {
            rig.provider
                .inject_next(CallerKind::Actor, 1, &refusing(400, "no"));
        }
        let before = rig.got().len();
        let (answer, requests) = sent(&rig, &conversation.streamed(turn)).await;
        assert_eq!(
            (answer.status, requests),
            (200, 1 + usize::from(asks_usage))
        );
        let first = rig.got()[before].json().unwrap();
        assert_eq!(
            first.get("stream_options").is_some(),
            asks_usage,
            "turn {turn}"
        );
    }
}

/// Servers that refuse under status 200 spell it in many ways.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_error_with_status_200_in_any_spelling_is_tried_as_the_original() {
    let message = json!({"message": TEMPLATE});
    let with_type = json!({"message": TEMPLATE, "type": "server_error"});
    let flat = json!({"object": "error", "message": TEMPLATE, "code": 400});
    let late = json!({"id": null, "error": {"message": "no", "code": 400}});
    let json_errors = [
        json!({ "error": message }),
        json!({ "error": with_type }),
        json!({ "error": TEMPLATE }),
        flat.clone(),
        late,
    ];
    for error in json_errors {
        for kind in ["application/json", "Application/JSON", "text/plain"] {
            let (rig, conversation) = active().await;
            let mut refusal = answering(200, &error);
            let fail = refusal.fail.as_mut().unwrap();
            fail.body = Some((kind, error.to_string()));
            rig.provider.inject_next(CallerKind::Actor, 1, &refusal);
            let body = conversation.body(ACTIVE + 1);
            let (answer, requests) = sent(&rig, &body).await;
            let got = (answer.status, requests, answer.text().contains("choices"));
            assert_eq!(got, (200, 2, true), "{kind}: {error}");
            assert_eq!(rig.last().body, body.to_string(), "the original");
        }
    }
    for error in [
        json!({ "error": message }),
        json!({ "error": with_type }),
        flat,
    ] {
        let (rig, conversation) = active().await;
        let refusal = event_stream(&error);
        rig.provider.inject_next(CallerKind::Actor, 1, &refusal);
        let (answer, requests) = sent(&rig, &conversation.streamed(ACTIVE + 1)).await;
        let got = (answer.status, requests, answer.text().contains("choices"));
        assert_eq!(got, (200, 2, true), "{error}");
    }
}
