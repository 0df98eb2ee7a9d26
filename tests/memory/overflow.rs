//! What does not fit its model, beyond what is free: `overflow = "observe"`.

use std::sync::Arc;

use diarist_provider::{Behaviour, CallerKind, Options};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{SampleConversation, answering, eventually};

pub const NOTE: &str = "<diarist-gap>";

/// The messages of a body, as they stand in it.
pub fn messages(body: &[u8]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"].as_array().unwrap().clone()
}

/// How many of the newest messages of `sent` are those of `client`.
pub fn raw_tail(sent: &[Value], client: &[Value]) -> usize {
    let pairs = sent.iter().rev().zip(client.iter().rev());
    pairs.take_while(|(a, b)| a == b).count()
}

/// Observes only when it has to, and then while the client waits.
async fn observing() -> Rig {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| {
        rules.alternate = true;
        rules.system_first = true;
    });
    rig
}

pub fn observers(rig: &Rig) -> usize {
    rig.provider.record_for(CallerKind::Observer).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_too_long_request_is_observed_while_its_client_waits_once() {
    let mut rig = observing().await;
    let conversation = SampleConversation::new("ada");
    let window = 8_000;
    rig.provider.rules(|rules| rules.window = Some(window));
    // Nothing of it was ever recorded, and a stream is asked for.
    let answer = rig.send(&conversation.streamed(24)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=awaited")
    );
    assert!(answer.text().contains("[DONE]"));
    assert_eq!(rig.got().len(), 2, "refused, observed, sent again");
    let observer_calls = observers(&rig);
    assert!((1..=4).contains(&observer_calls), "{observer_calls}");
    let sent = rig.last();
    assert!(sent.is_accepted() && sent.prompt_usage.unwrap().prompt_tokens < window);
    let (parts, client) = (messages(&sent.body), conversation.messages(24));
    assert_eq!(parts[0], client[0]);
    let block = parts[1]["content"].as_str().unwrap();
    assert!(block.starts_with("<diarist-log") && !block.contains(NOTE));
    assert!(block.contains("canary77"), "what was said is in the log");
    let kept = raw_tail(&parts, &client);
    assert!(kept > 2 && kept == parts.len() - 2, "the newest stay, raw");

    // A client in a hurry goes on from there before anything of it is stored.
    let observed = rig.got().len();
    let answer = rig.send(&conversation.streamed(25)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    assert_eq!(rig.got().len(), observed + 1);

    // It is memory like any other: repeated alike, by a process that was not there, and gone on from.
    rig.quiet().await;
    rig.restart().await;
    rig.send(&conversation.streamed(24)).await;
    assert_eq!(rig.last().body, sent.body);
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(26)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    assert_eq!(rig.got().len(), before + 1);
    let head = messages(&rig.last().body);
    assert_eq!(head[..parts.len() - 1], parts[..parts.len() - 1]);
    rig.quiet().await;
    assert_eq!(observers(&rig), observer_calls, "no model was asked again");
    let lines = rig.audited(4).await;
    assert_eq!(
        (&lines[0]["rung"], &lines[0]["cause"]),
        (&json!("awaited"), &json!("overflow"))
    );
    assert_eq!(
        rig.number("SELECT count(*) FROM snapshots WHERE id < 1")
            .await,
        0
    );
    assert_eq!(
        rig.number("SELECT count(*) FROM requests WHERE snapshot < 1")
            .await,
        0
    );
}

/// However many clients wait, memory asks its models four questions at a time: they share the rate
/// limits of the conversations.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_clients_share_four_observer_calls_at_a_time() {
    const CLIENTS: usize = 6;
    let rig = observing().await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversations: Vec<SampleConversation> = (0..CLIENTS)
        .map(|n| SampleConversation::new(&format!("ada{n}")))
        .collect();
    let sent = conversations.iter().map(|conversation| async {
        let answer = rig.send(&conversation.body(24)).await;
        (answer.status, answer.memory().to_owned())
    });
    let let_through = async {
        eventually("all were refused", || rig.got().len() >= CLIENTS).await;
        eventually("four calls", || observers(&rig) >= 4).await;
        // Whoever else could call has had the time to: so many other questions were answered.
        for _ in 0..100 {
            rig.metrics().await;
        }
        let held = observers(&rig);
        gate.add_permits(1_000);
        held
    };
    let (answers, held) = tokio::join!(futures_util::future::join_all(sent), let_through);
    let all = answers
        .iter()
        .filter(|answer| answer.1 == "active; rung=awaited");
    assert_eq!(all.count(), CLIENTS, "{answers:?}");
    assert_eq!(held, 4);
}

/// A call that came to nothing while a client waited is kept like any other, where that is wanted.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_for_a_waiting_client_is_kept_as_a_bundle() {
    let bundles = tempfile::tempdir().unwrap();
    let folder = bundles.path().join("bundles");
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__BUNDLES", folder.to_str().unwrap()),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::failing(500));
    let answer = rig.send(&SampleConversation::new("ada").body(24)).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let kept = std::fs::read_dir(&folder).unwrap().flatten();
    let named = |file: &std::fs::DirEntry| {
        let name = file.file_name().to_string_lossy().into_owned();
        name.starts_with("diarist-call-chunk-awaited-")
    };
    let calls = kept.filter(named).count();
    assert!((1..=observers(&rig)).contains(&calls), "{calls}");
}

/// Some gateways answer so instead of with a status.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_long_with_status_200_is_made_shorter() {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=12).await;
    let error = json!({"error": {
        "message": "This model's maximum context length is 900 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }});
    rig.provider
        .inject_next(CallerKind::Actor, 1, &answering(200, &error));
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(13)).await;
    assert_eq!(
        answer.memory(),
        "active; rung=observed",
        "{}",
        answer.text()
    );
    assert!(!answer.text().contains("error"), "{}", answer.text());
    assert_eq!(rig.got().len(), before + 2);
}

/// What is buffered is applied first; where it is enough, nobody waits for a model.
#[tokio::test(flavor = "multi_thread")]
async fn ready_observations_are_applied_before_a_client_waits() {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
        ("MEMORY__OVERFLOW", "observe"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=12).await;
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    let (observer_calls, before) = (observers(&rig), rig.got().len());
    let answer = rig.send(&conversation.body(13)).await;
    assert_eq!(answer.memory(), "active; rung=observed");
    assert_eq!(
        (observers(&rig), rig.got().len()),
        (observer_calls, before + 2)
    );
    rig.quiet().await;
    // Where it is not, the rest is observed, and it is sent once more: three times in all.
    let (observer_calls, before) = (observers(&rig), rig.got().len());
    rig.provider.rules(|rules| rules.window = Some(2_600));
    let mut longer = conversation.body(16);
    longer["model"] = json!("gpt-other");
    let answer = rig.send(&longer).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=awaited"),
        "{}",
        answer.text()
    );
    assert!(observers(&rig) > observer_calls);
    assert!(rig.got().len() <= before + 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_observer_answer_the_refusal_is_forwarded_and_nothing_is_stored() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "300ms"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    let conversation = SampleConversation::new("ada");
    for observer in [silent, Behaviour::failing(500)] {
        rig.provider.inject(CallerKind::Observer, observer);
        let before = rig.got().len();
        let answer = rig.send(&conversation.body(24)).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        assert_eq!(rig.got().len(), before + 1);
    }
    rig.quiet().await;
    for rows in [
        "SELECT count(*) FROM nodes",
        "SELECT count(*) FROM parts",
        "SELECT count(*) FROM snapshots",
        "SELECT count(*) FROM jobs",
    ] {
        assert_eq!(rig.number(rows).await, 0, "{rows}");
    }
    // What is only read waits for nobody either.
    rig.provider
        .inject(CallerKind::Observer, Behaviour::default());
    let observer_calls = observers(&rig);
    let read = [("x-diarist-memory", "read")];
    let answer = rig
        .send_as("Bearer sk-test", &read, &conversation.body(24))
        .await;
    assert_eq!((answer.status, observers(&rig)), (400, observer_calls));
}

/// What was observed in part before a call failed is nobody else's, however alike the two requests are
/// cut.
#[tokio::test(flavor = "multi_thread")]
async fn partial_observations_of_one_tenant_are_never_used_for_another() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
        ("MEMORY__OBSERVATION__MAX_INPUT_TOKENS", "1000"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.provider
        .inject_next(CallerKind::Observer, 1, &Behaviour::default());
    rig.provider
        .inject_next(CallerKind::Observer, 1, &Behaviour::failing(500));
    let answer = rig.send_as("Bearer sk-one", &[], &ada.body(24)).await;
    assert_eq!(answer.status, 400, "nothing was left to do");
    let answer = rig.send_as("Bearer sk-two", &[], &bob.body(24)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=awaited")
    );
    let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
    assert!(
        sent.contains(&bob.observed()) && !sent.contains("ada"),
        "{sent}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_requests_wait_for_one_observation_and_are_sent_equally() {
    let rig = observing().await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let conversation = SampleConversation::new("ada");
    let body = conversation.body(24);
    let answers = futures_util::future::join_all((0..6).map(|_| rig.send(&body))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let waited = answers
        .iter()
        .filter(|answer| answer.memory().contains("awaited"));
    assert_eq!(waited.count(), 1, "the others go out as that one");
    let got = rig.got();
    let accepted: std::collections::BTreeSet<_> = got
        .iter()
        .filter(|entry| entry.is_accepted())
        .map(|entry| entry.body.clone())
        .collect();
    assert_eq!(accepted.len(), 1);
}

/// Model calls for a request that nobody took cost, and are booked only when one of its owner is taken.
#[tokio::test(flavor = "multi_thread")]
async fn the_cost_of_a_refused_request_is_booked_after_an_accepted_one() {
    let rig = observing().await;
    let too_long = json!({"message": "Input is too long for requested model."});
    let too_long = answering(400, &too_long);
    rig.provider.inject_next(CallerKind::Actor, 2, &too_long);
    let conversation = SampleConversation::new("ada");
    let answer = rig.send(&conversation.body(24)).await;
    assert_eq!(answer.status, 400);
    let observer_calls = observers(&rig);
    assert!(observer_calls > 0);
    rig.quiet().await;
    for rows in [
        "SELECT count(*) FROM lineages",
        "SELECT count(*) FROM spending",
        "SELECT count(*) FROM costs",
    ] {
        assert_eq!(rig.number(rows).await, 0, "{rows}");
    }
    rig.provider.inject_next(CallerKind::Actor, 1, &too_long);
    let answer = rig.send(&conversation.body(24)).await;
    assert_eq!(answer.memory(), "active; rung=awaited");
    rig.quiet().await;
    let calls = i64::try_from(observers(&rig)).unwrap();
    assert!(calls > i64::try_from(observer_calls).unwrap());
    assert_eq!(rig.number("SELECT sum(calls) FROM costs").await, calls);
    assert!(
        rig.number("SELECT sum(tokens) FROM spending").await
            >= rig.number("SELECT sum(sent) FROM costs").await
    );
}

/// The model works on a call that nobody waits for any more, and its provider bills it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_is_billed() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "300ms"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Observer, silent);
    assert_eq!(
        rig.send(&SampleConversation::new("ada").body(24))
            .await
            .status,
        400
    );
    assert!(observers(&rig) > 0);
    // Nothing is stored of an owner before an upstream has accepted one of its requests.
    let short = SampleConversation::new("bea");
    for turn in 1..=2 {
        assert_eq!(rig.send(&short.body(turn)).await.status, 200);
    }
    rig.quiet().await;
    let spent = "SELECT coalesce(sum(tokens), 0) FROM spending";
    assert!(rig.number(spent).await > 1_000);
}

/// What is applied when a request does not fit is decided by the thresholds of its model.
#[tokio::test(flavor = "multi_thread")]
async fn an_overflow_uses_the_thresholds_of_the_model() {
    let overrides = "[{ model = \"small-*\", observation = { message_tokens = 8000, \
                     buffer_tokens = 700 } }]";
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
        ("MEMORY__OVERRIDES", overrides),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    for (model, name, thresholds) in [("small-one", "ada", 8_000), ("large", "bob", 9_000)] {
        rig.provider.rules(|rules| rules.window = None);
        let conversation = SampleConversation {
            model,
            ..SampleConversation::new(name)
        };
        rig.play_turns(&conversation, 1..=12).await;
        let window = rig.last().prompt_usage.unwrap().prompt_tokens;
        rig.provider.rules(|rules| rules.window = Some(window));
        let answer = rig.send(&conversation.body(13)).await;
        assert_eq!(answer.memory(), "active; rung=observed", "{model}");
        rig.quiet().await;
        let made_with = "SELECT made_with ->> 'message_tokens' FROM snapshots
                         WHERE cause = 'overflow' ORDER BY id DESC LIMIT 1";
        assert_eq!(rig.number(made_with).await, thresholds, "{model}");
    }
}
