//! A content filter refuses the words of a block and takes the client's own: from the second time in a row
//! on that block is left out, so that the conversation does not cost every request twice.

use diarist_provider::{Behaviour, CallerKind, Options};
use serde_json::{Value, json};

use crate::memory::resource::{SHARED, message, peer_memory};
use crate::memory::rig::{Answer, Rig};
use crate::memory::tools::{SampleConversation, answering, event_stream, metric};

const PASSED: &str = "bypass; reason=filtered; rung=passed_over";

/// How a provider's filter says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilterKind {
    /// By a status, to a request for a whole answer.
    Whole,
    /// By a status, to a request for a stream.
    Status,
    /// In the first event of a stream.
    Inside,
}

impl FilterKind {
    fn behaviour(self) -> Behaviour {
        let error = json!({"message": "flagged", "type": "invalid_request_error", "code": "content_filter"});
        let error = json!({ "error": error });
        match self {
            Self::Whole | Self::Status => answering(400, &error),
            Self::Inside => event_stream(&error),
        }
    }

    fn request(self, conversation: &SampleConversation, turn: usize) -> Value {
        match self {
            Self::Whole => conversation.body(turn),
            Self::Status | Self::Inside => conversation.streamed(turn),
        }
    }
}

/// A conversation that has just been given a block, the number of that, and its next turn: some
/// turns pass before it is given another.
struct Blocked {
    rig: Rig,
    conversation: SampleConversation,
    snapshot: String,
    turn: usize,
}

impl Blocked {
    async fn begin() -> Self {
        let settings = [
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "4000"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "4000"),
        ];
        let mut this = Self {
            rig: Rig::with(Options::default(), &settings).await,
            conversation: SampleConversation::new("ada"),
            snapshot: String::new(),
            turn: 1,
        };
        this.until_blocked(FilterKind::Whole).await;
        this
    }

    /// The next turn, which is answered; and with which block, if any.
    async fn send(&mut self, says: FilterKind) -> (Answer, String) {
        let answer = self
            .rig
            .send(&says.request(&self.conversation, self.turn))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains("flagged"), "{}", answer.text());
        self.rig.quiet().await;
        self.turn += 1;
        let line = self.rig.audit_entry(&answer).await;
        let snapshot = line["snapshot"].as_str().unwrap_or_default().to_owned();
        (answer, snapshot)
    }

    /// Goes on until another block goes out; the turns that went out without any, each once.
    async fn until_blocked(&mut self, says: FilterKind) -> usize {
        for without in 0.. {
            assert!(without < 20, "nothing was activated");
            let before = self.rig.got().len();
            let (answer, snapshot) = self.send(says).await;
            assert_eq!(
                self.rig.got().len(),
                before + 1,
                "once: {}",
                answer.memory()
            );
            if answer.memory() == "active" && snapshot != self.snapshot {
                self.snapshot = snapshot;
                return without;
            }
        }
        unreachable!()
    }

    /// The next turn, of which the block is refused and the client's own is taken.
    async fn expect_refused(&mut self, says: FilterKind) {
        self.rig
            .provider
            .inject_next(CallerKind::Actor, 1, &says.behaviour());
        let (before, turn) = (self.rig.got().len(), self.turn);
        self.send(says).await;
        let [refused, original] = &self.rig.got()[before..] else {
            panic!("two requests")
        };
        assert!(refused.body.len() < original.body.len(), "it had its block");
        assert_eq!(
            original.body,
            says.request(&self.conversation, turn).to_string()
        );
    }

    /// The next turn, which goes out once, as the client made it.
    async fn expect_passed(&mut self, says: FilterKind) {
        let (before, turn) = (self.rig.got().len(), self.turn);
        let (answer, _) = self.send(says).await;
        assert_eq!(answer.memory(), PASSED);
        assert_eq!(self.rig.got().len(), before + 1, "once");
        let own = says.request(&self.conversation, turn).to_string();
        assert_eq!(self.rig.last().body, own, "as the client made it");
    }

    /// The next turn, which goes out once, with the block it had.
    async fn expect_active(&mut self, says: FilterKind) {
        let before = self.rig.got().len();
        let (answer, snapshot) = self.send(says).await;
        assert_eq!((answer.memory(), &snapshot), ("active", &self.snapshot));
        assert_eq!(self.rig.got().len(), before + 1, "once");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_block_that_is_refused_twice_is_left_out_until_there_is_another() {
    for says in [FilterKind::Whole, FilterKind::Status, FilterKind::Inside] {
        let mut blocked = Blocked::begin().await;
        let counted = "diarist_memory_requests_total{rung=\"passed_over\"}";
        let before = metric(&blocked.rig.metrics().await, counted);
        blocked.expect_refused(says).await;
        blocked.expect_refused(says).await;
        blocked.expect_passed(says).await;
        // The same again goes out as it did.
        let (last, sent) = (blocked.rig.last(), blocked.rig.got().len());
        let repeated = blocked
            .rig
            .send(&says.request(&blocked.conversation, blocked.turn - 1))
            .await;
        assert_eq!(repeated.memory(), "watching");
        assert_eq!(blocked.rig.last().body, last.body);
        assert_eq!(blocked.rig.got().len(), sent + 1);
        blocked.rig.quiet().await;
        let line = blocked.rig.audit("request_id");
        let line = line.iter().find(|line| line["rung"] == "passed_over");
        let line = line.unwrap();
        assert_eq!(
            (&line["memory"], &line["reason"], &line["status"]),
            (&json!("bypass"), &json!("filtered"), &json!(200))
        );
        assert!(line["snapshot"].is_null(), "{line}");
        assert!(metric(&blocked.rig.metrics().await, counted) > before);
        // Another model is asked with the block.
        let model = std::mem::replace(&mut blocked.conversation.model, "gpt-other");
        blocked.expect_active(says).await;
        blocked.conversation.model = model;
        // What is new is another block, and is sent; the one before is not.
        let old = blocked.snapshot.clone();
        let without = blocked.until_blocked(says).await;
        assert!(without > 0 && blocked.snapshot != old, "{says:?}");
        blocked.expect_active(says).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_filter_refusal_does_not_remove_the_block() {
    for says in [FilterKind::Whole, FilterKind::Status, FilterKind::Inside] {
        let mut blocked = Blocked::begin().await;
        blocked.expect_refused(says).await;
        blocked.expect_active(says).await;
        blocked.expect_refused(says).await;
        blocked.expect_active(says).await;
    }
}

/// Then it is not the block that offends, or not it alone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_filter_refusal_of_the_original_does_not_count_against_the_block() {
    for (says, then) in [
        (FilterKind::Whole, FilterKind::Whole),
        (FilterKind::Status, FilterKind::Status),
        (FilterKind::Inside, FilterKind::Inside),
        // A head of 200 alone is no answer.
        (FilterKind::Status, FilterKind::Inside),
    ] {
        let mut blocked = Blocked::begin().await;
        for _ in 0..3 {
            let before = blocked.rig.got().len();
            blocked
                .rig
                .provider
                .inject_next(CallerKind::Actor, 1, &says.behaviour());
            blocked
                .rig
                .provider
                .inject_next(CallerKind::Actor, 1, &then.behaviour());
            let body = says.request(&blocked.conversation, blocked.turn);
            let answer = blocked.rig.send(&body).await;
            assert!(answer.text().contains("flagged"), "{}", answer.text());
            assert_eq!(blocked.rig.got().len(), before + 2);
            assert_eq!(blocked.rig.last().body, body.to_string());
            blocked.rig.quiet().await;
        }
        blocked.expect_active(says).await;
    }
}

/// A request that was taken with the block goes out with it again, and is taken again: then the filter has
/// changed its mind.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_accepted_with_its_block_is_repeated_with_it() {
    let says = FilterKind::Whole;
    let mut blocked = Blocked::begin().await;
    let (turn, taken) = (blocked.turn - 1, blocked.rig.last());
    blocked.expect_refused(says).await;
    blocked.expect_refused(says).await;
    blocked.expect_passed(says).await;
    let answer = blocked
        .rig
        .send(&says.request(&blocked.conversation, turn))
        .await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(blocked.rig.last().body, taken.body, "the same bytes");
    blocked.rig.quiet().await;
    blocked.expect_active(says).await;
}

/// What is passed over and too long as the client made it is no worse off than without all this.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_too_long_without_its_filtered_block_is_sent_with_it() {
    for says in [FilterKind::Whole, FilterKind::Inside] {
        let mut blocked = Blocked::begin().await;
        blocked.expect_refused(says).await;
        blocked.expect_refused(says).await;
        let window = blocked.rig.last().prompt_usage.unwrap().prompt_tokens;
        blocked
            .rig
            .provider
            .rules(|rules| rules.window = Some(window));
        let before = blocked.rig.got().len();
        let turn = blocked.turn;
        let (answer, _) = blocked.send(says).await;
        let line = blocked.rig.audit_entry(&answer).await;
        assert_eq!(line["rung"], "observed", "{line}");
        let [own, observed] = &blocked.rig.got()[before..] else {
            panic!("two requests")
        };
        assert_eq!(
            own.body,
            says.request(&blocked.conversation, turn).to_string()
        );
        assert!(observed.is_accepted());
    }
}

/// What offends may be what another conversation of the user brought: without it the block is the
/// conversation's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_refusal_removes_peer_memory_before_own_observations() {
    let mut settings = SHARED.to_vec();
    settings.push(("IDENTITY__RESOURCE__SET_BY", "application"));
    for setting in &mut settings {
        if setting.0.ends_with("_TOKENS") {
            setting.1 = "4000";
        }
    }
    let rig = Rig::with(Options::default(), &settings).await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    for turn in 1..=12 {
        rig.turn("u1", &ada, turn).await;
    }
    let mut turn = 1;
    while !has_peer_and_own_memory(&rig.turn("u1", &bob, turn).await, &bob) {
        turn += 1;
        assert!(turn < 20, "nothing was activated");
    }
    turn += 1;
    for _ in 0..2 {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &FilterKind::Whole.behaviour());
        let original = rig.turn("u1", &bob, turn).await;
        assert_eq!(original, bob.body(turn).to_string());
        let [.., refused, _] = &rig.bodies()[..] else {
            panic!("two requests")
        };
        assert!(has_peer_and_own_memory(refused, &bob), "it told of both");
        turn += 1;
    }
    let own = rig.turn("u1", &bob, turn).await;
    assert_eq!(peer_memory(&own), "", "nothing of others");
    assert!(observed(&own, &bob), "its own observations");
}

/// Whether its block holds what was observed of the conversation itself.
fn observed(body: &str, conversation: &SampleConversation) -> bool {
    let text = message(body, 1);
    let text = text["content"].as_str().unwrap_or_default();
    let own = text.split("<diarist-others>").next().unwrap_or_default();
    own.contains("<observations>") && own.contains(&conversation.canary())
}

fn has_peer_and_own_memory(body: &str, conversation: &SampleConversation) -> bool {
    !peer_memory(body).is_empty() && observed(body, conversation)
}
