//! Failures, broken answers, and clients that leave.

use std::sync::Arc;
use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind, Cut, Ending, FixedReply, Provider, Stage, Verdict};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Semaphore;

use crate::provider::client::{ask, client, post, provider, raw, read_until, streamed};

#[tokio::test]
async fn injected_failures_hit_only_their_caller_kind_and_count() {
    let provider = provider().await;
    provider.inject_next(CallerKind::Actor, 2, &Behaviour::rate_limited(7));
    for _ in 0..2 {
        let answer = post(&provider, &ask("x")).await;
        assert_eq!(
            (
                answer.status().as_u16(),
                answer.headers()["retry-after"].to_str().unwrap()
            ),
            (429, "7")
        );
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["error"]["code"], "rate_limit_exceeded");
    }
    assert_eq!(post(&provider, &ask("x")).await.status(), 200);

    provider.inject(CallerKind::Observer, Behaviour::failing(401));
    assert_eq!(post(&provider, &ask("x")).await.status(), 200);
    let mut observer = ask("x");
    observer["model"] = json!("observer-mini");
    assert_eq!(post(&provider, &observer).await.status(), 401);
    assert_eq!(
        provider.record_for(CallerKind::Observer)[0].verdict,
        Verdict::Failed(401)
    );
}

#[tokio::test]
async fn an_early_failure_does_not_wait_for_the_body() {
    let provider = provider().await;
    provider.inject_next(
        CallerKind::Actor,
        1,
        &Behaviour {
            early: true,
            ..Behaviour::failing(413)
        },
    );
    let mut socket = raw(&provider, "{", 1_000_000).await;
    assert!(
        read_until(&mut socket, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 413")
    );
}

#[tokio::test]
async fn a_cut_answer_never_looks_whole() {
    let provider = provider().await;
    provider.script(
        CallerKind::Actor,
        FixedReply("one two three four five six seven eight nine ten".into()),
    );
    for cut in [
        Cut::AfterBytes(0),
        Cut::AfterBytes(150),
        Cut::AfterEvents(2),
        Cut::ResetAfterEvents(2),
    ] {
        provider.inject_next(CallerKind::Actor, 1, &Behaviour::cutting(cut));
        let stream = post(&provider, &streamed(ask("x"))).await.bytes().await;
        assert!(stream.is_err(), "{cut:?} of a stream");
    }
    for cut in [
        Cut::AfterBytes(0),
        Cut::AfterBytes(150),
        Cut::AfterEvents(0),
    ] {
        provider.inject_next(CallerKind::Actor, 1, &Behaviour::cutting(cut));
        let plain = post(&provider, &ask("x")).await.bytes().await;
        assert!(plain.is_err(), "{cut:?} of a plain answer");
    }
    provider.inject_next(CallerKind::Actor, 1, &Behaviour::cutting(Cut::BeforeHead));
    let client = client();
    let sent = client
        .post(format!("{}/chat/completions", provider.base_url()))
        .json(&ask("x"));
    assert!(sent.send().await.is_err());
    let record = provider.wait_for(8).await.unwrap();
    assert!(
        record
            .iter()
            .all(|entry| matches!(entry.ending, Ending::Cut { .. }))
    );
}

#[tokio::test]
async fn a_reset_resets_the_connection_and_a_cut_closes_it() {
    let provider = provider().await;
    for (cut, reset) in [
        (Cut::AfterEvents(1), false),
        (Cut::ResetAfterEvents(1), true),
    ] {
        provider.inject_next(CallerKind::Actor, 1, &Behaviour::cutting(cut));
        let body = streamed(ask("x")).to_string();
        let mut socket = raw(&provider, &body, body.len()).await;
        read_until(&mut socket, "data: ").await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), socket.read_to_end(&mut rest));
        let ended = ended.await.expect("the connection ends");
        assert_eq!(ended.is_err(), reset, "{cut:?}: {ended:?}");
    }
}

/// Waits until the newest request shows that its client left, and gives the stage.
async fn hung_up(provider: &Provider) -> Stage {
    let record = provider
        .wait_until(|record| {
            record
                .last()
                .is_some_and(|entry| entry.hang_up_stage().is_some())
        })
        .await
        .unwrap();
    record.last().unwrap().hang_up_stage().unwrap()
}

#[tokio::test]
async fn a_hang_up_before_the_end_of_the_body_is_recorded() {
    let provider = provider().await;
    let socket = raw(&provider, "{\"messages\"", 1000).await;
    provider
        .wait_until(|record| record.last().is_some_and(|entry| entry.body_bytes == 11))
        .await
        .unwrap();
    drop(socket);
    assert_eq!(hung_up(&provider).await, Stage::Body);
    assert_eq!(provider.record()[0].body, "{\"messages\"".as_bytes());
}

#[tokio::test]
async fn a_hang_up_before_the_answer_head_is_recorded() {
    let provider = provider().await;
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    provider.inject(CallerKind::Actor, silent);
    let body = ask("x").to_string();
    let socket = raw(&provider, &body, body.len()).await;
    provider
        .wait_until(|record| record.last().is_some_and(|entry| entry.model.is_some()))
        .await
        .unwrap();
    drop(socket);
    assert_eq!(hung_up(&provider).await, Stage::BeforeHead);
}

type Expected<'a> = &'a dyn Fn(Stage) -> bool;

#[tokio::test]
async fn a_hang_up_during_a_stream_is_recorded_with_the_sent_amount() {
    let provider = provider().await;
    provider.script(
        CallerKind::Actor,
        FixedReply("some words that take a few events to say".into()),
    );
    let body = streamed(ask("x")).to_string();
    let gated = |permits| Behaviour::gated(&Arc::new(Semaphore::new(permits)));
    let in_frames = Behaviour {
        frame_bytes: Some(20),
        pace_frames: true,
        ..gated(1)
    };
    let held = Behaviour {
        hold_open: true,
        ..Behaviour::default()
    };
    let one_event = |stage| matches!(stage, Stage::Streaming { events: 1, bytes } if bytes > 20);
    let cases: [(Behaviour, &str, Expected<'_>); 4] = [
        (gated(0), "\r\n\r\n", &|stage| {
            stage == Stage::BeforeFirstEvent
        }),
        (gated(1), "data: ", &one_event),
        (in_frames, "data: ", &|stage| {
            stage
                == Stage::Streaming {
                    events: 0,
                    bytes: 20,
                }
        }),
        (held, "[DONE]", &|stage| stage == Stage::AfterLastEvent),
    ];
    for (behaviour, until, expected) in cases {
        provider.inject_next(CallerKind::Actor, 1, &behaviour);
        let mut socket = raw(&provider, &body, body.len()).await;
        read_until(&mut socket, until).await;
        drop(socket);
        let stage = hung_up(&provider).await;
        assert!(expected(stage), "{stage:?} with {behaviour:?}");
    }
}
