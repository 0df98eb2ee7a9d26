//! A client puts the model's summary into its leading system messages. These are in no chain, so another conversation that
//! begins with the same words has the same links.

use diarist_provider::{Behaviour, CallerKind};
use serde_json::Value;

use crate::alignment::harness::{Client, conversation, marks, roomy, set_answer, user};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

/// What many users say behind a summary, and some at the beginning of a conversation.
const CONTINUE: &str = "continue";

fn summary(topic: &str) -> String {
    let sentence =
        format!("They looked at {topic}, counted what is there, and agreed on what to do. ");
    format!("Summary: {}", sentence.repeat(5).trim())
}

/// The body of a request whose last leading system message is the summary, if there is one.
fn body(rig: &mut Rig, summary: Option<&str>, messages: &[Value]) -> Value {
    let summary = summary.map(|text| message("system", text));
    let all: Vec<Value> = summary
        .into_iter()
        .chain(messages.iter().cloned())
        .collect();
    Client::new(rig).body(&all)
}

/// What went out of a request, as text.
async fn send(rig: &Rig, body: &Value) -> String {
    let answer = rig.send_as("Bearer sk-test", &[], body).await;
    assert_eq!(answer.status, 200);
    rig.quiet().await;
    rig.forwarded().last().unwrap().to_string()
}

/// A rig in which Alice's conversation was summarised.
async fn summarised(summary: &str) -> Rig {
    let mut rig = roomy().await;
    summarise(&mut rig, "alice", summary).await;
    rig
}

/// Plays a conversation and asks for its summary.
async fn summarise(rig: &mut Rig, name: &str, summary: &str) {
    let messages = conversation(name, 40);
    for count in (1..=messages.len()).step_by(2) {
        let mut client = Client::new(rig);
        client
            .send_with_answer(&messages[..count], messages.get(count))
            .await;
    }
    let mut asking = messages;
    asking.push(message("user", "Summarise all of this for somebody else."));
    Client::new(rig)
        .send_with_answer(&asking, Some(&message("assistant", summary)))
        .await;
}

/// Bob, with the same key, begins with the word that Alice said behind her summary.
#[tokio::test(flavor = "multi_thread")]
async fn an_equal_beginning_gives_no_memory_of_a_summarised_conversation() {
    let (hers, his) = (summary("the harbour"), summary("the market"));
    for restarts in [false, true] {
        for bobs_summary in [None, Some(his.as_str())] {
            let mut rig = summarised(&hers).await;
            let mut alice = vec![message("user", CONTINUE)];
            let first = body(&mut rig, Some(&hers), &alice);
            let sent = send(&rig, &first).await;
            assert!(marks(&sent).contains("alice#0"), "she has her memory");
            if restarts {
                rig.restart().await;
            }
            let mut bob = alice.clone();
            for turn in 0..3 {
                let request = body(&mut rig, bobs_summary, &bob);
                let answer = rig.send_as("Bearer sk-test", &[], &request).await;
                rig.quiet().await;
                assert_eq!(rig.last().body, request.to_string(), "turn {turn}");
                let answer = answer.json()["choices"][0]["message"].clone();
                bob.extend([answer, user("bob", turn)]);
            }
            let again = send(&rig, &first).await;
            assert_eq!(again, sent, "a repetition goes out alike");
            alice.extend([message("assistant", "I go on."), user("alice", 90)]);
            let next = body(&mut rig, Some(&hers), &alice);
            let sent = send(&rig, &next).await;
            assert!(
                marks(&sent).contains("alice#0"),
                "she keeps it, restart: {restarts}, his summary: {}",
                bobs_summary.is_some()
            );
            assert!(!marks(&sent).contains("bob#0"));
        }
    }
}

/// An application makes a system prompt of what the model once wrote for Alice. Its users, who begin with the same word, are
/// not told of her conversation, although their prompt is an answer that she alone got.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_used_as_system_prompt_gives_other_users_no_memory() {
    let prompt = summary("the harbour");
    let mut rig = summarised(&prompt).await;
    for (user_name, restarts) in [("bob", false), ("carol", true), ("dave", false)] {
        if restarts {
            rig.restart().await;
        }
        let mut messages = vec![message("user", CONTINUE)];
        for turn in 0..3 {
            // The first of them has begun, and is recorded, before the prompt has its new text.
            let has_prompt = user_name != "bob" || turn > 1;
            let prompt = has_prompt.then_some(prompt.as_str());
            let request = body(&mut rig, prompt, &messages);
            let answer = rig.send_as("Bearer sk-test", &[], &request).await;
            rig.quiet().await;
            assert_eq!(
                rig.last().body,
                request.to_string(),
                "{user_name}, turn {turn}"
            );
            let answer = answer.json()["choices"][0]["message"].clone();
            messages.extend([answer, user(user_name, turn)]);
        }
    }
}

/// Bob's whole system message is the prompt, and his first message is Alice's first one. That he sent both does not say that
/// her conversation has this system message.
#[tokio::test(flavor = "multi_thread")]
async fn sending_a_summary_with_the_conversations_first_message_gives_no_memory() {
    let prompt = summary("the harbour");
    let mut rig = summarised(&prompt).await;
    let begins = conversation("alice", 1);
    let says = [user("bob", 0)];
    for messages in [&begins[..], &says[..]] {
        let mut client = Client::new(&mut rig);
        client.system = Some(prompt.clone());
        let mut request = client.body(messages);
        request["model"] = "gpt-4o".into();
        let answer = rig.send_as("Bearer sk-test", &[], &request).await;
        assert_eq!(answer.status, 200);
        rig.quiet().await;
        assert_eq!(rig.last().body, request.to_string());
        // What was quoted is known in one process only.
        rig.restart().await;
    }
}

/// Two conversations were summarised, and both go on with the same words. And somebody quotes the summary of one.
#[tokio::test(flavor = "multi_thread")]
async fn each_summarised_conversation_has_its_own_memory() {
    let (hers, his) = (summary("the harbour"), summary("the market"));
    let mut rig = summarised(&hers).await;
    summarise(&mut rig, "carol", &his).await;
    let begins = [message("user", CONTINUE)];
    for (name, other, summary) in [("alice#0", "carol#0", &hers), ("carol#0", "alice#0", &his)] {
        let request = body(&mut rig, Some(summary), &begins);
        let sent = send(&rig, &request).await;
        assert!(marks(&sent).contains(name), "{name}");
        assert!(!marks(&sent).contains(other), "{name}");
    }
    let quotes = [
        message("user", CONTINUE),
        message("assistant", "Sure."),
        message("user", format!("Why did it write this?\n{hers}")),
    ];
    let request = body(&mut rig, None, &quotes);
    let answer = rig.send_as("Bearer sk-test", &[], &request).await;
    assert_eq!(answer.status, 200);
    assert_eq!(rig.last().body, request.to_string());
}

/// While Alice's request has no answer yet, only the process knows how it was sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_equal_beginning_gives_no_memory_of_a_request_in_progress() {
    let hers = summary("the harbour");
    let mut rig = summarised(&hers).await;
    let begins = [message("user", CONTINUE)];
    let first = body(&mut rig, Some(&hers), &begins);
    let his = body(&mut rig, None, &begins);
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let slow = Behaviour {
        gate: Some(std::sync::Arc::clone(&gate)),
        ..Behaviour::default()
    };
    set_answer(&rig, None);
    rig.provider.inject_next(CallerKind::Actor, 1, &slow);
    let sent_before = rig.provider.record_for(CallerKind::Actor).len();
    let hers_waits = rig.send_as("Bearer sk-test", &[], &first);
    let his_request = async {
        while rig.provider.record_for(CallerKind::Actor).len() == sent_before {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let answer = rig.send_as("Bearer sk-test", &[], &his).await;
        assert_eq!(answer.status, 200);
        assert_eq!(rig.last().body, his.to_string());
        // Her client does not wait for the first answer.
        let answer = rig.send_as("Bearer sk-test", &[], &first).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            rig.last().body,
            rig.provider.record_for(CallerKind::Actor)[sent_before].body,
            "a repetition goes out alike"
        );
        gate.add_permits(10);
    };
    let (answer, ()) = tokio::join!(hers_waits, his_request);
    assert_eq!(answer.status, 200);
    let sent = &rig.provider.record_for(CallerKind::Actor)[sent_before];
    let told = marks(&String::from_utf8_lossy(&sent.body));
    assert!(told.contains("alice#0"), "she has her memory");
}
