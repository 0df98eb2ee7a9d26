//! The rows of the table, by the paragraph they belong to.

mod others;
mod shrinking;

use serde_json::{Value, json};

use crate::alignment::harness::{conversation, user};
use crate::alignment::script::{Applied, Ask, Row, branched, chat, grow, reworded, shaped, tools};

use Applied::{All, Nothing, UpTo};

/// What a request says that continues its chain.
const EXACT: &[&str] = &["longest"];
const ALIGNED: &[&str] = &["aligned"];
const EITHER: &[&str] = &["longest", "aligned"];
/// The same where what was observed before is observed again, of which there may be too much.
const AGAIN: &[&str] = &["longest", "aligned", "observer_paused"];

pub const ROWS: &[&[Row]] = &[
    ITSELF,
    CHANGED,
    SPELLED,
    MOVING,
    shrinking::PRUNED,
    shrinking::WINDOWS,
    shrinking::COMPACTED,
    shrinking::AIDER,
    others::ROWS,
];

const ITSELF: &[Row] = &[
    Row {
        item: 1,
        what: "appends turns",
        asks: || grow(&chat(), 1, 41),
        plain: chat,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 1,
        what: "sends the same again",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            asks.extend(grow(&chat(), 41, 41));
            asks
        },
        plain: chat,
        applied: All,
        extra: 0,
        raw: 23,
        reason: &["repeated"],
    },
    Row {
        item: 1,
        what: "sends each request four times at once",
        asks: || {
            grow(&chat(), 1, 41)
                .into_iter()
                .map(|ask| ask.times(4))
                .collect()
        },
        plain: chat,
        applied: All,
        extra: 0,
        raw: 23,
        // The fifth comes after them.
        reason: &["repeated"],
    },
    Row {
        item: 1,
        what: "repeats older requests out of order between the new ones",
        asks: || {
            let mut asks = grow(&chat(), 1, 31);
            for old in [29, 13, 31, 21, 5] {
                asks.extend(grow(&chat(), old, old));
            }
            asks.extend(grow(&chat(), 33, 37));
            asks.extend(grow(&chat(), 19, 19));
            asks.extend(grow(&chat(), 39, 41));
            asks
        },
        plain: chat,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
];

const CHANGED: &[Row] = &[
    Row {
        item: 2,
        what: "edits its last message, and goes on from that",
        asks: || {
            let edited = branched(&chat(), 36, &conversation("other", 45));
            let mut asks = grow(&chat(), 1, 37);
            asks.extend(grow(&edited, 37, 45));
            asks
        },
        plain: || conversation("it", 45),
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 2,
        what: "has its last answer given again, and goes on from the second",
        asks: || {
            let again = branched(&chat(), 37, &conversation("other", 43));
            let mut asks = grow(&chat(), 1, 37);
            asks.extend(grow(&chat(), 37, 39));
            asks.extend(grow(&chat(), 37, 37));
            asks.extend(grow(&again, 39, 43));
            asks
        },
        plain: || conversation("it", 43),
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 2,
        what: "asks for two answers each time and goes on from the second",
        asks: || {
            grow(&chat(), 1, 41)
                .into_iter()
                .map(|ask| ask.with(json!({"n": 2})))
                .collect()
        },
        plain: chat,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 3,
        what: "edits an early message and keeps what follows",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            let mut all = conversation("it", 49);
            all[4] = user("other", 4);
            asks.extend(grow(&all, 43, 49));
            asks
        },
        plain: || conversation("it", 49),
        applied: All,
        // What stood there before the edit is not told any more, so all that stands behind it is observed
        // again. The Observer has its limit for what it was shown before.
        extra: 4,
        raw: 26,
        reason: AGAIN,
    },
    Row {
        item: 3,
        what: "edits its first message, and takes the edit back",
        asks: || {
            let mut edited = conversation("it", 41);
            edited[0] = user("other", 0);
            let mut asks = grow(&conversation("it", 41), 1, 9);
            asks.extend(grow(&edited, 11, 15));
            asks.extend(grow(&conversation("it", 41), 17, 41));
            asks
        },
        plain: chat,
        applied: All,
        extra: 4,
        raw: 24,
        reason: EITHER,
    },
    Row {
        item: 3,
        what: "edits an early message, without what follows",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            asks.extend(grow(
                &branched(&chat(), 36, &conversation("other", 37)),
                37,
                37,
            ));
            asks
        },
        plain: chat,
        applied: UpTo(36),
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 3,
        what: "the same, before what the last activation covers",
        asks: || {
            let mut asks = grow(&conversation("it", 61), 1, 61);
            asks.extend(grow(
                &branched(&chat(), 36, &conversation("other", 39)),
                37,
                39,
            ));
            asks
        },
        plain: || conversation("it", 61),
        applied: UpTo(36),
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 3,
        what: "edits its first message, without what follows",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            asks.extend(grow(&conversation("other", 5), 1, 5));
            asks
        },
        plain: chat,
        applied: Nothing,
        extra: 0,
        raw: 5,
        reason: &["no_snapshot"],
    },
    Row {
        item: 3,
        what: "takes a branch and comes back",
        asks: || {
            let branch = branched(&chat(), 20, &conversation("other", 31));
            let mut asks = grow(&chat(), 1, 31);
            asks.extend(grow(&branch, 21, 31));
            asks.extend(grow(&chat(), 33, 41));
            asks
        },
        plain: || conversation("it", 53),
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 3,
        what: "keeps two branches alive at once",
        asks: || {
            let branch = branched(&chat(), 20, &conversation("other", 41));
            let mut asks = grow(&chat(), 1, 21);
            for turn in (21..=41).step_by(2) {
                asks.extend(grow(&branch, turn, turn));
                asks.extend(grow(&chat(), turn, turn));
            }
            asks
        },
        plain: || conversation("it", 61),
        applied: All,
        extra: 1,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 3,
        what: "the same, and the first message holds a clock",
        asks: || {
            let branch = branched(&chat(), 30, &conversation("other", 47));
            let mut asks = clocked(&grow(&chat(), 1, 31));
            for turn in (31..=41).step_by(2) {
                asks.extend(clocked(&grow(&branch, turn, turn)));
                asks.extend(clocked(&grow(&chat(), turn, turn)));
            }
            asks
        },
        plain: || conversation("it", 61),
        applied: All,
        extra: 1,
        raw: 24,
        reason: EITHER,
    },
];

/// The first message of each holds the time; no two are alike.
fn clocked(asks: &[Ask]) -> Vec<Ask> {
    let mut asks = asks.to_vec();
    for ask in &mut asks {
        let turn = ask.sent.len();
        ask.sent[0] = reworded(&ask.sent[0], |words| format!("It is {turn} past. {words}"));
    }
    asks
}

/// As another program spells the same.
pub fn respelled(message: &Value, turn: usize) -> Value {
    let mut message = message.clone();
    if turn % 4 == 1 {
        return message;
    }
    if let Some(words) = message["content"].as_str() {
        let half = words.len() / 2;
        let half = words.floor_char_boundary(half);
        message["content"] = json!([{"type": "text", "text": &words[..half]},
                                    {"text": format!("{} ", &words[half..]), "type": "text",
                                     "cache_control": {"type": "ephemeral"}}]);
    }
    if message["role"] == "assistant" {
        message["refusal"] = Value::Null;
        message["reasoning_content"] = json!("");
        message["annotations"] = json!([]);
    }
    if let Some(calls) = message["tool_calls"].as_array_mut() {
        for call in calls {
            let path = call["function"]["arguments"]
                .as_str()
                .unwrap()
                .replace("\":", "\" : ");
            call["function"]["arguments"] = json!(path);
        }
    }
    message
}

/// With other ids of tool calls, as a translating program makes them.
pub fn renumbered(messages: &[Value], how: &str) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(id) = message["tool_call_id"].as_str() {
            message["tool_call_id"] = json!(format!("{how}{}", id.replace("call_", "")));
        }
        for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
            let id = call["id"].as_str().unwrap().replace("call_", "");
            call["id"] = json!(format!("{how}{id}"));
        }
    }
    messages
}

const SPELLED: &[Row] = &[
    Row {
        item: 4,
        what: "spells the same messages in another way every other time",
        asks: || {
            shaped(&tools(), |sent| {
                sent.iter()
                    .map(|message| respelled(message, sent.len()))
                    .collect()
            })
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 4,
        what: "gives its tool calls new ids with each request",
        asks: || {
            shaped(&tools(), |sent| {
                renumbered(sent, &format!("id{}_", sent.len()))
            })
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 4,
        what: "asks another provider in the middle: ids, reasoning, spelling",
        asks: || {
            let mut asks = shaped(&tools(), |sent| {
                if !(17..29).contains(&sent.len()) {
                    return sent.to_vec();
                }
                let respelled = sent
                    .iter()
                    .map(|message| respelled(message, 0))
                    .collect::<Vec<_>>();
                renumbered(&respelled, "toolu_")
            });
            for ask in &mut asks[8..14] {
                ask.fields = json!({"temperature": 1});
            }
            asks
        },
        plain: tools,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
];

const MOVING: &[Row] = &[
    Row {
        item: 5,
        what: "writes another system prompt and other tools each turn",
        asks: || {
            let asks = grow(&chat(), 1, 41).into_iter().map(|ask| {
                let turn = ask.sent.len();
                let tool = json!({"type": "function", "function": {"name": format!("tool{turn}"),
                                  "parameters": {"type": "object", "properties": {}}}});
                ask.system(format!("You are patient. It is {turn} past."))
                    .with(json!({"tools": [tool]}))
            });
            asks.collect()
        },
        plain: chat,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 5,
        what: "appends a reminder to the newest message",
        asks: || {
            shaped(&chat(), |sent| {
                let mut sent = sent.to_vec();
                let last = sent.last_mut().unwrap();
                *last = reworded(last, |words| {
                    format!("{words}\n<reminder>Be brief.</reminder>")
                });
                sent
            })
        },
        plain: chat,
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 5,
        what: "sends a reminder of its own at the end",
        asks: || {
            shaped(&chat(), |sent| {
                let mut sent = sent.to_vec();
                sent.push(json!({"role": "system", "content": "Reminder: answer in English, and in full sentences."}));
                sent
            })
        },
        plain: chat,
        applied: All,
        extra: 0,
        raw: 24,
        reason: EXACT,
    },
    Row {
        item: 5,
        what: "has a clock in its first message",
        asks: || clocked(&grow(&chat(), 1, 41)),
        plain: chat,
        applied: All,
        // Its first requests stand on another chain.
        extra: 1,
        raw: 24,
        reason: EITHER,
    },
    Row {
        item: 5,
        what: "has a clock in its first message that turns once a day",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            for ask in &mut asks[17..] {
                ask.sent[0] = reworded(&ask.sent[0], |words| format!("It is Tuesday. {words}"));
            }
            asks
        },
        plain: chat,
        applied: All,
        // The client says its first message in other words, and takes back the old ones: memory begins
        // anew on that day.
        extra: 4,
        raw: 24,
        reason: AGAIN,
    },
    Row {
        item: 5,
        what: "has a clock in front and a reminder at the end",
        asks: || {
            let mut asks = clocked(&grow(&chat(), 1, 41));
            for ask in &mut asks {
                let last = ask.sent.last_mut().unwrap();
                *last = reworded(last, |words| {
                    format!("{words}\n<reminder>Be brief.</reminder>")
                });
            }
            asks
        },
        plain: chat,
        applied: All,
        extra: 1,
        raw: 24,
        reason: EITHER,
    },
];
