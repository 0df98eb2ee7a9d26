//! A client whose requests are views, and a model that reads less than they hold: what is done for a
//! request that does not fit holds for a view of a conversation as well.

use std::collections::BTreeSet;

use diarist_provider::{CallerKind, Options};
use serde_json::Value;

use crate::alignment::harness::{Client, chat_settings, conversation, marks, set_answer};
use crate::alignment::script::reworded;
use crate::memory::rig::{Answer, Rig};

/// The first `turn` messages of a conversation in which much is said at once, behind the 41st; a clock
/// in the first one makes each request a view.
fn clocked(turn: usize) -> Vec<Value> {
    let mut all = conversation("it", turn);
    for message in all.iter_mut().take(49).skip(41) {
        *message = reworded(message, |words| [words; 6].join(" "));
    }
    all[0] = reworded(&all[0], |words| format!("It is {turn} past. {words}"));
    all
}

/// The newest of the first `turn` messages, from a question on.
fn window(turn: usize) -> Vec<Value> {
    conversation("it", turn).split_off(turn.saturating_sub(25))
}

/// What the model answers to the first `turn` messages: what the next request holds behind them.
fn answer(shape: fn(usize) -> Vec<Value>, turn: usize) -> Option<Value> {
    shape(turn + 1).pop()
}

/// What a request that may not have fitted led to.
struct ReceivedRequest {
    answer: Answer,
    /// How often the model was asked.
    attempts: usize,
    body: String,
    raw: usize,
    /// Marks of the client's messages that are neither raw nor told of.
    missing: BTreeSet<String>,
    line: Value,
}

struct OverflowRig {
    rig: Rig,
    shape: fn(usize) -> Vec<Value>,
}

impl OverflowRig {
    /// A conversation of so many messages, sent as `shape` makes it; from now on the model reads no more
    /// than `limit` makes of its last request.
    async fn set(
        overflow: &str,
        shape: fn(usize) -> Vec<Value>,
        turns: usize,
        limit: impl Fn(u32) -> u32,
    ) -> Self {
        let mut settings = chat_settings().to_vec();
        settings.push(("MEMORY__OVERFLOW", overflow));
        settings.push(("MEMORY__OVERFLOW_TIMEOUT", "20s"));
        let mut rig = Rig::with(Options::default(), &settings).await;
        rig.provider.rules(|rules| rules.alternate = true);
        let mut aligned = 0;
        for turn in (1..=turns).step_by(2) {
            let mut client = Client::new(&mut rig);
            let answer = answer(shape, turn);
            let sent_request = client.send_with_answer(&shape(turn), answer.as_ref()).await;
            aligned += usize::from(sent_request.reason == "aligned");
        }
        assert!(aligned > 2, "{aligned} requests were views");
        let last = rig.provider.record_for(CallerKind::Actor).pop().unwrap();
        let tokens = last.prompt_usage.unwrap().prompt_tokens;
        rig.provider
            .rules(|rules| rules.window = Some(limit(tokens)));
        Self { rig, shape }
    }

    async fn send(&mut self, turn: usize) -> ReceivedRequest {
        let messages = (self.shape)(turn);
        let body = Client::new(&mut self.rig).body(&messages);
        let before = self.rig.provider.record_for(CallerKind::Actor).len();
        set_answer(&self.rig, answer(self.shape, turn).as_ref());
        let answer = self.rig.send(&body).await;
        self.rig.quiet().await;
        let record = self.rig.provider.record_for(CallerKind::Actor);
        let body = String::from_utf8_lossy(&record.last().unwrap().body).into_owned();
        let sent: Value = serde_json::from_str(&body).unwrap();
        let sent = sent["messages"].as_array().unwrap();
        let held = marks(&body);
        let missing = messages.iter().filter(|m| !sent.contains(m));
        let missing = missing.flat_map(|m| marks(&m.to_string()));
        ReceivedRequest {
            line: self.rig.audit_entry(&answer).await,
            answer,
            attempts: record.len() - before,
            raw: sent.iter().filter(|m| messages.contains(m)).count(),
            missing: missing.filter(|mark| !held.contains(mark)).collect(),
            body,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aligned_request_is_trimmed_and_the_next_requests_keep_the_cut() {
    let mut stage = OverflowRig::set("trim", clocked, 41, |tokens| tokens + 1_200).await;
    let trimmed = stage.send(49).await;
    assert_eq!(
        (trimmed.answer.status, trimmed.answer.memory()),
        (200, "active; rung=trimmed")
    );
    assert!(trimmed.attempts > 1 && trimmed.raw >= 1);
    assert!(trimmed.body.contains("<diarist-gap>"));
    // What is said to be missing is missing, and only that.
    let missing = trimmed.missing.len();
    assert!(missing > 0);
    assert_eq!(trimmed.line["trimmed"], missing, "{:?}", trimmed.missing);
    assert!(
        trimmed.body.contains(&format!("The {missing} messages")),
        "{}",
        trimmed.body
    );
    for restart in [false, true] {
        if restart {
            stage.rig.restart().await;
        }
        let again = stage.send(49).await;
        assert_eq!(again.attempts, 1, "restart {restart}");
        assert!(again.body == trimmed.body, "restart {restart}");
    }
    // The conversation goes on: no second attempt, by whatever process.
    for (turn, restart) in [(51, false), (53, true)] {
        if restart {
            stage.rig.restart().await;
        }
        let next = stage.send(turn).await;
        assert_eq!((next.answer.status, next.attempts), (200, 1), "{turn}");
        assert_eq!(
            next.line["trimmed"].as_u64().unwrap_or_default(),
            next.missing.len() as u64,
            "{turn}: {:?}",
            next.missing
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aligned_request_is_observed_while_its_client_waits() {
    let mut stage = OverflowRig::set("observe", clocked, 41, |tokens| tokens + 1_200).await;
    let calls = |rig: &Rig| rig.provider.record_for(CallerKind::Observer).len();
    let before = calls(&stage.rig);
    let came = stage.send(49).await;
    assert_eq!(
        (came.answer.status, came.answer.memory()),
        (200, "active; rung=awaited")
    );
    assert!(came.missing.is_empty(), "{:?}", came.missing);
    assert!(calls(&stage.rig) > before);
    stage.rig.restart().await;
    let again = stage.send(49).await;
    assert_eq!(again.attempts, 1);
    assert!(again.body == came.body);
}

/// What is observed and waits for its activation costs nothing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_waiting_activation_is_applied_to_a_too_long_aligned_request() {
    let mut stage = OverflowRig::set("pass", window, 57, |tokens| tokens * 9 / 10).await;
    let came = stage.send(59).await;
    assert_eq!(
        (came.answer.status, came.answer.memory()),
        (200, "active; rung=observed")
    );
    assert_eq!((came.attempts, came.missing.len()), (2, 0));
    stage.rig.restart().await;
    let again = stage.send(59).await;
    assert!(again.attempts == 1 && again.body == came.body);
}
