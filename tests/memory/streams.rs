//! Streams through memory: forwarded as they come, one event taken out where we asked for it, and
//! the tokens in the audit.

use std::sync::Arc;

use diarist_provider::{Behaviour, CallerKind, LineEnd, Options};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, Caller, SampleConversation};

/// The data of all events.
fn events(stream: &[u8]) -> Vec<String> {
    let text = String::from_utf8(stream.to_vec())
        .unwrap()
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    text.trim_start_matches('\u{feff}')
        .split("\n\n")
        .map(|event| {
            let lines = event.lines().filter_map(|line| line.strip_prefix("data: "));
            lines.collect::<Vec<_>>().join("\n")
        })
        .filter(|data| !data.is_empty())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_chunk_arrives_before_the_second_is_sent() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Actor, Behaviour::gated(&gate));
    let mut caller = Caller::connect(&rig.address()).await;
    caller.ask(&conversation.streamed(ACTIVE + 1)).await;
    let received = caller.until("\r\n\r\n").await;
    assert!(received.contains("x-diarist-memory: active"), "{received}");
    assert!(!received.contains("data:"));
    gate.add_permits(1);
    let received = caller.until("\n\n").await;
    assert_eq!(received.matches("data:").count(), 1, "{received}");
    gate.add_permits(1);
    caller.until("\"content\":\"").await;
    gate.add_permits(1_000);
    caller.until("data: [DONE]\n\n").await;
}

/// Sends a streamed request; the stream's bytes.
async fn stream(rig: &Rig, body: &Value) -> Vec<u8> {
    let answer = rig.send(body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.body
}

/// A rig that asks for usage by itself.
async fn rig_asking_usage() -> (Rig, SampleConversation) {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut first = conversation.streamed(1);
    first["stream_options"] = json!({"include_usage": true});
    let events = events(&stream(&rig, &first).await);
    let usage: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(usage["choices"], json!([]), "who asks gets it");
    rig.quiet().await;
    (rig, conversation)
}

fn oddities() -> Vec<(&'static str, Behaviour)> {
    let plain = Behaviour::default;
    vec![
        ("plain", plain()),
        (
            "byte by byte",
            Behaviour {
                frame_bytes: Some(1),
                ..plain()
            },
        ),
        (
            "seven bytes",
            Behaviour {
                frame_bytes: Some(7),
                ..plain()
            },
        ),
        (
            "one frame",
            Behaviour {
                frame_bytes: Some(1 << 20),
                ..plain()
            },
        ),
        (
            "CRLF",
            Behaviour {
                line_end: LineEnd::CrLf,
                frame_bytes: Some(3),
                ..plain()
            },
        ),
        (
            "CR",
            Behaviour {
                line_end: LineEnd::Cr,
                ..plain()
            },
        ),
        (
            "a mark",
            Behaviour {
                byte_order_mark: true,
                ..plain()
            },
        ),
        (
            "comments",
            Behaviour {
                comments: true,
                ..plain()
            },
        ),
        (
            "many lines",
            Behaviour {
                multi_line: true,
                frame_bytes: Some(11),
                ..plain()
            },
        ),
        (
            "unasked",
            Behaviour {
                unrequested_usage: true,
                ..plain()
            },
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_requested_by_diarist_is_audited_and_only_its_event_is_removed() {
    let (rig, conversation) = rig_asking_usage().await;
    let mut lines = 1;
    for (turn, (name, behaviour)) in (2..).zip(oddities()) {
        rig.provider.inject(CallerKind::Actor, behaviour.clone());
        for choices in [1, 2] {
            let mut body = conversation.streamed(turn);
            if choices > 1 {
                body["n"] = json!(choices);
            }
            let client_events = events(&stream(&rig, &body).await);
            lines += 1;
            let entry = rig.last();
            let request = entry.json().unwrap();
            assert_eq!(request["stream_options"]["include_usage"], true, "{name}");
            assert!(
                !client_events
                    .iter()
                    .any(|event| event.contains("\"choices\":[]")),
                "{name}"
            );

            // Nothing else is missing: the same request, asked for by the client itself, has one
            // event more.
            body["stream_options"] = json!({"include_usage": true});
            let whole = events(&stream(&rig, &body).await);
            lines += 1;
            assert_eq!(client_events.len() + 1, whole.len(), "{name}");
            assert_eq!(client_events.last().unwrap(), "[DONE]", "{name}");
            let text = |events: &[String]| -> String {
                let parsed = events
                    .iter()
                    .filter_map(|event| serde_json::from_str::<Value>(event).ok());
                parsed
                    .filter_map(|event| {
                        Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned())
                    })
                    .collect()
            };
            assert_eq!(text(&client_events), text(&whole), "{name}");

            let audited = rig.audited(lines).await;
            for line in &audited[lines - 2..] {
                let tokens = entry.prompt_usage.unwrap();
                assert_eq!(
                    line["prompt_tokens"], tokens.prompt_tokens,
                    "{name}: {line}"
                );
                assert_eq!(
                    line["completion_tokens"],
                    entry.completion_tokens.unwrap(),
                    "{name}"
                );
                assert_eq!(
                    (&line["stream"], &line["ended"]),
                    (&json!(true), &json!("complete"))
                );
            }
        }
        rig.quiet().await;
    }
    assert_eq!(rig.audited(lines).await.len(), lines, "one line a request");
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_answers_pass_unchanged_and_their_usage_is_audited() {
    let (rig, conversation) = rig_asking_usage().await;
    let gzip = Behaviour {
        gzip: true,
        frame_bytes: Some(13),
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Actor, gzip);
    let mut body_with_usage = conversation.streamed(2);
    body_with_usage["stream_options"] = json!({"include_usage": true});
    for body in [body_with_usage, conversation.body(3)] {
        let answer = rig.send(&body).await;
        assert_eq!(answer.headers["content-encoding"], "gzip");
        let mut plain = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(answer.body.as_slice());
        std::io::Read::read_to_end(&mut decoder, &mut plain).unwrap();
        assert!(memchr::memmem::find(&plain, b"\"usage\"").is_some());
        let entry = rig.last();
        let line = rig
            .audited(if body["stream"] == true { 2 } else { 3 })
            .await
            .pop()
            .unwrap();
        assert_eq!(
            line["prompt_tokens"],
            entry.prompt_usage.unwrap().prompt_tokens,
            "{line}"
        );
        assert_eq!(
            line["cached_tokens"],
            entry.prompt_usage.unwrap().cached_tokens
        );
        assert_eq!(line["completion_tokens"], entry.completion_tokens.unwrap());
        rig.quiet().await;
    }
    assert_eq!(
        rig.number("SELECT count(*) FROM requests").await,
        3,
        "they count"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mix_of_streamed_and_whole_answers_activates_memory() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        let body = if turn % 2 == 0 {
            conversation.streamed(turn)
        } else {
            conversation.body(turn)
        };
        assert_eq!(rig.send(&body).await.status, 200);
        rig.quiet().await;
    }
    let answer = rig.send(&conversation.streamed(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "active");
    let lines = rig.audited(ACTIVE + 1).await;
    for (line, entry) in lines.iter().zip(rig.got()) {
        let whole = line["stream"] == false;
        let reported = whole.then(|| entry.prompt_usage.unwrap().prompt_tokens);
        assert_eq!(
            line.get("prompt_tokens").and_then(Value::as_u64),
            reported.map(u64::from)
        );
        assert!(line["ttfb_ms"].as_u64() <= line["total_ms"].as_u64());
    }
}

/// The missing `[DONE]` is no error where every choice has its finish reason. A filtered answer is no accepted exchange.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_done_is_recorded_and_a_filtered_answer_is_not() {
    let rig = Rig::small().await;
    let open_ended = Behaviour {
        omit_done: true,
        ..Behaviour::default()
    };
    rig.provider.inject_next(CallerKind::Actor, 1, &open_ended);
    rig.send(&SampleConversation::new("ada").streamed(1)).await;
    rig.quiet().await;
    // Without `[DONE]`, but every choice has its finish reason. So this is the second request of its
    // conversation.
    rig.send(&SampleConversation::new("ada").streamed(1)).await;
    rig.quiet().await;
    assert_eq!(rig.number("SELECT count(*) FROM requests").await, 1);
    rig.provider.script(
        CallerKind::Actor,
        |_: &diarist_provider::ScriptInput<'_>| diarist_provider::Reply::filtered(),
    );
    rig.send(&SampleConversation::new("bob").streamed(1)).await;
    rig.send(&SampleConversation::new("bob").body(1)).await;
    rig.quiet().await;
    assert_eq!(rig.number("SELECT count(*) FROM requests").await, 1);
}

/// It costs the clients of that upstream their compression.
#[tokio::test(flavor = "multi_thread")]
async fn usage_is_requested_only_once_from_an_upstream_that_compresses_anyway() {
    let (rig, conversation) = rig_asking_usage().await;
    let gzip = Behaviour {
        gzip: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Actor, gzip);
    for (turn, asks_usage) in [(2, true), (3, false)] {
        stream(&rig, &conversation.streamed(turn)).await;
        let sent = rig.last().json().unwrap();
        assert_eq!(
            sent.get("stream_options").is_some(),
            asks_usage,
            "turn {turn}"
        );
        rig.quiet().await;
    }
}

/// The client has asked for no usage and hears of none, whatever the upstream makes of the wish for plain
/// bytes. What it gets is decoded as it comes.
#[tokio::test(flavor = "multi_thread")]
async fn usage_requested_by_diarist_is_removed_from_a_compressed_stream() {
    for frame_bytes in [None, Some(1), Some(13), Some(1 << 20)] {
        let (rig, conversation) = rig_asking_usage().await;
        let gzip = Behaviour {
            gzip: true,
            frame_bytes,
            ..Behaviour::default()
        };
        rig.provider.inject(CallerKind::Actor, gzip);
        let answer = rig.send(&conversation.streamed(2)).await;
        assert_eq!(answer.status, 200);
        let entry = rig.last();
        assert!(entry.json().unwrap().get("stream_options").is_some());
        assert!(!answer.headers.contains_key("content-encoding"));
        assert!(!answer.headers.contains_key("content-length"));
        let client_events = events(&answer.body);
        assert!(
            !answer.text().contains("\"choices\":[]"),
            "{client_events:?}"
        );
        assert_eq!(client_events.last().unwrap(), "[DONE]");
        assert!(
            client_events.len() > 3,
            "the answer is whole: {client_events:?}"
        );
        let line = rig.audit_entry(&answer).await;
        assert_eq!(
            line["prompt_tokens"],
            entry.prompt_usage.unwrap().prompt_tokens
        );
        assert_eq!(line["completion_tokens"], entry.completion_tokens.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_came_compressed_is_not_held_back() {
    let (rig, conversation) = rig_asking_usage().await;
    let gate = Arc::new(Semaphore::new(0));
    let gzip = Behaviour {
        gzip: true,
        ..Behaviour::gated(&gate)
    };
    rig.provider.inject(CallerKind::Actor, gzip);
    let mut caller = Caller::connect(&rig.address()).await;
    caller.ask(&conversation.streamed(2)).await;
    gate.add_permits(2);
    let received = caller.until("\"content\":\"").await;
    assert!(!received.contains("[DONE]") && !received.contains("content-encoding"));
    gate.add_permits(1_000);
    caller.until("data: [DONE]\n\n").await;
}

/// A rig where usage is asked as the operator says.
async fn rig_with_ask_usage(setting: &str) -> Rig {
    Rig::with(Options::default(), &[("AUDIT__ASK_USAGE", setting)]).await
}

fn asks_usage(rig: &Rig) -> bool {
    rig.last().json().unwrap().get("stream_options").is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_ask_usage_always_usage_is_requested_until_it_is_refused() {
    let rig = rig_with_ask_usage("always").await;
    let conversation = SampleConversation::new("ada");
    // Nobody knows this upstream.
    for turn in 1..=2 {
        let answer = rig.send(&conversation.streamed(turn)).await;
        assert!(asks_usage(&rig), "turn {turn}");
        assert!(
            !answer.text().contains("\"choices\":[]"),
            "{}",
            answer.text()
        );
        let line = rig.audit_entry(&answer).await;
        assert!(line["prompt_tokens"].is_u64(), "{line}");
        rig.quiet().await;
    }
    rig.provider
        .rules(|rules| rules.refuse_stream_options = true);
    for (turn, requests) in [(3, 2), (4, 1)] {
        let before = rig.got().len();
        stream(&rig, &conversation.streamed(turn)).await;
        rig.quiet().await;
        assert_eq!(
            (rig.got().len() - before, asks_usage(&rig)),
            (requests, false)
        );
    }
}

/// Clients read such a stream all the same.
#[tokio::test(flavor = "multi_thread")]
async fn usage_is_removed_from_a_stream_without_a_content_type() {
    let rig = rig_with_ask_usage("always").await;
    let untyped = Behaviour {
        omit_content_type: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Actor, untyped);
    let answer = rig.send(&SampleConversation::new("ada").streamed(1)).await;
    assert!(asks_usage(&rig) && !answer.headers.contains_key("content-type"));
    let text = answer.text();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(!text.contains("\"choices\":[]"), "{text}");
    let line = rig.audit_entry(&answer).await;
    assert!(line["prompt_tokens"].is_u64(), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_ask_usage_never_usage_is_never_requested() {
    let rig = rig_with_ask_usage("never").await;
    let conversation = SampleConversation::new("ada");
    let mut own = conversation.streamed(1);
    own["stream_options"] = json!({"include_usage": true});
    assert!(String::from_utf8_lossy(&stream(&rig, &own).await).contains("\"choices\":[]"));
    rig.quiet().await;
    stream(&rig, &conversation.streamed(2)).await;
    assert_eq!(rig.last().body, conversation.streamed(2).to_string());
}

/// What was asked before is not asked again where that is not wanted any more, not even to go out alike.
#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_requests_no_usage_after_ask_usage_is_set_to_never() {
    let mut rig = rig_with_ask_usage("always").await;
    let conversation = SampleConversation::new("ada");
    stream(&rig, &conversation.streamed(1)).await;
    assert!(asks_usage(&rig));
    rig.quiet().await;
    rig.set("AUDIT__ASK_USAGE", "never");
    rig.restart().await;
    stream(&rig, &conversation.streamed(1)).await;
    assert!(!asks_usage(&rig));
}
