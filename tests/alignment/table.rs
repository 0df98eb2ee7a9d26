//! The table of expectations: for each way of a client to send, what is still applied of what was
//! observed, what it costs, what goes out raw, and why. Each also with a restart in the middle.

use serde_json::{Value, json};

use crate::rig::Rig;
use crate::stage::{Client, Seen, assistant, marks, roomy, talk, text, user, work};

/// Messages until memory is in use; a message weighs some 110 tokens, so that nine make a chunk.
const LONG: usize = 61;

/// Sends the growing beginnings of `all`, turn by turn (every second message asks), as `shape` makes
/// them, with a restart before the one in the middle.
async fn play(
    rig: &mut Rig,
    all: &[Value],
    restart: bool,
    shape: impl Fn(&[Value]) -> Vec<Value>,
) -> Vec<Seen> {
    let turns: Vec<usize> = (1..=all.len()).step_by(2).collect();
    let mut seen = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        if restart && index == turns.len() / 2 {
            rig.restart().await;
        }
        seen.push(Client::new(rig).send(&shape(&all[..*turn])).await);
    }
    print(&seen);
    seen
}

#[expect(clippy::print_stdout, reason = "the table is worth reading")]
fn print(seen: &[Seen]) {
    for (index, seen) in seen.iter().enumerate() {
        println!(
            "{index:3} {:16} raw {:3} left out {:3} told {:3} calls {:3}",
            seen.reason,
            seen.raw,
            seen.left_out,
            seen.told.len(),
            seen.calls
        );
    }
}

fn aligned(seen: &[Seen]) -> usize {
    seen.iter().filter(|seen| seen.reason == "aligned").count()
}

/// What a client that changes nothing costs.
async fn plain_calls(all: &[Value]) -> usize {
    let mut rig = roomy().await;
    let seen = play(&mut rig, all, false, <[Value]>::to_vec).await;
    seen.last().unwrap().calls
}

/// A window over the conversation that drops the oldest: what fell out is told of.
#[tokio::test(flavor = "multi_thread")]
async fn a_sliding_window_keeps_what_it_dropped() {
    let all = talk("slide", LONG);
    for restart in [false, true] {
        let mut rig = roomy().await;
        let window = |sent: &[Value]| sent[sent.len().saturating_sub(12)..].to_vec();
        let seen = play(&mut rig, &all, restart, window).await;
        let last = seen.last().unwrap();
        assert!(
            last.told.contains("slide#0") && last.told.contains("slide#20"),
            "{last:?}"
        );
        assert!(aligned(&seen) >= 15, "{}", aligned(&seen));
        assert!(last.calls <= plain_calls(&all).await + 1);
    }
}

/// The first message is kept and the middle dropped, or the first is turned into a notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_behind_a_first_message_that_stays_or_turns_into_a_notice() {
    let all = talk("keep", LONG);
    for notice in [false, true] {
        let mut rig = roomy().await;
        let window = |sent: &[Value]| {
            if sent.len() <= 13 {
                return sent.to_vec();
            }
            let mut kept = vec![if notice {
                json!({"role": "user", "content": "[Earlier messages were removed to save space.]"})
            } else {
                sent[0].clone()
            }];
            kept.extend_from_slice(&sent[sent.len() - 12..]);
            kept
        };
        let seen = play(&mut rig, &all, notice, window).await;
        let last = seen.last().unwrap();
        assert!(last.told.contains("keep#10"), "{:?}", last.told);
        assert!(aligned(&seen) >= 12, "{}", aligned(&seen));
        let body: Value = serde_json::from_str(&last.body.0).unwrap();
        let raw_notice = body.to_string().contains("[Earlier messages were removed");
        assert_eq!(raw_notice, notice, "what memory does not know stays raw");
        assert!(last.calls <= plain_calls(&all).await + 2);
    }
}

/// A clock in the first user message: another chain with every request, one conversation.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_in_the_first_message_costs_nothing_and_loses_nothing() {
    let all = talk("clock", LONG);
    for restart in [false, true] {
        let mut rig = roomy().await;
        let clock = |sent: &[Value]| {
            let mut sent = sent.to_vec();
            let words = format!("It is {} o'clock. {}", sent.len(), text("clock", 0));
            sent[0] = json!({"role": "user", "content": words});
            sent
        };
        let seen = play(&mut rig, &all, restart, clock).await;
        let last = seen.last().unwrap();
        assert!(last.left_out > 20, "{last:?}");
        assert!(last.calls <= plain_calls(&all).await + 1);
        assert!(last.told.contains("clock#2"), "{:?}", last.told);
        let first: Value = serde_json::from_str(&last.body.0).unwrap();
        assert_eq!(
            first["messages"][1]["content"]
                .as_str()
                .unwrap()
                .find("It is 61"),
            Some(0)
        );
    }
}

/// A reminder is appended to the newest user message and gone with the next turn; the system prompt
/// changes each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_reminder_at_the_end_and_another_system_prompt_each_turn() {
    let all = talk("remind", LONG);
    let mut rig = roomy().await;
    let mut seen = Vec::new();
    for turn in (1..=all.len()).step_by(2) {
        let mut sent = all[..turn].to_vec();
        let last = sent.last_mut().unwrap();
        let words = format!(
            "{}\n<reminder>Be brief, {turn}.</reminder>",
            last["content"].as_str().unwrap()
        );
        last["content"] = json!(words);
        let mut client = Client::new(&mut rig);
        client.system = Some(format!("You are patient. It is {turn}."));
        seen.push(client.send(&sent).await);
    }
    print(&seen);
    let last = seen.last().unwrap();
    assert!(
        last.left_out > 20 && last.told.contains("remind#0"),
        "{last:?}"
    );
    assert!(last.calls <= plain_calls(&all).await + 1);
}

/// Old tool results become a placeholder, in steps.
#[tokio::test(flavor = "multi_thread")]
async fn pruned_tool_results_stay_remembered() {
    let all = work("prune", LONG);
    for restart in [false, true] {
        let mut rig = roomy().await;
        let pruned = |sent: &[Value]| {
            let old = sent.len().saturating_sub(10) / 8 * 8;
            let mut sent = sent.to_vec();
            for message in &mut sent[..old] {
                if message["role"] == "tool" {
                    message["content"] = json!("[Old tool result content cleared]");
                }
            }
            sent
        };
        let seen = play(&mut rig, &all, restart, pruned).await;
        let last = seen.last().unwrap();
        assert!(last.left_out > 20, "{last:?}");
        assert!(last.told.contains("prune#0"), "{:?}", last.told);
        assert!(last.calls <= plain_calls(&all).await + 1);
    }
}

/// An early message is edited and everything behind it kept: the edit stays raw, the rest is told of.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_in_the_middle_of_what_is_observed_stays_raw() {
    let all = talk("edit", LONG);
    let mut rig = roomy().await;
    play(&mut rig, &all, false, <[Value]>::to_vec).await;
    let mut edited = talk("edit", LONG + 2);
    edited[4] = user("other", 4);
    let seen = Client::new(&mut rig).send(&edited).await;
    assert_eq!(seen.reason, "aligned");
    assert!(
        seen.told.contains("edit#0") && seen.told.contains("edit#20"),
        "{seen:?}"
    );
    assert!(seen.body.0.contains("(other#4)"));

    // Edited where everything behind it goes: what is before applies.
    let mut rig = roomy().await;
    let before = play(&mut rig, &all, false, <[Value]>::to_vec)
        .await
        .pop()
        .unwrap();
    let mut edited = all[..31].to_vec();
    edited[30] = user("other", 30);
    let seen = Client::new(&mut rig).send(&edited).await;
    assert!(seen.told.is_subset(&before.told), "{seen:?}");
    assert!(
        seen.told.iter().all(|mark| {
            let number: usize = mark.split('#').next_back().unwrap().parse().unwrap();
            number < 30
        }),
        "{:?}",
        seen.told
    );
    assert_eq!(seen.calls, before.calls);
}

/// The client asks for a summary of its history and goes on from that, with or without a tail.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_compacts_keeps_its_log() {
    let all = talk("compact", LONG);
    for (tail, restart) in [(0, false), (0, true), (6, false), (6, true)] {
        let mut rig = roomy().await;
        let before = play(&mut rig, &all, false, <[Value]>::to_vec)
            .await
            .pop()
            .unwrap();
        // The side call: the same history and a request for a summary.
        let mut asked = all.clone();
        asked.push(assistant("compact", LONG));
        asked.push(json!({"role": "user", "content": "Summarise the conversation so far."}));
        let body = Client::new(&mut rig).body(&asked);
        let answer = rig.send(&body).await.json();
        rig.quiet().await;
        let summary = answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(summary.len() >= 64, "{summary}");
        if restart {
            rig.restart().await;
        }
        let mut sent =
            vec![json!({"role": "user", "content": format!("Summary so far:\n{summary}")})];
        if tail > 0 {
            sent.extend_from_slice(&all[LONG - tail..]);
            sent.push(assistant("compact", LONG));
        } else {
            sent.push(json!({"role": "assistant", "content": "Got it."}));
        }
        let mut next = LONG + 1;
        for round in 0..6 {
            sent.push(user("compact", next));
            let seen = Client::new(&mut rig).send(&sent).await;
            print(std::slice::from_ref(&seen));
            if round == 0 {
                let why = if tail > 0 {
                    "aligned"
                } else {
                    "compaction_link"
                };
                assert_eq!(seen.reason, why);
            }
            assert!(seen.told.is_superset(&before.told), "{:?}", seen.told);
            assert!(seen.body.0.contains("Summary so far"), "stays raw");
            sent.push(assistant("compact", next + 1));
            next += 2;
        }
    }
}

/// Nothing of the old topic under the same session id, nor of another user under the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_topic_under_an_old_name_gets_nothing() {
    let mut rig = roomy().await;
    let headers = vec![("x-session-id", "always-the-same")];
    let greeting = [
        json!({"role": "user", "content": "Hello there, I am new to this and would like some help today."}),
        json!({"role": "assistant", "content": "Ok."}),
    ];
    for name in ["old", "new", "third"] {
        for turn in (1..=41).step_by(2) {
            let mut sent = greeting.to_vec();
            sent.extend(talk(name, turn));
            let mut client = Client::new(&mut rig);
            client.headers.clone_from(&headers);
            if name == "third" {
                client.credential = "Bearer sk-other";
            }
            let seen = client.send(&sent).await;
            assert!(
                seen.told
                    .iter()
                    .all(|mark| mark.starts_with(&format!("{name}#"))),
                "{name} {turn}: {:?}",
                seen.told
            );
        }
    }
    // Another user who says what was said before, in another order: no run, nothing.
    let mut client = Client::new(&mut rig);
    client.credential = "Bearer sk-nobody";
    let seen = client.send(&talk("old", 41)[20..]).await;
    assert!(
        seen.told.is_empty() && seen.reason == "no_snapshot",
        "{seen:?}"
    );
}

/// The layout of aider: an example, a repository map, what was done, the files, what is asked now. The
/// map changes from time to time, the files with every edit, a reminder stands on the newest message.
#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_float_stay_raw_where_they_are() {
    let done = talk("float", LONG);
    for restart in [false, true] {
        let mut rig = roomy().await;
        let shape = |sent: &[Value]| {
            let turn = sent.len();
            let (asked, before) = sent.split_last().unwrap();
            let mut all = vec![
                json!({"role": "user", "content": "Change get_factorial() to use math.factorial"}),
                json!({"role": "assistant", "content": "To make this change we need to modify the file and import math first."}),
                json!({"role": "user", "content": format!("Here are summaries of some files: map {}", turn / 12)}),
                json!({"role": "assistant", "content": "Ok, I won't try and edit those files without asking first."}),
            ];
            all.extend_from_slice(before);
            all.push(json!({"role": "user", "content": format!("I have *added these files to the chat*: edit {turn}")}));
            all.push(json!({"role": "assistant", "content": "Ok, any changes I propose will be to those files."}));
            let words = format!(
                "{}\n*SEARCH/REPLACE* rules apply.",
                asked["content"].as_str().unwrap()
            );
            all.push(json!({"role": "user", "content": words}));
            all
        };
        let seen = play(&mut rig, &done, restart, shape).await;
        let last = seen.last().unwrap();
        assert!(last.left_out > 15, "{last:?}");
        assert!(last.told.contains("float#0"), "{:?}", last.told);
        let body = &last.body.0;
        assert!(body.contains("added these files to the chat*: edit 61"));
        assert!(last.calls <= plain_calls(&done).await + 2, "{}", last.calls);
        assert!(marks(body).contains("float#60"));
        // Another session with the same files and the same first words is another conversation.
        let fresh = shape(&done[..1]);
        let mut other = vec![json!({"role": "user", "content": "Here is another example."})];
        other.extend_from_slice(&fresh[1..]);
        let seen = Client::new(&mut rig).send(&other).await;
        assert!(seen.told.is_empty(), "{seen:?}");
    }
}
