//! What does not fit its model, beyond what is free: `overflow = "trim"`.

use diarist_provider::{CallerKind, Options};
use serde_json::json;

use crate::memory::overflow::{NOTE, messages, raw_tail};
use crate::memory::rig::Rig;
use crate::memory::tools::{SampleConversation, answering};

/// Trims, and has observed nothing before that becomes necessary.
async fn trimming() -> Rig {
    let rig = Rig::with(Options::default(), &[("MEMORY__OVERFLOW", "trim")]).await;
    rig.provider.rules(|rules| {
        rules.alternate = true;
        rules.system_first = true;
    });
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn trimmed_rounds_leave_a_note_and_later_requests_keep_the_cut() {
    let mut rig = trimming().await;
    let conversation = SampleConversation::new("ada");
    let window = 8_000;
    rig.provider.rules(|rules| rules.window = Some(window));
    // Nothing of it was ever recorded: the first request is too long already.
    let answer = rig.send(&conversation.body(24)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=trimmed")
    );
    assert_eq!(rig.got().len(), 2, "the refusal said how much was too much");
    let trimmed = rig.last();
    let (sent, client_messages) = (messages(&trimmed.body), conversation.messages(24));
    assert_eq!(sent[0], client_messages[0], "the client's system message");
    let note = sent[1]["content"].as_str().unwrap();
    assert!(note.starts_with("<diarist-log") && note.contains(NOTE));
    let kept = raw_tail(&sent, &client_messages);
    assert_eq!(kept, sent.len() - 2, "the rest is the newest, raw");
    assert_eq!(sent[2]["role"], "user", "whole rounds");
    assert!(note.contains(&format!(
        "The {} messages",
        client_messages.len() - 1 - kept
    )));
    // Neither more than necessary nor so little that the next turn would not fit.
    let tokens = trimmed.prompt_usage.unwrap().prompt_tokens;
    assert!((window / 2..window * 9 / 10).contains(&tokens), "{tokens}");
    let line = rig.audited(1).await.pop().unwrap();
    assert_eq!(line["trimmed"], client_messages.len() - 1 - kept);
    assert_eq!(
        (&line["rung"], &line["memory"]),
        (&json!("trimmed"), &json!("active"))
    );

    // Again, at once, and by a process that was not there: the same bytes, at the first attempt.
    rig.quiet().await;
    for round in 0..3 {
        if round == 1 {
            rig.restart().await;
        }
        let before = rig.got().len();
        let answer = rig.send(&conversation.body(24)).await;
        assert_eq!(answer.memory(), "active; rung=trimmed");
        assert_eq!(
            (rig.got().len(), &rig.last().body),
            (before + 1, &trimmed.body)
        );
        rig.quiet().await;
    }
    // The next turns keep every byte that the client keeps.
    let mut last = trimmed;
    for turn in 25..=26 {
        if turn == 26 {
            rig.restart().await;
        }
        let before = rig.got().len();
        let answer = rig.send(&conversation.body(turn)).await;
        assert_eq!(answer.memory(), "active; rung=trimmed", "turn {turn}");
        assert_eq!(
            rig.got().len(),
            before + 1,
            "turn {turn}: no second attempt"
        );
        let end = last.body.len() - "]}".len();
        assert_eq!(rig.last().body[..end], last.body[..end], "turn {turn}");
        last = rig.last();
        rig.quiet().await;
    }
    // A model with room for all of it gets all of it.
    rig.provider.rules(|rules| rules.window = None);
    let other = SampleConversation {
        model: "gpt-other",
        ..conversation.clone()
    };
    let answer = rig.send(&other.body(27)).await;
    assert_eq!(answer.memory(), "watching");
    assert_eq!(rig.last().body, other.body(27).to_string());
    // When the Observer catches up, its observations take the place of the note.
    rig.provider.rules(|rules| rules.window = Some(window));
    rig.set("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000");
    rig.restart().await;
    let mut noted = true;
    for turn in 28..=48 {
        let answer = rig.play_turns(&conversation, turn..=turn).await;
        let body = rig.last().body.clone();
        noted = memchr::memmem::find(&body, NOTE.as_bytes()).is_some();
        assert_eq!(
            noted,
            answer.memory() == "active; rung=trimmed",
            "turn {turn}"
        );
        if !noted {
            break;
        }
    }
    assert!(!noted, "the gap was never closed");
}

/// A router asks one model, then a smaller one, then the first again. What did not fit the one is no
/// reason to keep it from the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_trim_for_one_model_changes_no_request_of_another() {
    let small = SampleConversation::new("ada");
    let large = SampleConversation {
        model: "gpt-other",
        ..small.clone()
    };
    for large_first in [true, false] {
        let rig = trimming().await;
        for round in 0..4 {
            let large_now = (round % 2 == 0) == large_first;
            rig.provider
                .rules(|rules| rules.window = (!large_now).then_some(8_000));
            let conversation = if large_now { &large } else { &small };
            let answer = rig.send(&conversation.body(24)).await;
            rig.quiet().await;
            if large_now {
                assert_eq!(answer.memory(), "watching", "round {round}");
                assert_eq!(
                    rig.last().body,
                    conversation.body(24).to_string(),
                    "round {round}"
                );
            } else {
                assert_eq!(answer.memory(), "active; rung=trimmed", "round {round}");
            }
        }
    }
}

/// Bedrock and others say no more than that it was too long.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_stated_limit_each_trim_removes_about_half_of_the_request() {
    let rig = trimming().await;
    let conversation = SampleConversation::new("ada");
    let whole = conversation.body(16).to_string().len();
    let too_long = answering(
        400,
        &json!({"message": "Input is too long for requested model."}),
    );
    rig.provider.inject_next(CallerKind::Actor, 3, &too_long);
    let answer = rig.send(&conversation.streamed(16)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=trimmed")
    );
    assert!(answer.text().contains("[DONE]"), "a stream is a stream");
    let sizes: Vec<usize> = rig.got().iter().map(|entry| entry.body.len()).collect();
    let [first, second, third, fourth] = sizes[..] else {
        panic!("{sizes:?}")
    };
    assert!(first >= whole && second < first * 3 / 5 && third < second * 3 / 4 && fourth < third);
    let kept = raw_tail(&messages(&rig.last().body), &conversation.messages(16));
    assert!((1..=7).contains(&kept), "{kept}");

    // It ends: the client hears what it would have heard.
    rig.provider.inject_next(CallerKind::Actor, 9, &too_long);
    let before = rig.got().len();
    let answer = rig.send(&SampleConversation::new("bob").body(16)).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.json()["message"],
        "Input is too long for requested model."
    );
    assert!((2..=4).contains(&(rig.got().len() - before)));
}

/// One task, many tool rounds: the question stays, and rounds go whole.
#[tokio::test(flavor = "multi_thread")]
async fn one_task_keeps_its_question_and_its_newest_round() {
    let rig = trimming().await;
    rig.provider.rules(|rules| rules.window = Some(2_500));
    let task = |rounds: usize| {
        let mut messages = vec![
            json!({"role": "system", "content": "Use the tools."}),
            json!({"role": "user", "content": "Read all the files, please."}),
        ];
        for round in 0..rounds {
            let call = |name: &str| {
                json!({"id": format!("{name}{round}"), "type": "function",
                       "function": {"name": "read", "arguments": "{}"}})
            };
            messages.push(
                json!({"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]}),
            );
            for name in ["b", "a"] {
                let content = format!("Contents of {name}{round}. {}", "line ".repeat(200));
                let id = format!("{name}{round}");
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
        }
        json!({"model": "gpt-test", "messages": messages})
    };
    let answer = rig.send(&task(12)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=trimmed")
    );
    let sent = messages(&rig.last().body);
    assert_eq!(sent[2], task(0)["messages"][1], "the question, raw");
    assert!(sent[3]["tool_calls"].is_array(), "then a whole round");
    let kept = raw_tail(&sent, task(12)["messages"].as_array().unwrap());
    assert_eq!(kept, sent.len() - 3);
    // The next round goes on from the same place.
    let first = rig.last();
    rig.quiet().await;
    let answer = rig.send(&task(13)).await;
    assert_eq!(answer.status, 200);
    let end = first.body.len() - "]}".len();
    assert_eq!(rig.last().body[..end], first.body[..end]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_trimmed_gets_the_upstream_refusal() {
    let rig = trimming().await;
    rig.provider.rules(|rules| rules.window = Some(100));
    let one = json!({"model": "gpt-test",
                     "messages": [{"role": "user", "content": "long ".repeat(500)}]});
    let answer = rig.send(&one).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(rig.got().len(), 1);
    rig.quiet().await;
    assert_eq!(
        rig.number("SELECT count(*) FROM nodes").await,
        0,
        "no trace"
    );
}

/// An instruction of the application in the middle of what goes is no loss anybody agreed to.
#[tokio::test(flavor = "multi_thread")]
async fn system_messages_among_the_rounds_stay_word_for_word() {
    let rig = trimming().await;
    rig.provider.rules(|rules| {
        rules.system_first = false;
        rules.window = Some(3_000);
    });
    let mut body = SampleConversation::new("ada").body(12);
    let all = body["messages"].as_array_mut().unwrap();
    all.insert(
        3,
        json!({"role": "system", "content": "From now on answer in rhyme-77."}),
    );
    let answer = rig.send(&body).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=trimmed")
    );
    let note = messages(&rig.last().body)[1]["content"].to_string();
    assert!(note.contains("From now on answer in rhyme-77."), "{note}");
}
