//! The ladder's finer rungs: what is learned from a refusal and what is not, what is decided anew, and
//! what two equal requests agree on.

use std::sync::Arc;

use diarist_provider::{Behaviour, CallerKind, Options, RecordedRequest, Verdict};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, Caller, SampleConversation, head, refusing};

const TOO_LONG: &str = "This model's maximum context length is 9000 tokens, yours are 9100.";

fn options(body: &Value) -> Option<Value> {
    body.get("stream_options").cloned()
}

async fn watchful() -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
    ];
    Rig::with(Options::default(), &settings).await
}

/// Few bytes and many tokens: by tokens the observations are smaller, by length they are not.
#[tokio::test(flavor = "multi_thread")]
async fn if_the_block_makes_the_request_too_long_the_original_is_sent() {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "1500"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "900"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let body = |turn: usize| {
        let mut messages = vec![json!({"role": "system", "content": "Be kind."})];
        for number in 1..=turn {
            let odd = "ꙮ𐍈".repeat(25);
            messages.push(json!({"role": "user", "content": format!("{number} {odd}")}));
            if number < turn {
                messages.push(json!({"role": "assistant", "content": odd}));
            }
        }
        json!({"model": "gpt-test", "messages": messages})
    };
    let mut turn = 1;
    while rig.send(&body(turn)).await.memory() != "active" {
        rig.quiet().await;
        turn += 1;
        assert!(turn < 40, "memory never became active");
    }
    let sent = rig.last().body.len();
    assert!(sent > body(turn).to_string().len(), "the block is longer");
    rig.quiet().await;
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(400, TOO_LONG));
    let answer = rig.send(&body(turn + 1)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.memory(), "bypass; reason=refused; rung=refused");
    assert_eq!(rig.last().body, body(turn + 1).to_string());
    // Nothing is wrong with where the block stands.
    rig.quiet().await;
    let answer = rig.send(&body(turn + 2)).await;
    assert_eq!(answer.memory(), "active");
    let sent = rig.last().json().unwrap();
    assert_eq!(
        sent["messages"][0],
        body(1)["messages"][0],
        "not appended to"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_never_accepted_is_decided_anew() {
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
    rig.provider
        .inject_next(CallerKind::Actor, 2, &Behaviour::failing(429));
    for _ in 0..2 {
        let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
        assert_eq!((answer.status, answer.memory()), (429, "watching"));
    }
    observer.add_permits(1_000);
    rig.quiet().await;
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    let body = rig.last().body.clone();
    // From now on it is what it is, whatever becomes of a repetition.
    rig.provider
        .inject_next(CallerKind::Actor, 1, &Behaviour::failing(503));
    for status in [503, 200] {
        assert_eq!(
            rig.send(&conversation.body(ACTIVE + 1)).await.status,
            status
        );
        assert_eq!(rig.last().body, body);
    }
}

/// Two equal requests, both refused as too long. While the second waits for its refusal, the first is
/// sent with all that is observed, and more is observed after that.
#[tokio::test(flavor = "multi_thread")]
async fn two_equal_too_long_requests_are_sent_as_the_same_bytes() {
    let rig = watchful().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=12).await;
    let second = Arc::new(Semaphore::new(0));
    let held = Behaviour {
        gate: Some(Arc::clone(&second)),
        ..refusing(400, TOO_LONG)
    };
    let body = conversation.body(15);
    rig.provider.inject_next(CallerKind::Actor, 1, &held);
    let mut slow = Caller::connect(&rig.address()).await;
    slow.ask(&body).await;
    let came = |record: &[Arc<RecordedRequest>]| {
        let mut record = record.iter();
        record.any(|entry| matches!(entry.verdict, Verdict::Failed(400)))
    };
    rig.provider.wait_until(came).await.unwrap();
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(400, TOO_LONG));
    let answer = rig.send(&body).await;
    assert_eq!(
        answer.memory(),
        "active; rung=observed",
        "{}",
        answer.text()
    );
    let first = rig.last().body.clone();
    // The first goes on, and more is observed of what both hold.
    rig.quiet().await;
    let parts = rig.number("SELECT count(*) FROM parts").await;
    rig.play_turns(&conversation, 16..=17).await;
    assert!(rig.number("SELECT count(*) FROM parts").await > parts);
    second.add_permits(1_000);
    slow.until("rung=observed").await;
    assert_eq!(rig.last().body, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_requests_usage_exactly_as_the_first_time() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.send(&conversation.streamed(1)).await;
    let body_without_usage = rig.last().body.clone();
    rig.quiet().await;
    // A client that asks for itself shows that the upstream takes the question.
    let mut own = SampleConversation::new("bob").streamed(1);
    own["stream_options"] = json!({"include_usage": true});
    rig.send(&own).await;
    rig.quiet().await;
    rig.send(&conversation.streamed(1)).await;
    assert_eq!(rig.last().body, body_without_usage, "as it went out before");
    rig.send(&conversation.streamed(2)).await;
    let body_with_usage = rig.last().body.clone();
    assert!(options(&rig.last().json().unwrap()).is_some());
    rig.quiet().await;
    // A process that has not yet learned it.
    rig.restart().await;
    for (turn, body) in [(1, &body_without_usage), (2, &body_with_usage)] {
        rig.send(&conversation.streamed(turn)).await;
        assert_eq!(rig.last().body, *body, "turn {turn}");
    }
    rig.send(&conversation.streamed(3)).await;
    assert_eq!(options(&rig.last().json().unwrap()), None, "not known yet");
}

/// What can be no refusal of the request passes as it comes, however long its body takes.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_is_no_refusal_is_forwarded_before_its_body_ends() {
    let rig = Rig::small().await;
    for status in [401, 403, 429, 500, 503] {
        let body = Arc::new(Semaphore::new(0));
        let slow = Behaviour {
            gate: Some(Arc::clone(&body)),
            ..Behaviour::failing(status)
        };
        rig.provider.inject_next(CallerKind::Actor, 1, &slow);
        let mut caller = Caller::connect(&rig.address()).await;
        let text = SampleConversation::new("ada").body(1).to_string();
        caller.send(head(text.len()).as_bytes()).await;
        caller.send(text.as_bytes()).await;
        caller.until(&format!("HTTP/1.1 {status}")).await;
        body.add_permits(10);
        caller.until("error").await;
    }
}

/// Nobody names a parameter; the message does, or nothing does, twice in a row, and this model has never
/// taken the question.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_about_usage_does_not_move_the_block() {
    for (message, times) in [
        ("stream_options can only be used with a newer server", 1),
        ("Bad Request", 2),
    ] {
        let rig = Rig::small().await;
        let conversation = SampleConversation::new("ada");
        let mut own = SampleConversation::new("bob").streamed(1);
        own["stream_options"] = json!({"include_usage": true});
        rig.send(&own).await;
        rig.quiet().await;
        rig.play_turns(&conversation, 1..=ACTIVE).await;
        let refused = refusing(400, message);
        let turn = ACTIVE + times;
        for turn in ACTIVE + 1..=turn {
            rig.provider.inject_next(CallerKind::Actor, 1, &refused);
            let answer = rig.send(&conversation.streamed(turn)).await;
            assert_eq!(answer.memory(), "bypass; reason=refused; rung=refused");
            rig.quiet().await;
        }
        let answer = rig.send(&conversation.streamed(turn + 1)).await;
        assert_eq!(answer.memory(), "active", "{message}");
        let sent = rig.last().json().unwrap();
        let block = sent["messages"][1]["content"].as_str().unwrap();
        assert!(
            block.starts_with("<diarist-log"),
            "it stands where it stood"
        );
        assert_eq!(options(&sent), None, "not asked again");
    }
}

/// The database is locked for longer than a refusal is held back. What was applied then serves the
/// next request.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_stored_too_late_is_used_for_the_repetition() {
    let rig = watchful().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=12).await;
    let window = rig.last().prompt_usage.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    let mut other = rig.database().await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();
    let answer = rig.send(&conversation.body(13)).await;
    assert_eq!(answer.status, 400);
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    rig.until_at_least(1, "SELECT count(*) FROM snapshots")
        .await;
    rig.quiet().await;
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(13)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    assert_eq!(rig.got().len(), before + 1, "at the first attempt");
}
