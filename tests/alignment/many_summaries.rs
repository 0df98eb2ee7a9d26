//! A client that keeps all its user said in front of each summary, and summarises again and again.

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
    /// What its user said.
    said: Vec<Value>,
    /// What its next request begins with.
    context: Vec<Value>,
    turns: usize,
    summaries: usize,
}

impl Conversation {
    fn new() -> Self {
        Self {
            said: Vec::new(),
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
        self.said.push(says.clone());
        self.context.push(says);
        self.ask(rig).await
    }

    /// Asks for a summary and puts it behind all the user said.
    async fn summarise(&mut self, rig: &mut Rig) {
        let mut asking = self.context.clone();
        asking.push(message("user", "Summarise all of this for somebody else."));
        self.summaries += 1;
        let text = summary(self.summaries);
        Client::new(rig)
            .send_with_answer(&asking, Some(&message("assistant", text.clone())))
            .await;
        self.context.clone_from(&self.said);
        let head = format!("Another model was at work before you and left this:\n{text}");
        self.context.push(message("user", head));
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
    let mut talk = Conversation::new();
    for round in 1..=4 {
        for _ in 0..20 {
            let sent = talk.turn(&mut rig).await;
            assert!(
                round == 1 || talk.recalls(&sent),
                "round {round}: {}, {:?}",
                sent.reason,
                sent.in_block
            );
        }
        // What is known of the summary before comes from the database.
        rig.restart().await;
        talk.summarise(&mut rig).await;
        if goes_on {
            let sent = talk.ask(&mut rig).await;
            assert!(talk.recalls(&sent), "summary {round}: {}", sent.reason);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_speaks_behind_each_summary() {
    play(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_goes_on_from_each_summary() {
    play(true).await;
}
