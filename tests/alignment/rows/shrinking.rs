//! Clients that send less than was said: what they prune, what slides out of their window, what they
//! summarise.

use serde_json::{Value, json};

use super::{ALIGNED, EITHER, EXACT};
use crate::alignment::harness::{assistant, conversation, marks, work};
use crate::alignment::script::Applied::{All, Nothing};
use crate::alignment::script::{Ask, Row, SUMMARY, chat, grow, message, reworded, shaped, tools};

/// The results among the first `old` messages, with other words.
fn results(sent: &[Value], old: usize, words: impl Fn(&str) -> String) -> Vec<Value> {
    let mut sent = sent.to_vec();
    for message in &mut sent[..old] {
        if message["role"] == "tool" {
            *message = reworded(message, &words);
        }
    }
    sent
}

fn behind(sent: &[Value], count: usize) -> usize {
    sent.len().saturating_sub(count) / 8 * 8
}

/// Every second question has a picture.
fn pictures() -> Vec<Value> {
    let mut all = chat();
    for (number, message) in all.iter_mut().enumerate() {
        if number % 4 == 0 {
            let url = format!("https://pictures.example/{number}.png");
            message["content"] = json!([{"type": "text", "text": message["content"]},
                                        {"type": "image_url", "image_url": {"url": url}}]);
        }
    }
    all
}

fn without_old_pictures(sent: &[Value]) -> Vec<Value> {
    let old = behind(sent, 8);
    let mut sent = sent.to_vec();
    for message in &mut sent[..old] {
        if let Some(words) = message["content"][0]["text"].as_str() {
            message["content"] = json!(words);
        }
    }
    sent
}

/// What the results are in the end where they are pruned one request after they came.
fn pruned_at_once(sent: &[Value]) -> Vec<Value> {
    let old = sent.len().saturating_sub(2);
    results(sent, old, |words| {
        let mark = marks(words).pop_first().unwrap_or_default();
        format!("[cleared] (gone-{mark})")
    })
}

pub const PRUNED: &[Row] = &[
    Row {
        item: 6,
        what: "replaces old tool results by a placeholder, in steps",
        asks: || {
            shaped(&tools(), |sent| {
                results(sent, behind(sent, 10), |_| {
                    "[Old tool result content cleared]".to_owned()
                })
            })
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EITHER,
    },
    Row {
        item: 6,
        what: "replaces old tool results by a few words each, one by one",
        asks: || {
            shaped(&tools(), |sent| {
                let old = sent.len().saturating_sub(12);
                results(sent, old, |words| format!("{}...", &words[..20]))
            })
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EITHER,
    },
    Row {
        item: 6,
        what: "prunes a result before anybody observed it",
        asks: || {
            let mut asks = shaped(&work("it", 61), pruned_at_once);
            for ask in &mut asks {
                // Nobody can tell of what was gone at once: the placeholder is what there is.
                ask.logical.clone_from(&ask.sent);
            }
            asks
        },
        plain: || work("it", 61),
        applied: All,
        extra: 1,
        raw: 23,
        reason: EITHER,
    },
    Row {
        item: 6,
        what: "drops old pictures",
        asks: || {
            let mut asks = shaped(&pictures(), without_old_pictures);
            for ask in &mut asks {
                ask.logical = conversation("it", ask.sent.len());
            }
            asks
        },
        plain: pictures,
        // The first message has a picture: without it, it says something else than was observed, and memory
        // begins anew with each step.
        applied: Nothing,
        extra: 7,
        raw: 41,
        reason: &["no_snapshot"],
    },
    Row {
        item: 6,
        what: "strips old reasoning, in fields and in the text",
        asks: || {
            shaped(&tools(), |sent| {
                let new = sent.len().saturating_sub(6);
                let mut sent = sent.to_vec();
                for message in &mut sent[new..] {
                    if message["role"] == "assistant" {
                        message["reasoning_content"] =
                            json!("Let me think about that for a while.");
                        if message["content"].is_string() {
                            *message =
                                reworded(message, |words| format!("<think>Hm.</think>\n{words}"));
                        }
                    }
                }
                sent
            })
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
];

/// The newest `count` messages, from a question on.
fn window(sent: &[Value], count: usize) -> Vec<Value> {
    let from = sent.len().saturating_sub(count).next_multiple_of(2);
    sent[from.min(sent.len() - 1)..].to_vec()
}

fn windowed(count: usize, kept: impl Fn(&[Value]) -> Vec<Value>) -> Vec<Ask> {
    shaped(&chat(), |sent| {
        if sent.len() <= count {
            return sent.to_vec();
        }
        let mut all = kept(sent);
        all.extend(window(sent, count));
        all
    })
}

fn notice() -> Vec<Value> {
    vec![
        message("user", "[Earlier messages were removed to save space.]"),
        message("assistant", "Understood."),
    ]
}

pub const WINDOWS: &[Row] = &[
    Row {
        item: 7,
        what: "drops the oldest",
        asks: || windowed(13, |_| Vec::new()),
        plain: chat,
        applied: All,
        extra: 1,
        raw: 13,
        reason: EITHER,
    },
    Row {
        item: 7,
        what: "keeps the first and drops the middle",
        asks: || windowed(13, |sent| sent[..2].to_vec()),
        plain: chat,
        applied: All,
        extra: 1,
        raw: 15,
        reason: EITHER,
    },
    Row {
        item: 7,
        what: "turns the first into a notice and drops the middle",
        asks: || windowed(13, |_| notice()),
        plain: chat,
        // Another conversation may hold the same passage behind a notice of its own.
        applied: Nothing,
        extra: 4,
        raw: 15,
        reason: &["no_snapshot"],
    },
    Row {
        item: 7,
        what: "the same, with tools: the ids of their calls prove it",
        asks: || {
            shaped(&tools(), |sent| {
                // Eight at a time: what a notice stands for is more than it.
                let from = sent.len().saturating_sub(13).next_multiple_of(8);
                if from == 0 {
                    return sent.to_vec();
                }
                let mut all = notice();
                all.extend_from_slice(&sent[from.min(sent.len() - 1)..]);
                all
            })
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 15,
        reason: EITHER,
    },
    Row {
        item: 7,
        what: "slides over a task of many tool rounds",
        asks: || {
            shaped(&tools(), |sent| {
                let from = sent.len().saturating_sub(13).next_multiple_of(4);
                sent[from.min(sent.len() - 1)..].to_vec()
            })
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 13,
        reason: EITHER,
    },
    Row {
        item: 7,
        what: "drops what nobody could observe so soon",
        asks: || {
            let mut asks = windowed(3, |_| Vec::new());
            for ask in &mut asks {
                ask.logical.clone_from(&ask.sent);
            }
            asks
        },
        plain: chat,
        applied: Nothing,
        extra: 0,
        raw: 3,
        reason: &["no_snapshot", "aligned"],
    },
];

/// The conversation, and the side call that asks for a summary of it.
fn and_summary(all: &[Value]) -> Vec<Ask> {
    let mut asks = grow(all, 1, all.len());
    let mut messages = all.to_vec();
    messages.push(assistant("it", all.len()));
    messages.push(message("user", "Summarise the conversation so far."));
    asks.push(Ask::from_messages(&messages).summarising(&messages));
    asks
}

/// What follows a summary of a conversation of which so much is `observed`: `head`, then the newest `tail`
/// messages of the conversation, then six turns.
fn compacted((observed, tail): (usize, usize), head: &[Value], system: Option<&str>) -> Vec<Ask> {
    let all = &chat();

    let mut asks = and_summary(all);
    let whole = conversation("it", all.len() + 13);
    for turn in (all.len() + 2..=whole.len()).step_by(2) {
        let mut sent = head.to_vec();
        sent.extend_from_slice(&whole[all.len() + 1 - tail..turn]);
        let mut ask = Ask::from_messages(&whole[..turn]).sending(sent);
        // What nobody could observe before the client summarised it stands in its summary alone.
        ask.beside = ask.logical.drain(observed..all.len() + 1 - tail).collect();
        if let Some(system) = system {
            system.clone_into(&mut ask.system);
        }
        asks.push(ask);
    }
    asks
}

/// All the user said, and the summary behind it.
fn kept_in_front() -> Vec<Value> {
    let mut kept: Vec<Value> = chat().into_iter().step_by(2).collect();
    kept.push(message(
        "user",
        format!("Another model was at work before you and left this:\n{SUMMARY}"),
    ));
    kept
}

fn long() -> Vec<Value> {
    conversation("it", 54)
}

fn question_and_summary() -> [Value; 2] {
    [
        message("user", "What did we do so far?"),
        message("assistant", SUMMARY),
    ]
}

const LINKED: &[&str] = &["longest", "compaction_link"];

pub const COMPACTED: &[Row] = &[
    Row {
        item: 8,
        what: "puts a summary in the place of everything",
        asks: || {
            let head = [
                message("user", format!("Summary so far:\n{SUMMARY}")),
                message("assistant", "Got it."),
            ];
            compacted((40, 0), &head, None)
        },
        plain: long,
        applied: All,
        extra: 1,
        raw: 25,
        reason: LINKED,
    },
    Row {
        item: 8,
        what: "puts a summary before the newest messages",
        asks: || {
            let head = [
                message("user", format!("Summary so far:\n{SUMMARY}")),
                message("assistant", "Got it."),
            ];
            compacted((36, 6), &head, None)
        },
        plain: long,
        applied: All,
        extra: 1,
        raw: 25,
        reason: EITHER,
    },
    Row {
        item: 8,
        what: "asks what was done and brings the summary as the answer",
        asks: || compacted((38, 4), &question_and_summary(), None),
        plain: long,
        // There everybody may quote an answer of another conversation.
        applied: Nothing,
        extra: 1,
        raw: 17,
        reason: &["no_snapshot"],
    },
    Row {
        item: 8,
        what: "the same, and names its conversation",
        asks: || named(compacted((38, 4), &question_and_summary(), None)),
        plain: long,
        applied: All,
        extra: 1,
        raw: 25,
        reason: EITHER,
    },
    Row {
        item: 8,
        what: "brings the summary as the first answer, without a question",
        asks: || compacted((40, 0), &[message("assistant", SUMMARY)], None),
        plain: long,
        applied: All,
        extra: 1,
        raw: 25,
        reason: LINKED,
    },
    Row {
        item: 8,
        what: "keeps what its user said, and the summary behind it",
        asks: || {
            let head = [
                chat()[0].clone(),
                message("assistant", "Noted."),
                message(
                    "user",
                    format!("Another model was at work before you and left this:\n{SUMMARY}"),
                ),
                message("assistant", "Got it. Thanks for the additional context!"),
            ];
            compacted((40, 0), &head, None)
        },
        plain: long,
        applied: All,
        extra: 1,
        raw: 25,
        reason: LINKED,
    },
    Row {
        item: 8,
        what: "keeps all its user said in front of the summary",
        asks: || compacted((40, 0), &kept_in_front(), None),
        plain: long,
        applied: All,
        extra: 1,
        raw: 16,
        reason: LINKED,
    },
    Row {
        item: 8,
        what: "keeps all its user said, and goes on from the summary",
        asks: || {
            let mut head = kept_in_front();
            let summary = Ask::from_messages(&chat()[..40]).sending(head.clone());
            head.push(message("assistant", "Got it."));
            let mut asks = compacted((40, 0), &head, None);
            let at = asks.iter().position(|ask| ask.summarises).unwrap();
            asks.insert(at + 1, summary);
            asks
        },
        plain: long,
        applied: All,
        extra: 1,
        raw: 18,
        reason: LINKED,
    },
    Row {
        item: 8,
        what: "puts the summary into its system prompt, before a tail",
        asks: || compacted((34, 8), &[], Some("You are patient.\nSummary: @summary@")),
        plain: long,
        applied: All,
        extra: 1,
        raw: 25,
        reason: EITHER,
    },
    Row {
        item: 8,
        what: "has a flat transcript summarised, and keeps a tail",
        asks: || flat_behind(6),
        plain: long,
        // The summary is no answer of this conversation, and what stands behind it may be of another.
        applied: Nothing,
        extra: 1,
        raw: 19,
        reason: &["no_snapshot"],
    },
    Row {
        item: 8,
        what: "the same, and names its conversation",
        asks: || named(flat_behind(6)),
        plain: long,
        applied: All,
        extra: 1,
        raw: 25,
        reason: EITHER,
    },
    Row {
        item: 8,
        what: "has a flat transcript summarised, and keeps nothing",
        asks: || flat_behind(0),
        plain: long,
        // Nothing proves whose summary that is; it is a conversation of its own.
        applied: Nothing,
        extra: 1,
        raw: 15,
        reason: &["no_snapshot"],
    },
    Row {
        item: 8,
        what: "sends its whole history as one message",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            for ask in &mut asks[18..] {
                ask.sent = vec![message("user", flat(&ask.sent))];
            }
            asks
        },
        plain: chat,
        applied: Nothing,
        extra: 0,
        raw: 1,
        reason: &["no_snapshot"],
    },
];

fn flat(messages: &[Value]) -> String {
    let lines = messages.iter().map(|message| {
        let (role, words) = (
            &message["role"],
            message["content"].as_str().unwrap_or_default(),
        );
        format!("[{}]: {words}", role.as_str().unwrap())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Asks for the summary with the history as one text, and keeps so many of the newest messages.
fn flat_behind(tail: usize) -> Vec<Ask> {
    let head = [message("user", SUMMARY), message("assistant", "Ok.")];
    let mut asks = compacted((32, tail), &head, None);
    flatten(&mut asks);
    asks
}

/// As opencode does: the conversation and the side call come under one name.
fn named(asks: Vec<Ask>) -> Vec<Ask> {
    let named = |ask: Ask| ask.header("x-session-id", "this-one");
    asks.into_iter().map(named).collect()
}

/// Makes the side call that asks for the summary one of a single message.
fn flatten(asks: &mut [Ask]) {
    for ask in asks.iter_mut().filter(|ask| ask.summarises) {
        let words = format!("Summarise this:\n{}", flat(&ask.sent));
        ask.sent = vec![message("user", words)];
    }
}

/// aider: examples, a map of the project, what was done, the files, what is asked now.
pub fn floating(sent: &[Value]) -> Vec<Value> {
    let turn = sent.len();
    let (newest, before) = sent.split_last().unwrap();
    let mut all = vec![
        message("user", "Change get_factorial() to use math.factorial"),
        message(
            "assistant",
            "To make this change we need to modify the file and import math first.",
        ),
        message(
            "user",
            format!("Here are summaries of some files: map {}", turn / 12),
        ),
        message(
            "assistant",
            "Ok, I won't try and edit those files without asking first.",
        ),
    ];
    all.extend_from_slice(before);
    all.push(message(
        "user",
        format!("I have *added these files to the chat*: edit {turn}"),
    ));
    all.push(message(
        "assistant",
        "Ok, any changes I propose will be to those files.",
    ));
    all.push(reworded(newest, |words| {
        format!("{words}\n*SEARCH/REPLACE* rules apply.")
    }));
    all
}

pub const AIDER: &[Row] = &[Row {
    item: 8,
    what: "moves its files and its map, and never extends anything",
    asks: || shaped(&conversation("it", 61), floating),
    plain: || conversation("it", 61),
    applied: All,
    extra: 2,
    // The most there are before an activation; the play ends with the last request of one.
    raw: 34,
    reason: ALIGNED,
}];
