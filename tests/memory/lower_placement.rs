//! A block that is refused where it stands, and a conversation that does not fit its model without it:
//! the block goes where the model takes it, and the placement steps down.

use diarist_provider::{Behaviour, CallerKind, Options};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{SampleConversation, refusing};

const TURNS: usize = 16;

/// A clock in the first message makes each request a view, with that message in front of the block.
fn clocked(conversation: &SampleConversation, turn: usize, stream: bool) -> Value {
    let mut messages = conversation.messages(turn);
    let content = messages[1]["content"].as_str().unwrap();
    messages[1]["content"] = json!(format!("It is {turn} past. {content}"));
    json!({"model": conversation.model, "messages": messages, "stream": stream})
}

/// The message of `body` that holds the block.
fn block(body: &Value) -> Option<usize> {
    let holds = |message: &Value| message["content"].to_string().contains("<diarist-log");
    body["messages"].as_array().unwrap().iter().position(holds)
}

impl Rig {
    /// Where the block stood in each request since the first `before`, and whether it was taken.
    fn attempts(&self, before: usize) -> Vec<(Option<usize>, bool)> {
        let since = self.got().split_off(before);
        since
            .iter()
            .map(|entry| (block(&entry.json().unwrap()), entry.is_accepted()))
            .collect()
    }
}

/// Says what is wrong in the first event of a stream.
fn inside() -> Behaviour {
    Behaviour {
        refuse_in_stream: true,
        ..Behaviour::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Whole,
    Streamed,
    /// What is too long is said under status 200.
    InStream,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_aligned_request_with_a_refused_block_is_sent_one_placement_lower() {
    for answers in [Answers::Whole, Answers::Streamed, Answers::InStream] {
        let stream = answers != Answers::Whole;
        let mut rig = Rig::small().await;
        let conversation = SampleConversation::new("ada");
        for turn in 1..=TURNS {
            let answer = rig.send(&clocked(&conversation, turn, stream)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            rig.quiet().await;
        }
        let last = rig.last();
        assert_eq!(block(&last.json().unwrap()), Some(2), "behind its front");
        let room = last.prompt_usage.unwrap().prompt_tokens + 700;
        rig.provider.rules(|rules| {
            rules.system_first = true;
            rules.window = Some(room);
        });
        for (turn, restarts) in [(TURNS + 1, false), (TURNS + 3, true)] {
            if restarts {
                rig.restart().await;
            }
            if answers == Answers::InStream {
                rig.provider
                    .inject_next(CallerKind::Actor, 1, &Behaviour::default());
                rig.provider.inject_next(CallerKind::Actor, 1, &inside());
            }
            let before = rig.got().len();
            let answer = rig.send(&clocked(&conversation, turn, stream)).await;
            assert_eq!(answer.status, 200, "{answers:?}: {}", answer.text());
            let tried = [(Some(2), false), (None, false), (Some(0), true)];
            assert_eq!(rig.attempts(before), tried, "{answers:?}");
            assert!(!answer.text().contains("error"), "{}", answer.text());
            if answers != Answers::InStream {
                assert_eq!(answer.memory(), "active; rung=lowered");
            }
            rig.quiet().await;
            let line = rig.audit_entry(&answer).await;
            assert_eq!(
                (&line["rung"], &line["memory"], &line["reason"]),
                (&json!("lowered"), &json!("active"), &json!("too_long"))
            );
            // Once: the same again and the next turn go out at the first attempt.
            let sent = rig.last().body.clone();
            let before = rig.got().len();
            rig.send(&clocked(&conversation, turn, stream)).await;
            assert_eq!(rig.attempts(before), [(Some(0), true)], "{answers:?}");
            assert_eq!(rig.last().body, sent);
            rig.quiet().await;
            let before = rig.got().len();
            let next = rig.send(&clocked(&conversation, turn + 1, stream)).await;
            assert_eq!((next.status, next.memory()), (200, "active"));
            assert_eq!(rig.attempts(before), [(Some(0), true)], "{answers:?}");
            rig.quiet().await;
        }
    }
}

/// The block is new where the conversation does not fit, and the first thing the model says of it is no.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_overflow_block_is_sent_again_one_placement_lower() {
    for (overflow, rung) in [
        ("pass", "observed"),
        ("trim", "trimmed"),
        ("observe", "awaited"),
    ] {
        let settings = [
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
            ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
            ("MEMORY__OVERFLOW", overflow),
            ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
            ("UPSTREAM__PLACEMENT", "segments"),
        ];
        let rig = Rig::with(Options::default(), &settings).await;
        let conversation = SampleConversation::new("ada");
        // With "pass" it is observed, and waits for its threshold; else nothing of it is known.
        let turns = if overflow == "pass" { 12 } else { 24 };
        if overflow == "pass" {
            rig.play_turns(&conversation, 1..=turns).await;
        }
        rig.provider.rules(|rules| {
            rules.single_system = true;
            rules.window = Some(5_000);
        });
        let before = rig.got().len();
        let answer = rig.send(&conversation.body(turns + 1)).await;
        let tried = rig.attempts(before);
        assert_eq!(
            answer.status,
            200,
            "{overflow}: {tried:?} {}",
            answer.text()
        );
        assert_eq!(
            answer.memory(),
            format!("active; rung={rung}"),
            "{overflow}"
        );
        let places = [
            (None, false),
            (Some(1), false),
            (Some(1), false),
            (Some(0), true),
        ];
        assert_eq!(tried, places, "{overflow}");
        rig.quiet().await;
        let before = rig.got().len();
        let next = rig.send(&conversation.body(turns + 2)).await;
        assert_eq!(next.status, 200, "{overflow}: {}", next.text());
        assert_eq!(rig.attempts(before), [(Some(0), true)], "{overflow}");
    }
}

/// Where it is not the place that is refused, nothing is learned of places, and the client hears of its
/// own prompt.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_refused_in_every_placement_lowers_no_placement() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    let room = rig.last().prompt_usage.unwrap().prompt_tokens + 700;
    rig.provider.rules(|rules| rules.window = Some(room));
    let declined = refusing(400, "We do not like these words.");
    rig.provider.inject_next(CallerKind::Actor, 1, &declined);
    rig.provider
        .inject_next(CallerKind::Actor, 1, &Behaviour::default());
    rig.provider.inject_next(CallerKind::Actor, 1, &declined);
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(TURNS + 1)).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    let tried = [(Some(1), false), (None, false), (Some(0), false)];
    assert_eq!(rig.attempts(before), tried);
    rig.quiet().await;
    let before = rig.got().len();
    let answer = rig.send(&conversation.body(TURNS + 1)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    assert_eq!(rig.attempts(before), [(Some(1), true)]);
}

/// The question for usage is refused, and the conversation does not fit without its block: the block
/// stays where it stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_usage_request_moves_no_block_of_a_long_prompt() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut own = SampleConversation::new("bob").streamed(1);
    own["stream_options"] = json!({"include_usage": true});
    rig.send(&own).await;
    rig.play_turns(&conversation, 1..=TURNS).await;
    let room = rig.last().prompt_usage.unwrap().prompt_tokens + 700;
    rig.provider.rules(|rules| {
        rules.refuse_stream_options = true;
        rules.window = Some(room);
    });
    for (turn, tried) in [
        (1, &[(Some(1), false), (None, false), (Some(1), true)][..]),
        (2, &[(Some(1), true)]),
    ] {
        let before = rig.got().len();
        let answer = rig.send(&conversation.streamed(TURNS + turn)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(rig.attempts(before), tried, "turn {turn}");
        rig.quiet().await;
    }
}
