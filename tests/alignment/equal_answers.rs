//! Two users of one key ask the same, and get the same answers. Alice has documents between the questions and the answers; Bob is
//! told nothing of them, however he sends his own.

use serde_json::Value;

use crate::alignment::harness::{Client, SentRequest, conversation, roomy};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

const PARTS: usize = 70;

/// What everybody asks, one after the other, and what everybody is answered.
fn canned() -> Vec<Value> {
    let dialogue = (1..=PARTS).flat_map(|part| {
        let question = format!(
            "Please look at part {part} of this, and tell me what you make of it and what is to be done."
        );
        let answer = format!(
            "Part {part} looks like an ordinary case to me. Please write to the department in question within two weeks, \
             name your reference, and enclose a copy of the notice. They answer within a month. There is no fee for {part}."
        );
        [message("user", question), message("assistant", answer)]
    });
    dialogue.collect()
}

/// Where a user has the document that belongs to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Document {
    None,
    /// Behind the question, in this request and in all later ones.
    Kept,
    /// Behind the question, in this request only.
    Behind,
    /// In one message with the question, in this request only.
    Within,
}

/// A user, and what he has asked and was answered so far.
struct User {
    name: &'static str,
    document: Document,
    headers: Vec<(&'static str, &'static str)>,
    history: Vec<Value>,
    /// How many of the newest messages his client sends.
    window: usize,
}

impl User {
    fn new(name: &'static str, document: Document) -> Self {
        Self {
            name,
            document,
            headers: Vec::new(),
            history: Vec::new(),
            window: usize::MAX,
        }
    }

    /// Asks one of the questions that everybody asks.
    async fn ask(&mut self, client: &mut Client<'_>, part: usize) -> SentRequest {
        let (question, answer) = (&canned()[2 * part], &canned()[2 * part + 1]);
        let document = format!("({}#{part}) is of {}", self.name, self.name);
        let dropped = (self.history.len() + 1).saturating_sub(self.window);
        let kept = &self.history[dropped..];
        let mut sent = [kept, std::slice::from_ref(question)].concat();
        self.history.push(question.clone());
        match self.document {
            Document::None => {}
            Document::Behind => sent.push(message("user", document)),
            Document::Kept => {
                sent.push(message("user", document.as_str()));
                self.history.push(message("user", document));
            }
            Document::Within => {
                let words = question["content"].as_str().unwrap();
                sent.pop();
                sent.push(message("user", format!("{document}\n\n{words}")));
            }
        }
        client.headers.clone_from(&self.headers);
        let sent_request = client.send_with_answer(&sent, Some(answer)).await;
        self.history.push(answer.clone());
        sent_request
    }
}

/// Who asks which part, in order: by turns, or one user after the other. Alice is user 0.
fn schedule(by_turns: bool, alice_is_first: bool) -> Vec<(usize, usize)> {
    let users = if alice_is_first { [0, 1] } else { [1, 0] };
    if by_turns {
        let parts = 0..PARTS;
        parts
            .flat_map(|part| users.map(|user| (user, part)))
            .collect()
    } else {
        let parts_of = |user| (0..PARTS).map(move |part| (user, part));
        users.into_iter().flat_map(parts_of).collect()
    }
}

/// Both ask, Bob with or without memory, and he drops the first half after that. No request tells him of Alice.
async fn assert_bob_hears_nothing_of_alice(
    rig: &mut Rig,
    document: Document,
    schedule: &[(usize, usize)],
    bob_has_memory: bool,
) {
    let mut users = [
        User::new("alice", Document::Kept),
        User::new("bob", document),
    ];
    if !bob_has_memory {
        users[1].headers = vec![("x-diarist-memory", "off")];
    }
    for (user, part) in schedule {
        users[*user].ask(&mut Client::new(rig), *part).await;
    }
    if bob_has_memory {
        // What this process has seen is gone, so the database has to know whose answers these are.
        rig.restart().await;
    }
    let said = conversation("bob", 20);
    for at in (0..said.len()).step_by(2) {
        let sent = [&canned()[PARTS..], &said[..=at]].concat();
        let mut client = Client::new(rig);
        let sent_request = client.send_with_answer(&sent, said.get(at + 1)).await;
        assert!(
            !sent_request.body.0.contains("alice#"),
            "{document:?}, {:?} first, request {at}",
            schedule[0]
        );
    }
}

/// The last answer of a conversation is in no recorded message. If the client drops its beginning behind a restart, only what the
/// process has seen says that Bob got that answer, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_answer_before_a_restart_proves_nothing_if_another_user_got_it_too() {
    let mut rig = roomy().await;
    let mut alice = User::new("alice", Document::Kept);
    let mut bob = User::new("bob", Document::None);
    let before = PARTS - 4;
    for part in 0..PARTS {
        alice.ask(&mut Client::new(&mut rig), part).await;
    }
    for part in 0..before {
        bob.ask(&mut Client::new(&mut rig), part).await;
    }
    rig.restart().await;
    bob.window = 9;
    for part in before..PARTS {
        let sent_request = bob.ask(&mut Client::new(&mut rig), part).await;
        assert!(!sent_request.body.0.contains("alice#"), "part {part}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_answers_in_two_recorded_conversations_prove_neither() {
    let schedule = schedule(true, false);
    let mut rig = roomy().await;
    assert_bob_hears_nothing_of_alice(&mut rig, Document::None, &schedule, true).await;
}

/// Wherever Bob has a document of his own, whoever asks first, and also if nothing that Bob was answered is recorded.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn equal_answers_beside_other_documents_prove_no_conversation() {
    for document in [Document::None, Document::Behind, Document::Within] {
        for alice_is_first in [false, true] {
            for bob_has_memory in [false, true] {
                let schedule = schedule(bob_has_memory, alice_is_first);
                let mut rig = roomy().await;
                assert_bob_hears_nothing_of_alice(&mut rig, document, &schedule, bob_has_memory)
                    .await;
            }
        }
    }
}
