//! What is done when the upstream refuses: the original once, what is observed once, else nothing.

use diarist_provider::{Behaviour, CallerKind, Cut, Options};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, refusing};

/// Where the text of a block stands, as (index, role).
fn block(body: &Value) -> Option<(usize, String)> {
    let messages = body["messages"].as_array().unwrap();
    messages.iter().enumerate().find_map(|(at, message)| {
        let text = message["content"].as_str()?;
        text.contains("<diarist-log")
            .then(|| (at, message["role"].as_str().unwrap().to_owned()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_placement_is_left_out_once_and_steps_down_for_that_model_only() {
    let rig = Rig::small().await;
    rig.provider.rules(|rules| rules.single_system = true);
    let conversation = SampleConversation::new("ada");
    let mut requests_by_turn = Vec::new();
    let mut refused_at = None;
    for turn in 1..=ACTIVE + 2 {
        let before = rig.got().len();
        let answer = rig.play_turns(&conversation, turn..=turn).await;
        let new = rig.got().split_off(before);
        if answer.memory() == "bypass; reason=refused; rung=refused" {
            assert_eq!(refused_at, None, "it is tried once");
            refused_at = Some(turn);
            let [refused, original] = &new[..] else {
                panic!("two requests: {new:?}")
            };
            assert!(refused.refusal().is_some() && original.is_accepted());
            assert_eq!(block(&refused.json().unwrap()), Some((1, "system".into())));
            assert_eq!(original.body, conversation.body(turn).to_string());
        } else {
            assert_eq!(new.len(), 1, "turn {turn}");
        }
        requests_by_turn.push(new);
    }
    let refused_at = refused_at.unwrap();
    // From the next turn on the block stands in the client's own system message.
    for turn in refused_at + 1..=ACTIVE + 2 {
        let body = requests_by_turn[turn - 1][0].json().unwrap();
        assert_eq!(block(&body), Some((0, "system".into())), "turn {turn}");
    }
    // The refused request goes out again as it was accepted, at once.
    let before = rig.got().len();
    rig.play_turns(&conversation, refused_at..=refused_at).await;
    assert_eq!(rig.got().len(), before + 1);
    assert_eq!(rig.last().body, conversation.body(refused_at).to_string());

    // Another model has learned nothing, and is asked for itself.
    let other = SampleConversation {
        model: "gpt-other",
        ..conversation.clone()
    };
    let answer = rig.play_turns(&other, ACTIVE + 3..=ACTIVE + 3).await;
    assert_eq!(answer.memory(), "bypass; reason=refused; rung=refused");
    // The turns, the one that came again, and that of the other model.
    let lines = rig.audited(ACTIVE + 4).await;
    let rungs = lines.iter().filter(|line| line["rung"] == "refused");
    assert_eq!(rungs.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn strict_providers_accept_every_changed_request() {
    for mode in ["alternate", "system_first", "json_object", "all"] {
        let rig = Rig::small().await;
        rig.provider.rules(|rules| {
            rules.alternate = matches!(mode, "alternate" | "all");
            rules.system_first = matches!(mode, "system_first" | "all");
        });
        for system in [Some("Answer in JSON."), None] {
            let conversation = SampleConversation {
                system,
                ..SampleConversation::new(mode)
            };
            let mut last = String::new();
            for turn in 1..=ACTIVE {
                let mut body = conversation.body(turn);
                if mode == "json_object" && system.is_some() {
                    body["response_format"] = json!({"type": "json_object"});
                }
                let answer = rig.send(&body).await;
                assert_eq!(answer.status, 200, "{mode}: {}", answer.text());
                last = answer.memory().to_owned();
                rig.quiet().await;
            }
            assert_eq!(last, "active", "{mode} {system:?}");
        }
        assert!(rig.got().iter().all(|entry| entry.is_accepted()), "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_refusal_of_the_original_is_forwarded_and_no_placement_is_lowered() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(400, "not so"));
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(422, "nor so"));
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["error"]["message"], "nor so");
    assert_eq!(rig.got().len(), before + 2);
    assert_eq!(rig.last().body, conversation.body(ACTIVE + 1).to_string());
    let answer = rig.play_turns(&conversation, ACTIVE + 2..=ACTIVE + 2).await;
    assert_eq!(answer.memory(), "active");
    let at = block(&rig.last().json().unwrap());
    assert_eq!(at, Some((1, "system".into())), "no step down");
}

/// The upstream refuses what was changed, and is gone when it is asked for the original.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_answer_to_the_original_the_client_gets_the_first_refusal() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(400, "not so"));
    let gone = Behaviour::cutting(Cut::BeforeHead);
    rig.provider.inject_next(CallerKind::Actor, 1, &gone);
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(answer.json()["error"]["message"], "not so");
    assert_eq!(answer.memory(), "active", "what it is the answer to");
    assert_eq!(rig.got().len(), before + 2);
    rig.quiet().await;
    let line = rig.audited(ACTIVE + 1).await.pop().unwrap();
    assert_eq!(
        (&line["status"], &line["rung"]),
        (&json!(400), &json!("whole"))
    );
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "active");
    let at = block(&rig.last().json().unwrap());
    assert_eq!(at, Some((1, "system".into())), "no step down");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_is_no_refusal_passes_unchanged_without_a_retry() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let sent = {
        rig.send(&conversation.body(ACTIVE + 1)).await;
        rig.last().body.clone()
    };
    for status in [402, 408, 429, 502, 503, 504] {
        let before = rig.got().len();
        rig.provider
            .inject_next(CallerKind::Actor, 1, &refusing(status, "a failure"));
        let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["error"]["message"], "a failure");
        assert_eq!(answer.memory(), "active");
        assert_eq!(rig.got().len(), before + 1, "{status}");
        assert_eq!(rig.last().body, sent, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_requested_after_an_acceptance_and_not_after_a_refusal() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let options = |body: &Value| body.get("stream_options").cloned();
    // Nobody knows this upstream: nothing is asked on the client's behalf.
    rig.send(&conversation.streamed(1)).await;
    assert_eq!(options(&rig.last().json().unwrap()), None);
    let mut body_with_usage = conversation.streamed(2);
    body_with_usage["stream_options"] = json!({"include_usage": true});
    rig.send(&body_with_usage).await;
    rig.quiet().await;
    rig.send(&conversation.streamed(3)).await;
    let wanted = json!({"include_usage": true});
    assert_eq!(options(&rig.last().json().unwrap()), Some(wanted));
    // A client that says no is taken at its word.
    let mut refuses = conversation.streamed(4);
    refuses["stream_options"] = json!({"include_usage": false});
    rig.send(&refuses).await;
    assert_eq!(rig.last().body, refuses.to_string());

    rig.provider
        .rules(|rules| rules.refuse_stream_options = true);
    let before = rig.got().len();
    let answer = rig.send(&conversation.streamed(5)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(rig.got().len(), before + 2);
    assert_eq!(rig.last().body, conversation.streamed(5).to_string());
    for turn in 6..=8 {
        let before = rig.got().len();
        let answer = rig.send(&conversation.streamed(turn)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(rig.got().len(), before + 1, "never again");
    }
    // A client that asks for itself is told itself.
    let answer = rig.send(&body_with_usage).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "stream_options");
}

/// Much is observed, and little of it is due.
async fn watchful() -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
    ];
    Rig::with(Options::default(), &settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_too_long_request_gets_all_ready_observations_and_repeats_equally() {
    let rig = watchful().await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=12).await;
    assert_eq!(answer.memory(), "watching");
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    // No model is waited for: the Observer says nothing any more.
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Observer, silent);

    let answer = rig.send(&conversation.body(13)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.memory(), "active; rung=observed");
    let got = rig.got();
    let [.., raw, observed] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(raw.body, conversation.body(13).to_string());
    assert_eq!(raw.refusal().unwrap().code, Some("context_length_exceeded"));
    assert!(observed.is_accepted());
    assert!(observed.messages < raw.messages / 2, "everything observed");
    let line = rig.audited(13).await.pop().unwrap();
    assert_eq!(
        (&line["rung"], &line["cause"]),
        (&json!("observed"), &json!("overflow"))
    );

    for _ in 0..3 {
        let answer = rig.send(&conversation.body(13)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(rig.last().body, observed.body, "the same bytes");
    }
    assert_eq!(rig.got().len(), got.len() + 3, "each of them once");
    // Memory goes on from there.
    let answer = rig.send(&conversation.body(14)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_too_long_request_without_observations_gets_the_upstream_refusal() {
    let rig = watchful().await;
    rig.provider.rules(|rules| rules.window = Some(500));
    let conversation = SampleConversation::new("ada");
    let direct = rig
        .client
        .post(format!("{}/chat/completions", rig.provider.base_url()))
        .body(conversation.body(9).to_string())
        .send()
        .await
        .unwrap();
    let direct = direct.text().await.unwrap();
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(9)).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.text(), direct);
    assert_eq!(rig.got().len(), before + 1);
}

/// A snapshot that waits for a longer request is of use to this one, where it does not fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_snapshot_is_applied_early_to_a_too_long_request() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut turn = 0;
    while rig.number("SELECT count(*) FROM snapshots").await == 0 {
        turn += 1;
        rig.play_turns(&conversation, turn..=turn).await;
    }
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    // The newest message was edited: as long a history, so it may not be sent with the snapshot yet.
    let mut edited = conversation.body(turn);
    let messages = edited["messages"].as_array_mut().unwrap();
    let longer = format!(
        "{} And more. {}",
        messages.pop().unwrap()["content"],
        "more ".repeat(40)
    );
    messages.push(json!({"role": "user", "content": longer}));
    let answer = rig.send(&edited).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=observed")
    );
    let body = rig.last().body.clone();
    rig.quiet().await;
    rig.send(&edited).await;
    assert_eq!(rig.last().body, body);
}

/// Fewer bytes may be more tokens: where nothing else is left, the client's own request is tried.
#[tokio::test(flavor = "multi_thread")]
async fn if_shorter_requests_are_refused_as_too_long_the_original_is_tried() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.quiet().await;
    let body = conversation.body(ACTIVE + 1);
    let long = refusing(400, "Input is too long for requested model.");
    rig.provider.inject_next(CallerKind::Actor, 2, &long);
    let before = rig.got().len();
    let answer = rig.send(&body).await;
    let sent: Vec<usize> = rig.got()[before..].iter().map(|e| e.body.len()).collect();
    assert_eq!(answer.status, 200, "{sent:?} {}", answer.text());
    let own = body.to_string();
    assert_eq!(rig.last().body, own.as_bytes(), "the client's own");
    assert!(sent[0] < own.len() && sent[0] * 2 > own.len(), "{sent:?}");
    assert_eq!(sent.len(), 3, "{sent:?}");
}

/// A request is refused while the Observer is still busy. When it has written, the same request is
/// no longer the client's to shorten.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_too_long_request_fits_after_its_messages_are_observed() {
    let rig = Rig::small().await;
    let observer = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&observer));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        assert_eq!(
            rig.send(&conversation.body(turn)).await.memory(),
            "watching"
        );
    }
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    let refused = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(refused.status, 400);
    observer.add_permits(1_000);
    rig.quiet().await;
    assert!(rig.number("SELECT count(*) FROM snapshots").await > 0);

    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = rig.last().body.clone();
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.status, 200);
    assert_eq!((rig.got().len(), &rig.last().body), (before + 1, &body));
}

/// The client knows what to do about a prompt that is too long, not about a block it never wrote.
#[tokio::test(flavor = "multi_thread")]
async fn if_the_block_is_refused_the_client_gets_the_too_long_refusal() {
    let rig = watchful().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=12).await;
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    rig.provider
        .inject_next(CallerKind::Actor, 1, &Behaviour::default());
    let disliked = refusing(400, "We do not like these words.");
    rig.provider.inject_next(CallerKind::Actor, 2, &disliked);
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(13)).await;
    // Its own, with what is observed, and that where every model takes it.
    assert_eq!(rig.got().len(), before + 3);
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.json()["error"]["code"],
        "context_length_exceeded",
        "{}",
        answer.text()
    );
}
