//! Ranges that no call holds: a huge message, a model with a small window, a task of hundreds of
//! rounds. They are observed like any other history, and make one chunk each.

use std::sync::Arc;
use std::time::Instant;

use diarist_provider::{
    Behaviour, CallerKind, Failure, Observer, Options, Provider, RecordedRequest, Reply, Rules,
    Script as _, ScriptInput,
};
use serde_json::{Value, json};

use crate::memory::rig::{PATIENCE, Rig};
use crate::memory::tools::{ACTIVE, SampleConversation};

/// What the Observer was asked, as text.
fn split_prompt(call: &RecordedRequest) -> (String, String) {
    let body = call.json().unwrap();
    let text = |at: usize| {
        body["messages"][at]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text(0), text(1))
}

/// A user message of `lines` lines, each with a word that stands nowhere else.
fn long_text(lines: usize) -> String {
    (0..lines)
        .map(|n| {
            format!(
                "Chapter {n}: the keeper wrote marker{n}x into the log of the harbour, and slept.\n"
            )
        })
        .collect()
}

/// A conversation that opens with `first` and goes on for so many short turns.
fn opening_with(first: &str, turns: usize) -> Value {
    let mut messages = vec![json!({"role": "user", "content": first})];
    for turn in 0..turns {
        messages.push(json!({"role": "assistant", "content": format!("Noted, {turn}.")}));
        messages.push(json!({"role": "user", "content": format!("Go on with {turn}.")}));
    }
    json!({"model": "gpt-test", "messages": messages})
}

const SMALL: [(&str, &str); 3] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "4000"),
    ("MEMORY__OBSERVATION__MAX_INPUT_TOKENS", "1000"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_message_is_observed_in_parts_and_makes_one_chunk() {
    let rig = Rig::with(Options::default(), &SMALL).await;
    let book = long_text(300);
    for turns in 0..3 {
        assert_eq!(rig.send(&opening_with(&book, turns)).await.status, 200);
        rig.quiet().await;
    }
    let calls = rig.provider.record_for(CallerKind::Observer);
    assert!(calls.len() > 5, "{}", calls.len());
    let chunks = rig.number("SELECT count(*) FROM parts").await;
    assert_eq!(
        (
            chunks,
            rig.number("SELECT max(from_count) FROM parts").await
        ),
        (1, 0)
    );
    // Every line of it is in exactly one call, and no call is much larger than allowed.
    let prompts: Vec<(String, String)> = calls.iter().map(|call| split_prompt(call)).collect();
    for n in 0..300 {
        let marker = format!("marker{n}x");
        let holding = prompts.iter().filter(|(_, user)| user.contains(&marker));
        // What is written of one part may stand before the next as an earlier observation.
        let history =
            |user: &&(String, String)| user.1.split("<history-").nth(1).unwrap().contains(&marker);
        assert_eq!(holding.filter(|user| history(user)).count(), 1, "{marker}");
    }
    let piece_count = calls.len();
    for (at, (system, user)) in prompts.iter().enumerate() {
        assert!(
            user.contains(&format!("Part {} of {piece_count} of the history", at + 1)),
            "{user}"
        );
        // What the part is asked of stands in it; how things stand is known at the end.
        assert!(user.contains(&format!("[part {} of ", at + 1)) || at + 1 == piece_count);
        assert_eq!(
            system.contains("<suggested-response>"),
            at + 1 == piece_count,
            "part {at}"
        );
    }
    // What was written of the parts stands together in the one chunk.
    let text: String = {
        let mut database = rig.database().await;
        sqlx::query_scalar("SELECT text FROM parts")
            .fetch_one(&mut database)
            .await
            .unwrap()
    };
    assert!(text.contains("Chapter 0:"), "{text}");
    assert!(text.matches("Chapter").count() >= piece_count - 1, "{text}");
    assert_eq!(text.matches("Date:").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_midway_repeats_one_piece() {
    let rig = Rig::with(Options::default(), &SMALL).await;
    rig.provider
        .inject_next(CallerKind::Observer, 3, &Behaviour::default());
    rig.provider
        .inject_next(CallerKind::Observer, 1, &Behaviour::failing(500));
    let book = long_text(300);
    for turns in 0..3 {
        rig.send(&opening_with(&book, turns)).await;
        rig.quiet().await;
    }
    let calls = rig.provider.record_for(CallerKind::Observer);
    let place = |call: &Arc<RecordedRequest>| {
        let user = split_prompt(call).1;
        user.split("Part ")
            .nth(1)
            .unwrap()
            .split(" of ")
            .next()
            .unwrap()
            .to_owned()
    };
    let places: Vec<String> = calls.iter().map(place).collect();
    assert_eq!(places[..6], ["1", "2", "3", "4", "4", "5"], "{places:?}");
    assert_eq!(rig.number("SELECT count(*) FROM parts").await, 1);
}

/// One piece that no model speaks about is asked for twice and then covered by code; the others are
/// what the model wrote.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_piece_without_observations_is_covered_by_code() {
    let rig = Rig::with(Options::default(), &SMALL).await;
    rig.provider
        .script(CallerKind::Observer, |ask: &ScriptInput<'_>| {
            let shown = ask.texts_by_role("user").concat();
            let history = shown.split("<history-").nth(1).unwrap_or_default();
            if history.contains("marker150x") {
                Reply::text("I would rather not.")
            } else {
                Observer::default().reply(ask)
            }
        });
    let book = long_text(300);
    for turns in 0..3 {
        rig.send(&opening_with(&book, turns)).await;
        rig.quiet().await;
    }
    let (calls, parts) = (
        rig.provider.record_for(CallerKind::Observer),
        rig.number("SELECT count(*) FROM parts").await,
    );
    let twice = calls.iter().filter(|call| {
        let user = split_prompt(call).1;
        user.split("<history-")
            .nth(1)
            .unwrap()
            .contains("marker150x")
    });
    assert_eq!((twice.count(), parts), (2, 1));
    let mut database = rig.database().await;
    let (text, model): (String, String) = sqlx::query_as("SELECT text, model FROM parts")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert!(text.contains("[part "), "code wrote a line of it: {text}");
    assert!(text.contains("Chapter 0:"), "{text}");
    assert_ne!(model, "code");
    // What was shown twice counts twice: one piece, and no more.
    let again = "SELECT (SELECT sum(shown_tokens) FROM accounts)
                      - (SELECT sum(message_tokens) FROM parts)";
    let again = rig.number(again).await;
    assert!((500..=1_100).contains(&again), "{again}");
}

/// A model behind memory's own endpoint has a small window. It says so, with how much was too much or
/// without, and is not asked for as much again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_context_window_of_the_observer_is_learned_from_refusals() {
    let refused = met(None).await;
    assert_eq!(refused, [0], "it is told at once what fits");
    let silent = json!({"error": {"message": "Input is too long for requested model."}});
    let halved = met(Some(&refusing(&silent))).await;
    assert_eq!(halved, [0, 1], "by halves, one refusal for each");
}

/// Which of two models is asked follows from the size of the prompt, and each has a window of its own.
#[tokio::test(flavor = "multi_thread")]
async fn each_observer_model_has_its_own_learned_context_window() {
    let models = r#"{"10000": "gpt-narrow", "200000": "gpt-wide"}"#;
    let rig = Rig::with(
        Options::default(),
        &[
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
            ("MEMORY__OBSERVATION__MODEL", models),
        ],
    )
    .await;
    let error = json!({"error": {"code": "context_length_exceeded", "message":
        "This model's maximum context length is 5000 tokens. However, your messages resulted in \
         6000 tokens. Please reduce the length of the messages."}});
    rig.provider
        .inject_next(CallerKind::Observer, 1, &refusing(&error));
    let mut model_calls = Vec::new();
    for (name, lines) in [("one", 200), ("two", 900), ("three", 200)] {
        let book = format!("{name}\n{}", long_text(lines));
        for turns in 0..3 {
            assert_eq!(rig.send(&opening_with(&book, turns)).await.status, 200);
            rig.quiet().await;
        }
        let before = model_calls.iter().map(Vec::len).sum();
        let calls = rig.provider.record_for(CallerKind::Observer);
        let model = |call: &Arc<RecordedRequest>| {
            let model = call.json().unwrap()["model"].as_str().unwrap().to_owned();
            (model, call.is_accepted())
        };
        model_calls.push(calls.iter().skip(before).map(model).collect::<Vec<_>>());
    }
    let narrow = |accepted| ("gpt-narrow".to_owned(), accepted);
    assert_eq!(model_calls[0][0], narrow(false), "{model_calls:?}");
    assert_eq!(
        model_calls[1],
        [("gpt-wide".to_owned(), true)],
        "{model_calls:?}"
    );
    // And what was learned of the other one is heeded.
    let pieces = model_calls[0].len() - 1;
    assert!(pieces > 1);
    assert_eq!(
        model_calls[2],
        vec![narrow(true); pieces],
        "{model_calls:?}"
    );
}

fn refusing(body: &Value) -> Behaviour {
    Behaviour {
        fail: Some(Failure {
            status: 400,
            retry_after: None,
            body: Some(("application/json", body.to_string())),
        }),
        ..Behaviour::default()
    }
}

/// Which calls of the Observer found its prompt too long, in two conversations; the first two of them in
/// the words of `silent`, where given.
async fn met(silent: Option<&Behaviour>) -> Vec<usize> {
    let observer = Provider::start(Options {
        rules: Rules {
            window: Some(7_000),
            ..Rules::default()
        },
        ..Options::default()
    })
    .await
    .unwrap();
    if let Some(silent) = silent {
        observer.inject_next(CallerKind::Observer, 2, silent);
    }
    let base_url = observer.base_url();
    let rig = Rig::with(
        Options::default(),
        &[
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
            ("MEMORY__OBSERVATION__BASE_URL", base_url.as_str()),
            ("MEMORY__OBSERVATION__API_KEY", "sk-memory"),
        ],
    )
    .await;
    for name in ["one", "two"] {
        let book = format!("{name}\n{}", long_text(900));
        for turns in 0..3 {
            assert_eq!(rig.send(&opening_with(&book, turns)).await.status, 200);
            rig.quiet().await;
        }
    }
    assert_eq!(rig.number("SELECT count(*) FROM parts").await, 2);
    assert_eq!(
        rig.number("SELECT count(*) FROM parts WHERE model = 'code'")
            .await,
        0
    );
    let calls = observer.record_for(CallerKind::Observer);
    let refused: Vec<usize> = (0..calls.len())
        .filter(|at| !calls[*at].is_accepted())
        .collect();
    println!(
        "{} calls, of which refused as too long: {refused:?}",
        calls.len()
    );
    refused
}

/// One question, three hundred rounds of two calls each, and not one other word of the user.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_task_of_three_hundred_parallel_tool_rounds_stays_short() {
    let rig = Rig::small().await;
    let mut messages =
        vec![json!({"role": "user", "content": "Find out which of the lamps@harbour9 flicker."})];
    let mut sent = Vec::new();
    for round in 0..300 {
        let call = |which: &str| {
            json!({"id": format!("call_{round}_{which}"), "type": "function", "function": {
                "name": "look", "arguments": json!({"lamp": round, "side": which}).to_string()}})
        };
        messages.push(
            json!({"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]}),
        );
        for which in ["a", "b"] {
            let found = format!(
                "Lamp {round} side {which}: steady, {} lumen, glass clean, number plate LH-{round}.",
                400 + round
            );
            messages.push(json!({"role": "tool", "tool_call_id": format!("call_{round}_{which}"), "content": found}));
        }
        if round % 5 == 4 {
            let answer = rig
                .send(&json!({"model": "gpt-test", "messages": messages}))
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            rig.quiet().await;
            sent.push(answer.memory().to_owned());
        }
    }
    let first = sent.iter().position(|state| state == "active").unwrap();
    assert!(
        first < 12 && sent[first..].iter().all(|state| state == "active"),
        "{sent:?}"
    );
    assert!(rig.got().iter().all(|entry| entry.is_accepted()));
    // However long the task, what is sent stays small, whole rounds of it and the question raw.
    let last = rig.last().json().unwrap();
    let forwarded = last["messages"].as_array().unwrap();
    assert!(
        forwarded.len() < 200,
        "{} of {}",
        forwarded.len(),
        messages.len()
    );
    let questions = forwarded
        .iter()
        .filter(|m| m["role"] == "user" && m["content"] == messages[0]["content"]);
    assert_eq!(questions.count(), 1);
    let gaps = rig
        .number(
            "SELECT count(*) FROM parts p WHERE kind = 'chunk' AND from_count > 0 AND NOT EXISTS
             (SELECT 1 FROM parts q WHERE q.kind = 'chunk' AND q.to_link = p.from_link)",
        )
        .await;
    assert_eq!(gaps, 0);
    let covered = rig
        .number("SELECT max(to_count) FROM parts WHERE kind = 'chunk'")
        .await;
    assert!(covered > 800, "{covered} of {}", messages.len());
}

/// A row that makes no sense any more costs its range nothing but time.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_unreadable_job_is_created_again() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.provider
        .inject(CallerKind::Observer, Behaviour::failing(500));
    let began = Instant::now();
    let mut turn = 0;
    while rig
        .number("SELECT count(*) FROM jobs WHERE attempts > 0 AND leased = 0")
        .await
        == 0
    {
        assert!(began.elapsed() < PATIENCE, "no job was tried");
        turn += 1;
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    let mut database = rig.database().await;
    sqlx::raw_sql("UPDATE jobs SET payload = '{\"transcript\": 7'")
        .execute(&mut database)
        .await
        .unwrap();
    rig.provider
        .inject(CallerKind::Observer, Behaviour::default());
    rig.quiet().await;
    let answer = rig
        .play_turns(&conversation, turn + 1..=turn + ACTIVE)
        .await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(rig.number("SELECT min(from_count) FROM parts").await, 0);
    let waiting = "SELECT count(*) FROM jobs WHERE kind = 'chunk'";
    assert_eq!(rig.number(waiting).await, 0);
}

/// The endpoint takes everything but one page, whatever is tried. What follows it is not to wait for
/// ever, and after a bounded number of tries does not.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_range_that_the_endpoint_always_rejects_is_finally_covered_by_code() {
    let rig = Rig::small().await;
    // It has shown that it can do the work.
    rig.play_turns(&SampleConversation::new("bob"), 1..=4).await;
    let conversation = SampleConversation::new("ada");
    let rejected = Behaviour {
        fail: Some(Failure {
            status: 400,
            retry_after: None,
            body: Some((
                "application/json",
                r#"{"error":{"message":"bad input"}}"#.to_owned(),
            )),
        }),
        ..Behaviour::default()
    };
    rig.provider.inject_next(CallerKind::Observer, 6, &rejected);
    let turn = 5;
    for turn in 1..=turn {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    let waiting = "SELECT count(*) FROM jobs WHERE empty_answers > 0 AND leased = 0";
    rig.until_at_least(1, waiting).await;
    let mut tries = 1;
    let by_code = "SELECT count(*) FROM parts WHERE model = 'code'";
    while rig.number(by_code).await == 0 {
        // Ten minutes pass.
        let mut database = rig.database().await;
        sqlx::raw_sql("UPDATE jobs SET due_ms = 0 WHERE leased = 0")
            .execute(&mut database)
            .await
            .unwrap();
        let ended = "SELECT (SELECT count(*) FROM parts WHERE model = 'code') * 99
                          + coalesce((SELECT max(empty_answers) FROM jobs), 0)";
        rig.until(ended, |ended| ended > tries).await;
        tries += 1;
        assert!(tries <= 6, "there is an end");
    }
    assert_eq!(tries, 6, "and it is not at the first mistake");
    let more = "SELECT (SELECT sum(shown_tokens) FROM accounts)
                     - (SELECT coalesce(sum(message_tokens), 0) FROM jobs)
                     - (SELECT coalesce(sum(message_tokens), 0) FROM parts)";
    assert_eq!(rig.number(more).await, 0, "nobody was shown it again");
    let answer = rig
        .play_turns(&conversation, turn + 1..=turn + ACTIVE)
        .await;
    assert_eq!(answer.memory(), "active");
    for (count, expected) in [
        (
            "SELECT count(*) FROM parts WHERE model = 'code' AND from_count = 0",
            1,
        ),
        (
            "SELECT count(*) FROM parts WHERE model = 'code' AND from_count > 0",
            0,
        ),
    ] {
        assert_eq!(rig.number(count).await, expected, "{count}");
    }
}
