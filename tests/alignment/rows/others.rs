//! Conversations that were long before, that begin anew, or that say the same as others of their key.

use serde_json::Value;

use super::{EITHER, EXACT};
use crate::alignment::harness::{conversation, text, user};
use crate::alignment::script::Applied::{All, Nothing};
use crate::alignment::script::{Ask, Row, chat, grow, message, reworded};

/// The same examples before each conversation of an application.
fn examples() -> Vec<Value> {
    conversation("example", 10)
}

fn behind_examples(first: &Value, name: &str, count: usize) -> Vec<Value> {
    let mut all = examples();
    all[0] = first.clone();
    all.extend(conversation(name, count));
    all
}

pub const ROWS: &[Row] = &[
    Row {
        item: 9,
        what: "was long before Diarist was put in front",
        asks: || grow(&conversation("it", 141), 121, 141),
        plain: || conversation("it", 141),
        applied: All,
        extra: 0,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 9,
        what: "was long before, and its window slides",
        asks: || {
            let mut asks = grow(&conversation("it", 141), 121, 141);
            for ask in &mut asks[4..] {
                ask.sent.drain(..ask.sent.len() - 101);
            }
            asks
        },
        plain: || conversation("it", 141),
        applied: All,
        extra: 0,
        raw: 23,
        reason: EITHER,
    },
    Row {
        item: 10,
        what: "begins anew under the same session id",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            asks.extend(grow(&conversation("other", 9), 1, 9));
            let named = |ask: Ask| ask.header("x-session-id", "always-the-same");
            asks.into_iter().map(named).collect()
        },
        plain: || conversation("it", 49),
        applied: Nothing,
        extra: 0,
        raw: 9,
        reason: &["no_snapshot"],
    },
    Row {
        item: 10,
        what: "has one session id for all its users, each with a key",
        asks: || {
            let mut asks = grow(&chat(), 1, 41);
            // Word for word the same, by somebody else.
            let others = grow(&chat(), 39, 39)
                .into_iter()
                .map(|ask| ask.with_key("Bearer sk-other"));
            asks.extend(others);
            let named = |ask: Ask| ask.header("x-session-id", "always-the-same");
            asks.into_iter().map(named).collect()
        },
        plain: chat,
        applied: Nothing,
        extra: 0,
        raw: 39,
        reason: &["no_snapshot"],
    },
    Row {
        item: 10,
        what: "has one session id and one key for all, and a common template",
        asks: || {
            let mut asks = Vec::new();
            for name in ["one", "two", "it"] {
                let first = user(&format!("{name}-first"), 0);
                let all = behind_examples(&first, name, 31);
                let mut all = grow(&all, 11, 41);
                if name == "it" {
                    all.truncate(1);
                }
                asks.extend(all);
            }
            let named = |ask: Ask| ask.header("x-session-id", "always-the-same");
            asks.into_iter().map(named).collect()
        },
        plain: || conversation("it", 121),
        applied: Nothing,
        extra: 0,
        raw: 11,
        reason: &["no_snapshot", "aligned"],
    },
    Row {
        item: 10,
        what: "opens all its conversations with the same ten messages",
        asks: || {
            let mut asks = Vec::new();
            for name in ["one", "two", "it"] {
                let mut all = examples();
                all.extend(conversation(name, 31));
                asks.extend(grow(&all, 11, 41));
            }
            asks
        },
        plain: || conversation("it", 103),
        applied: All,
        extra: 1,
        raw: 23,
        reason: EXACT,
    },
    Row {
        item: 10,
        what: "puts another document before the same answer and question",
        asks: || {
            let fixed = |name: &str, count: usize| {
                let mut all = vec![user(&format!("{name}-document"), 0)];
                // A document that is a chunk by itself.
                all[0] = reworded(&all[0], |words| vec![words; 40].join(" "));
                all.push(message("assistant", "I have read the whole document, from the first page to the last one, with all of its tables and notes. What would you like to know about it, and in which form shall I tell you?"));
                all.push(message(
                    "user",
                    "Summarise it in five points for somebody who has no time.",
                ));
                all.extend(conversation(name, count).split_off(1));
                all
            };
            let mut asks = grow(&fixed("one", 40), 1, 41);
            // Its first requests were not seen.
            asks.extend(grow(&fixed("it", 8), 5, 9));
            asks
        },
        plain: || conversation("it", 47),
        applied: Nothing,
        extra: 1,
        raw: 9,
        reason: &["no_snapshot", "aligned"],
    },
    Row {
        item: 10,
        what: "is asked the same questions as others before",
        asks: || {
            let form = |name: &str| {
                let mut all = vec![user(&format!("{name}-form"), 0)];
                all[0] = reworded(&all[0], |words| vec![words; 40].join(" "));
                for number in 0..10 {
                    all.push(message(
                        "assistant",
                        format!("Question {number} of ten: {}", text("question", number)),
                    ));
                    all.push(message("user", if number % 2 == 0 { "yes" } else { "no" }));
                }
                all
            };
            let mut asks = grow(&form("one"), 1, 21);
            asks.extend(grow(&form("it"), 1, 21));
            asks
        },
        plain: || conversation("it", 41),
        applied: All,
        extra: 1,
        raw: 23,
        reason: EXACT,
    },
];
