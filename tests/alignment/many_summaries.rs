//! A client that keeps all its user said in front of each summary, and summarises again and again.

use std::collections::BTreeSet;
use std::ops::Range;

use futures_util::future::join_all;
use serde_json::Value;

use crate::alignment::harness::{Client, SentRequest, assistant, marks, roomy, user};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

/// Longer than what a model says in any conversation.
fn summary(number: usize) -> String {
    let sentence = "They looked at the harbour, counted the lanterns, and agreed on what to do with each of them. ";
    format!("Summary {number}: {}", sentence.repeat(4).trim())
}

/// What such a client holds of its conversation.
struct Conversation {
    /// The messages of its user.
    user_messages: Vec<Value>,
    /// What its next request begins with.
    context: Vec<Value>,
    turns: usize,
    summaries: usize,
}

impl Conversation {
    fn new() -> Self {
        Self {
            user_messages: Vec::new(),
            context: Vec::new(),
            turns: 0,
            summaries: 0,
        }
    }

    /// The request, and the model's answer, which the client keeps.
    async fn ask(&mut self, rig: &mut Rig) -> SentRequest {
        let answer = assistant("alice", 2 * self.turns + 1);
        let sent = Client::new(rig)
            .send_with_answer(&self.context, Some(&answer))
            .await;
        self.context.push(answer);
        self.turns += 1;
        sent
    }

    async fn turn(&mut self, rig: &mut Rig) -> SentRequest {
        let says = user("alice", 2 * self.turns);
        self.user_messages.push(says.clone());
        self.context.push(says);
        self.ask(rig).await
    }

    /// Asks for a summary and puts it behind all the user said.
    async fn summarise(&mut self, rig: &mut Rig) {
        let start = "Another model was at work before you and left this:\n";
        self.summarise_behind(rig, start).await;
    }

    /// The same, where the summary stands behind this `start` in its message.
    async fn summarise_behind(&mut self, rig: &mut Rig, start: &str) {
        let mut asking = self.context.clone();
        asking.push(message("user", "Summarise all of this for somebody else."));
        self.summaries += 1;
        let text = summary(self.summaries);
        Client::new(rig)
            .send_with_answer(&asking, Some(&message("assistant", text.clone())))
            .await;
        self.context.clone_from(&self.user_messages);
        self.context.push(message("user", format!("{start}{text}")));
    }

    /// Whether `sent` tells of answers that its own messages do not hold.
    fn recalls(&self, sent: &SentRequest) -> bool {
        let held = marks(&Value::from(self.context.clone()).to_string());
        sent.in_block.iter().any(|mark| !held.contains(mark))
    }
}

/// Plays four summaries. With `goes_on` the model goes on from the summary itself, as it does in the
/// middle of a task; otherwise the user speaks first.
async fn play(goes_on: bool) {
    let mut rig = roomy().await;
    let mut conversation = Conversation::new();
    for round in 1..=4 {
        for _ in 0..20 {
            let sent = conversation.turn(&mut rig).await;
            assert!(
                round == 1 || conversation.recalls(&sent),
                "round {round}: {}, {:?}",
                sent.reason,
                sent.in_block
            );
        }
        // What is known of the summary before comes from the database.
        rig.restart().await;
        conversation.summarise(&mut rig).await;
        if goes_on {
            let sent = conversation.ask(&mut rig).await;
            assert!(
                conversation.recalls(&sent),
                "summary {round}: {}",
                sent.reason
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn each_summary_continues_its_conversation_when_the_user_writes_next() {
    play(false).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn each_summary_continues_its_conversation_when_the_model_answers_next() {
    play(true).await;
}

/// Nothing is kept in front of a summary, and its client says the same word behind each.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn equal_words_after_each_summary_do_not_lose_the_memory() {
    for words in [
        "continue",
        "Continue if there are next steps, or ask if you are not sure how to go on.",
    ] {
        for in_front in [false, true] {
            same_words_behind_each_summary(words, in_front).await;
        }
    }
}

/// With `in_front`, the summary is a system message in front of the history.
async fn same_words_behind_each_summary(words: &str, in_front: bool) {
    let mut rig = roomy().await;
    let mut conversation = Conversation::new();
    for round in 1..=3 {
        let first = conversation.turns;
        for _ in 0..20 {
            conversation.turn(&mut rig).await;
        }
        conversation.user_messages.clear();
        conversation.summarise(&mut rig).await;
        if in_front {
            conversation.context = vec![message("system", summary(round))];
        }
        conversation.context.push(message("user", words));
        let sent = conversation.ask(&mut rig).await;
        let between = format!("alice#{}", 2 * (first + 6));
        assert!(
            sent.in_block.contains(&between),
            "summary {round}, in front: {in_front}: {}, {between}, {:?}",
            sent.reason,
            sent.in_block
        );
    }
}

/// Which of the user's messages are taken back, if so many are observed of so many.
type Gone = fn(usize, usize) -> Range<usize>;

/// The user takes back messages `gone` of those that stand in front of the summary, or writes them anew. Returns the marks
/// of them that the block holds afterwards, and whether it holds anything that the request does not.
async fn take_back(gone: Gone, edits: bool) -> (BTreeSet<String>, bool) {
    let mut rig = roomy().await;
    let mut conversation = Conversation::new();
    let mut observed = 0;
    for _ in 0..24 {
        let sent = conversation.turn(&mut rig).await;
        let is_observed =
            |user_message: &&Value| !marks(&user_message.to_string()).is_disjoint(&sent.in_block);
        observed = conversation
            .user_messages
            .iter()
            .filter(is_observed)
            .count();
    }
    assert!(observed > 4, "{observed}");
    conversation.summarise(&mut rig).await;
    let gone = gone(observed, conversation.user_messages.len());
    let taken_back = marks(&Value::from(&conversation.user_messages[gone.clone()]).to_string());
    assert_eq!(taken_back.len(), gone.len());
    let mut at = 0;
    conversation.context.retain_mut(|kept| {
        let is_gone = gone.contains(&at);
        at += 1;
        if is_gone && edits {
            *kept = message(
                "user",
                format!("Please go on without number {at}, as we said."),
            );
        }
        !is_gone || edits
    });
    let (mut in_block, mut tells) = (BTreeSet::new(), false);
    for _ in 0..6 {
        let sent = conversation.turn(&mut rig).await;
        in_block.extend(sent.in_block.intersection(&taken_back).cloned());
        tells |= conversation.recalls(&sent);
    }
    (in_block, tells)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_message_edited_or_removed_before_a_summary_leaves_the_block() {
    let (in_block, tells) = take_back(|_, _| 0..0, false).await;
    assert!(tells && in_block.is_empty(), "nothing was taken back");
    let gone: [Gone; 5] = [
        |_, _| 0..1,
        |_, _| 0..2,
        |observed, _| observed / 2..observed / 2 + 1,
        |observed, all| observed - 2..all,
        |observed, all| observed..all,
    ];
    let plays = (0..gone.len()).flat_map(|at| [(at, false), (at, true)]);
    let plays = plays.map(async |(at, edits)| {
        let (in_block, _) = take_back(gone[at], edits).await;
        assert!(in_block.is_empty(), "{at} {edits}: {in_block:?}");
    });
    join_all(plays).await;
}

/// What stands in front of a summary is the user's own if it is not what the client puts there each time.
#[tokio::test(flavor = "multi_thread")]
async fn user_text_dropped_before_a_summary_leaves_the_block() {
    let mut rig = roomy().await;
    let mut conversation = Conversation::new();
    for _ in 0..20 {
        conversation.turn(&mut rig).await;
    }
    let own = user("alice", 900);
    let own = format!("{}\n", own["content"].as_str().unwrap());
    conversation.summarise_behind(&mut rig, &own).await;
    conversation.ask(&mut rig).await;
    let mut was_in_block = false;
    for _ in 0..20 {
        let sent = conversation.turn(&mut rig).await;
        was_in_block |= sent.in_block.contains("alice#900");
    }
    assert!(was_in_block, "it was observed");
    conversation.summarise(&mut rig).await;
    for _ in 0..6 {
        let sent = conversation.turn(&mut rig).await;
        assert!(!sent.in_block.contains("alice#900"), "{}", sent.reason);
    }
}
