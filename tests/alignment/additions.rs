//! Clients that keep their newest messages, and add something to each request that they do not keep: retrieved text, a clock, a
//! reminder, a note between older messages.

use serde_json::Value;

use crate::alignment::harness::{Client, SentRequest, conversation, roomy, system};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

/// So many messages the client keeps.
const WINDOW: usize = 13;

/// How a client sends what it keeps in a turn.
type Adding = fn(turn: usize, kept: &[Value]) -> Vec<Value>;

/// `kept` with `added` before its last `depth` messages.
fn with(kept: &[Value], depth: usize, added: Value) -> Vec<Value> {
    let mut sent = kept.to_vec();
    sent.insert(kept.len().saturating_sub(depth), added);
    sent
}

fn reminder() -> Value {
    system("Stay in your role, and answer in at most three sentences.")
}

/// Other words in each turn.
fn retrieved(turn: usize) -> String {
    let words: Vec<String> = (0..40)
        .map(|at| format!("found{turn}x{}", at * 7 % 11))
        .collect();
    format!("Perhaps this helps: {}", words.join(" "))
}

const HABITS: [(&str, Adding); 8] = [
    ("nothing", |_, kept| kept.to_vec()),
    ("a reminder behind", |_, kept| with(kept, 0, reminder())),
    ("a text of the user behind", |turn, kept| {
        with(kept, 0, message("user", retrieved(turn)))
    }),
    ("a clock behind", |turn, kept| {
        with(kept, 0, system(&format!("It is {turn} past ten.")))
    }),
    ("retrieved text in front of the question", |turn, kept| {
        with(kept, 1, system(&retrieved(turn)))
    }),
    (
        "retrieved text in front and a reminder behind",
        |turn, kept| with(&with(kept, 1, system(&retrieved(turn))), 0, reminder()),
    ),
    ("two texts behind", |turn, kept| {
        with(&with(kept, 0, system(&retrieved(turn))), 0, reminder())
    }),
    ("a note four messages before the end", |_, kept| {
        with(kept, 4, system("(Author's note: the harbour is at war.)"))
    }),
];

/// The newest messages, from one of the user on.
fn window(messages: &[Value]) -> &[Value] {
    let least = messages.len().saturating_sub(WINDOW);
    &messages[least + least % 2..]
}

/// A conversation of `messages`, turn by turn. Returns the last request.
async fn talk(rig: &mut Rig, messages: &[Value], adding: Adding) -> SentRequest {
    let mut last = None;
    for at in (0..messages.len()).step_by(2) {
        let sent = adding(at / 2, window(&messages[..=at]));
        let answer = messages.get(at + 1);
        last = Some(Client::new(rig).send_with_answer(&sent, answer).await);
    }
    last.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_adds_something_to_each_request_has_memory_of_what_it_dropped() {
    let mut rig = roomy().await;
    let mut without = Vec::new();
    for (number, (habit, adding)) in HABITS.into_iter().enumerate() {
        let name = format!("user{number}");
        let last = talk(&mut rig, &conversation(&name, 71), adding).await;
        if !last.in_block.contains(&format!("{name}#2")) {
            without.push((habit, last.reason, last.in_block));
        }
    }
    assert!(without.is_empty(), "{without:?}");
}

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

const PARTS: usize = 40;

/// A user asks what everybody asks, each time with a document of his own behind the question, which he keeps or not.
async fn ask_with_documents(client: &mut Client<'_>, name: &str, keeps: bool) {
    let mut history = Vec::new();
    for (part, exchange) in canned().chunks(2).enumerate() {
        let document = message("user", format!("({name}#{part}) is of {name}"));
        history.push(exchange[0].clone());
        let sent = [&history[..], std::slice::from_ref(&document)].concat();
        client.send_with_answer(&sent, exchange.get(1)).await;
        if keeps {
            history = sent;
        }
        history.push(exchange[1].clone());
    }
}

/// Two users ask the same with other documents, and get the same answers. Alice keeps her documents. Nothing that Bob was answered
/// is recorded.
#[tokio::test(flavor = "multi_thread")]
async fn equal_answers_to_other_additions_prove_no_conversation() {
    let off = vec![("x-diarist-memory", "off")];
    for bob_is_first in [false, true] {
        let mut rig = roomy().await;
        let mut client = Client::new(&mut rig);
        for name in ["first", "second"] {
            if (name == "first") == bob_is_first {
                client.headers = off.clone();
                ask_with_documents(&mut client, "bob", false).await;
            } else {
                client.headers = Vec::new();
                ask_with_documents(&mut client, "alice", true).await;
            }
        }
        // Bob leaves out the first half.
        client.headers = Vec::new();
        let said = conversation("bob", 20);
        for at in (0..said.len()).step_by(2) {
            let sent = [&canned()[PARTS..], &said[..=at]].concat();
            let sent_request = client.send_with_answer(&sent, said.get(at + 1)).await;
            let body = sent_request.body.0;
            assert!(!body.contains("alice#"), "{bob_is_first} {at}");
        }
    }
}
