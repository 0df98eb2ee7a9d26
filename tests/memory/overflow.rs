//! What does not fit its model, beyond what is free: `overflow = "trim"` and `"observe"`.

use diarist::provider::{Behaviour, Failure, Options, Part};
use serde_json::{Value, json};

use crate::rig::Rig;
use crate::tools::Talk;

const NOTE: &str = "<diarist-gap>";

/// Trims, and has observed nothing before that becomes necessary.
async fn trimming() -> Rig {
    let rig = Rig::with(Options::default(), &[("MEMORY__OVERFLOW", "trim")]).await;
    rig.provider.rules(|rules| {
        rules.alternate = true;
        rules.system_first = true;
    });
    rig
}

/// The messages of a body, as they stand in it.
fn messages(body: &[u8]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"].as_array().unwrap().clone()
}

/// How many of the newest messages of `sent` are those of `asked`.
fn raw_tail(sent: &[Value], asked: &[Value]) -> usize {
    let pairs = sent.iter().rev().zip(asked.iter().rev());
    pairs.take_while(|(a, b)| a == b).count()
}

fn refusal(status: u16, body: &Value) -> Behaviour {
    Behaviour {
        fail: Some(Failure {
            status,
            retry_after: None,
            body: Some(("application/json", body.to_string())),
        }),
        ..Behaviour::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_rounds_go_with_a_note_and_what_follows_goes_on_from_there() {
    let mut rig = trimming().await;
    let talk = Talk::new("ada");
    let window = 8_000;
    rig.provider.rules(|rules| rules.window = Some(window));
    // Nothing of it was ever recorded: the first request is too long already.
    let answer = rig.send(&talk.body(24)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=trimmed")
    );
    assert_eq!(rig.got().len(), 2, "the refusal said how much was too much");
    let trimmed = rig.last();
    let (sent, asked) = (messages(&trimmed.body), talk.messages(24));
    assert_eq!(sent[0], asked[0], "the client's system message");
    let note = sent[1]["content"].as_str().unwrap();
    assert!(note.starts_with("<diarist-log") && note.contains(NOTE));
    let kept = raw_tail(&sent, &asked);
    assert_eq!(kept, sent.len() - 2, "the rest is the newest, raw");
    assert_eq!(sent[2]["role"], "user", "whole rounds");
    assert!(note.contains(&format!("The {} messages", asked.len() - 1 - kept)));
    // Neither more than necessary nor so little that the next turn would not fit.
    let tokens = trimmed.measured.unwrap().prompt_tokens;
    assert!((window / 2..window * 9 / 10).contains(&tokens), "{tokens}");
    let line = rig.audited(1).await.pop().unwrap();
    assert_eq!(line["trimmed"], asked.len() - 1 - kept);
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
        let answer = rig.send(&talk.body(24)).await;
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
        let answer = rig.send(&talk.body(turn)).await;
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
    let other = Talk {
        model: "gpt-other",
        ..talk.clone()
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
        let answer = rig.talk(&talk, turn..=turn).await;
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
async fn what_does_not_fit_one_model_changes_nothing_for_another() {
    let small = Talk::new("ada");
    let large = Talk {
        model: "gpt-other",
        ..small.clone()
    };
    for large_first in [true, false] {
        let rig = trimming().await;
        for round in 0..4 {
            let large_now = (round % 2 == 0) == large_first;
            rig.provider
                .rules(|rules| rules.window = (!large_now).then_some(8_000));
            let talk = if large_now { &large } else { &small };
            let answer = rig.send(&talk.body(24)).await;
            rig.quiet().await;
            if large_now {
                assert_eq!(answer.memory(), "watching", "round {round}");
                assert_eq!(rig.last().body, talk.body(24).to_string(), "round {round}");
            } else {
                assert_eq!(answer.memory(), "active; rung=trimmed", "round {round}");
            }
        }
    }
}

/// Bedrock and others say no more than that it was too long.
#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_says_how_much_is_too_much_half_of_it_goes_at_a_time() {
    let rig = trimming().await;
    let talk = Talk::new("ada");
    let whole = talk.body(16).to_string().len();
    let too_long = refusal(
        400,
        &json!({"message": "Input is too long for requested model."}),
    );
    rig.provider.next(Part::Actor, 3, &too_long);
    let answer = rig.send(&talk.streamed(16)).await;
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
    let kept = raw_tail(&messages(&rig.last().body), &talk.messages(16));
    assert!((1..=7).contains(&kept), "{kept}");

    // It ends: the client hears what it would have heard.
    rig.provider.next(Part::Actor, 9, &too_long);
    let before = rig.got().len();
    let answer = rig.send(&Talk::new("bob").body(16)).await;
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
async fn what_cannot_be_made_shorter_is_the_clients_to_hear() {
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
    let mut body = Talk::new("ada").body(12);
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

/// Observes only when it has to, and then while the client waits.
async fn observing() -> Rig {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| {
        rules.alternate = true;
        rules.system_first = true;
    });
    rig
}

pub fn observers(rig: &Rig) -> usize {
    rig.provider.record_of(Part::Observer).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_is_observed_while_the_client_waits_once() {
    let mut rig = observing().await;
    let talk = Talk::new("ada");
    let window = 8_000;
    rig.provider.rules(|rules| rules.window = Some(window));
    // Nothing of it was ever recorded, and a stream is asked for.
    let answer = rig.send(&talk.streamed(24)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=awaited")
    );
    assert!(answer.text().contains("[DONE]"));
    assert_eq!(rig.got().len(), 2, "refused, observed, sent again");
    let asked = observers(&rig);
    assert!((1..=4).contains(&asked), "{asked}");
    let sent = rig.last();
    assert!(sent.accepted() && sent.measured.unwrap().prompt_tokens < window);
    let (parts, client) = (messages(&sent.body), talk.messages(24));
    assert_eq!(parts[0], client[0]);
    let block = parts[1]["content"].as_str().unwrap();
    assert!(block.starts_with("<diarist-log") && !block.contains(NOTE));
    assert!(block.contains("canary77"), "what was said is in the log");
    let kept = raw_tail(&parts, &client);
    assert!(kept > 2 && kept == parts.len() - 2, "the newest stay, raw");

    // A client in a hurry goes on from there before anything of it is stored.
    let observed = rig.got().len();
    let answer = rig.send(&talk.streamed(25)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    assert_eq!(rig.got().len(), observed + 1);

    // It is memory like any other: repeated alike, by a process that was not there, and gone on from.
    rig.quiet().await;
    rig.restart().await;
    rig.send(&talk.streamed(24)).await;
    assert_eq!(rig.last().body, sent.body);
    let before = rig.got().len();
    let answer = rig.send(&talk.body(26)).await;
    assert_eq!((answer.status, answer.memory()), (200, "active"));
    assert_eq!(rig.got().len(), before + 1);
    let head = messages(&rig.last().body);
    assert_eq!(head[..parts.len() - 1], parts[..parts.len() - 1]);
    rig.quiet().await;
    assert_eq!(observers(&rig), asked, "no model was asked again");
    let lines = rig.audited(4).await;
    assert_eq!(
        (&lines[0]["rung"], &lines[0]["cause"]),
        (&json!("awaited"), &json!("overflow"))
    );
    assert_eq!(
        rig.number("SELECT count(*) FROM snapshots WHERE id < 1")
            .await,
        0
    );
    assert_eq!(
        rig.number("SELECT count(*) FROM requests WHERE snapshot < 1")
            .await,
        0
    );
}

/// What is buffered is applied first; where it is enough, nobody waits for a model.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_observed_already_is_applied_before_anybody_waits() {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
        ("MEMORY__OVERFLOW", "observe"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let talk = Talk::new("ada");
    rig.talk(&talk, 1..=12).await;
    let window = rig.last().measured.unwrap().prompt_tokens;
    rig.provider.rules(|rules| rules.window = Some(window));
    let (asked, before) = (observers(&rig), rig.got().len());
    let answer = rig.send(&talk.body(13)).await;
    assert_eq!(answer.memory(), "active; rung=observed");
    assert_eq!((observers(&rig), rig.got().len()), (asked, before + 2));
    rig.quiet().await;
    // Where it is not, the rest is observed, and it is sent once more: three times in all.
    let (asked, before) = (observers(&rig), rig.got().len());
    rig.provider.rules(|rules| rules.window = Some(2_600));
    let mut longer = talk.body(16);
    longer["model"] = json!("gpt-other");
    let answer = rig.send(&longer).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=awaited"),
        "{}",
        answer.text()
    );
    assert!(observers(&rig) > asked);
    assert!(rig.got().len() <= before + 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_observer_answers_in_time_the_refusal_is_the_clients_and_leaves_no_trace() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "300ms"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    let talk = Talk::new("ada");
    for observer in [silent, Behaviour::failing(500)] {
        rig.provider.behave(Part::Observer, observer);
        let before = rig.got().len();
        let answer = rig.send(&talk.body(24)).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        assert_eq!(rig.got().len(), before + 1);
    }
    rig.quiet().await;
    for rows in [
        "SELECT count(*) FROM nodes",
        "SELECT count(*) FROM parts",
        "SELECT count(*) FROM snapshots",
        "SELECT count(*) FROM jobs",
    ] {
        assert_eq!(rig.number(rows).await, 0, "{rows}");
    }
    // What is only read waits for nobody either.
    rig.provider.behave(Part::Observer, Behaviour::default());
    let asked = observers(&rig);
    let read = [("x-diarist-memory", "read")];
    let answer = rig.send_as("Bearer sk-test", &read, &talk.body(24)).await;
    assert_eq!((answer.status, observers(&rig)), (400, asked));
}

/// What was observed in part before a call failed is nobody else's, however alike the two requests are
/// cut.
#[tokio::test(flavor = "multi_thread")]
async fn what_failed_midway_for_one_tenant_is_never_gone_on_with_for_another() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
        ("MEMORY__OBSERVATION__MAX_INPUT_TOKENS", "1000"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let (ada, bob) = (Talk::new("ada"), Talk::new("bob"));
    rig.provider.next(Part::Observer, 1, &Behaviour::default());
    rig.provider
        .next(Part::Observer, 1, &Behaviour::failing(500));
    let answer = rig.send_as("Bearer sk-one", &[], &ada.body(24)).await;
    assert_eq!(answer.status, 400, "nothing was left to do");
    let answer = rig.send_as("Bearer sk-two", &[], &bob.body(24)).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=awaited")
    );
    let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
    assert!(
        sent.contains(&bob.canary()) && !sent.contains("ada"),
        "{sent}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_requests_wait_for_one_observation_and_go_out_alike() {
    let rig = observing().await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let talk = Talk::new("ada");
    let body = talk.body(24);
    let answers = futures_util::future::join_all((0..6).map(|_| rig.send(&body))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let waited = answers
        .iter()
        .filter(|answer| answer.memory().contains("awaited"));
    assert_eq!(waited.count(), 1, "the others go out as that one");
    let got = rig.got();
    let accepted: std::collections::BTreeSet<_> = got
        .iter()
        .filter(|entry| entry.accepted())
        .map(|entry| entry.body.clone())
        .collect();
    assert_eq!(accepted.len(), 1);
}

/// Model calls for a request that nobody took cost, and are booked only when one of its owner is taken.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_spent_for_a_refused_request_is_booked_when_its_owner_is_accepted() {
    let rig = observing().await;
    let too_long = json!({"message": "Input is too long for requested model."});
    let too_long = refusal(400, &too_long);
    rig.provider.next(Part::Actor, 2, &too_long);
    let talk = Talk::new("ada");
    let answer = rig.send(&talk.body(24)).await;
    assert_eq!(answer.status, 400);
    let asked = observers(&rig);
    assert!(asked > 0);
    rig.quiet().await;
    for rows in [
        "SELECT count(*) FROM lineages",
        "SELECT count(*) FROM spending",
        "SELECT count(*) FROM costs",
    ] {
        assert_eq!(rig.number(rows).await, 0, "{rows}");
    }
    rig.provider.next(Part::Actor, 1, &too_long);
    let answer = rig.send(&talk.body(24)).await;
    assert_eq!(answer.memory(), "active; rung=awaited");
    rig.quiet().await;
    let calls = i64::try_from(observers(&rig)).unwrap();
    assert!(calls > i64::try_from(asked).unwrap());
    assert_eq!(rig.number("SELECT sum(calls) FROM costs").await, calls);
    assert!(
        rig.number("SELECT sum(tokens) FROM spending").await
            >= rig.number("SELECT sum(sent) FROM costs").await
    );
}

/// What is applied when a request does not fit is decided by the thresholds of its model.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_thresholds_of_its_own_overflows_by_them() {
    let overrides = "[{ model = \"small-*\", observation = { message_tokens = 8000, \
                     buffer_tokens = 700 } }]";
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
        ("MEMORY__OVERRIDES", overrides),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    for (model, name, thresholds) in [("small-one", "ada", 8_000), ("large", "bob", 9_000)] {
        rig.provider.rules(|rules| rules.window = None);
        let talk = Talk {
            model,
            ..Talk::new(name)
        };
        rig.talk(&talk, 1..=12).await;
        let window = rig.last().measured.unwrap().prompt_tokens;
        rig.provider.rules(|rules| rules.window = Some(window));
        let answer = rig.send(&talk.body(13)).await;
        assert_eq!(answer.memory(), "active; rung=observed", "{model}");
        rig.quiet().await;
        let made_with = "SELECT made_with ->> 'message_tokens' FROM snapshots
                         WHERE cause = 'overflow' ORDER BY id DESC LIMIT 1";
        assert_eq!(rig.number(made_with).await, thresholds, "{model}");
    }
}
