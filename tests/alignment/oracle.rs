//! Judges a request by the two bodies alone: what the client sent, and what the provider got. Each
//! message has to be there, or its mark in the notes, and in one of the two only.

use std::collections::{BTreeMap, BTreeSet};

use diarist_provider::script;
use serde_json::Value;

use crate::alignment::inflate::{mark, marks};

/// What became of the messages of one request.
#[derive(Debug, Default)]
pub struct MessageFates {
    /// How many did not go out.
    pub left_out: usize,
    /// Left out, and nothing tells of them.
    pub lost: Vec<String>,
    /// Told twice, or told and sent; a pinned message may be both.
    pub twice: Vec<String>,
    /// Told, and the client no longer sends it.
    pub gone: BTreeSet<String>,
    /// Told, and nobody said it in this conversation.
    pub foreign: BTreeSet<String>,
    /// Sent, not the client's, or not in its order.
    pub strange: Vec<String>,
    /// All that the notes tell of.
    pub in_notes: BTreeSet<String>,
}

impl MessageFates {
    pub fn is_wrong(&self) -> bool {
        let none = self.lost.is_empty() && self.twice.is_empty();
        !(none && self.foreign.is_empty() && self.strange.is_empty())
    }
}

/// What the models of memory were shown so far.
#[derive(Debug)]
pub struct ModelInputs {
    /// Histories, to Observers.
    pub history: String,
    /// Logs, to Reflectors.
    pub condensed: String,
}

/// Remembers what was said in the requests before.
#[derive(Debug, Default)]
pub struct Oracle {
    /// What a tool's result said when it was first sent.
    results: BTreeMap<String, String>,
    messages: BTreeMap<String, BTreeSet<String>>,
    /// In what shapes a mark was sent: a message that lost its calls is another message.
    shapes: BTreeMap<String, BTreeSet<String>>,
    /// Behind which messages a mark was said: some clients say the same again.
    behind: BTreeMap<String, BTreeSet<Vec<String>>>,
}

fn shape(message: &Value) -> String {
    let calls = message["tool_calls"].as_array();
    let ids: Vec<&Value> = calls
        .into_iter()
        .flatten()
        .map(|call| &call["id"])
        .collect();
    format!("{} {ids:?}", message["role"])
}

impl Oracle {
    /// What is known of `conversation` now includes these messages.
    fn add_messages(&mut self, conversation: &str, messages: &[Value]) {
        let known_marks = self.messages.entry(conversation.to_owned()).or_default();
        for message in messages {
            for mark in marks(&script::text(message)) {
                let shapes = self.shapes.entry(mark.clone()).or_default();
                shapes.insert(shape(message));
                known_marks.insert(mark);
            }
            if let (Some(id), Some(mark)) = (message["tool_call_id"].as_str(), mark(message)) {
                self.results.entry(id.to_owned()).or_insert(mark);
            }
        }
        // What is new is the last message, and the answer before it.
        let own_marks: Vec<String> = messages.iter().filter_map(mark).collect();
        for at in own_marks.len().saturating_sub(2)..own_marks.len() {
            let behind = self.behind.entry(own_marks[at].clone()).or_default();
            behind.insert(own_marks[..at].to_vec());
        }
    }

    /// How often a mark was said: so often it may be told.
    fn allowed_times(&self, mark: Option<&String>) -> usize {
        let behind = mark.and_then(|mark| self.behind.get(mark));
        behind.map_or(1, BTreeSet::len)
    }

    /// The marks one of which has to be told where `message` is not sent.
    fn accepted_marks(&self, message: &Value) -> Vec<String> {
        let first = message["tool_call_id"]
            .as_str()
            .and_then(|id| self.results.get(id).cloned());
        mark(message).into_iter().chain(first).collect()
    }

    /// What became of `ours`, given what went out.
    pub fn check(
        &mut self,
        conversation: &str,
        client_messages: &[Value],
        sent: &[Value],
        shown: &ModelInputs,
    ) -> MessageFates {
        self.add_messages(conversation, client_messages);
        let mut fates = MessageFates::default();
        let (is_sent, inserted) = split_sent(client_messages, sent, &mut fates.strange);
        let noted_marks: Vec<String> = inserted.iter().flat_map(|m| note_marks(m)).collect();
        let times = |mark: &String| noted_marks.iter().filter(|noted| *noted == mark).count();

        let known: Vec<Vec<String>> = client_messages
            .iter()
            .map(|m| self.accepted_marks(m))
            .collect();
        let mut pinned = 0;
        for (at, message) in client_messages.iter().enumerate() {
            let by = &known[at];
            let noted_times = by.iter().map(times).max().unwrap_or_default();
            let may = self.allowed_times(by.first());
            let alone = known
                .iter()
                .filter(|other| other.first() == by.first())
                .count()
                == 1
                && by.first().is_some_and(|mark| self.shapes[mark].len() == 1);
            if is_sent[at] {
                if noted_times + 1 > may && noted_times > 0 && alone {
                    pinned += usize::from(message["role"] == "user");
                    if message["role"] != "user" || pinned > 1 {
                        fates.twice.push(format!("{by:?} is sent and told"));
                    }
                }
                continue;
            }
            if let Some(text) = head(message)
                && inserted.iter().any(|m| script::text(m).starts_with(&text))
            {
                // The notes were appended to it.
                continue;
            }
            fates.left_out += 1;
            let is_covered = match note_text(message) {
                // A line that a Reflector was shown may have become part of another.
                _ if !by.is_empty() => {
                    noted_times > 0 || by.iter().any(|mark| shown.condensed.contains(mark))
                }
                // It bears no mark: a program wrote it.
                Some(words) => shown.history.contains(&words),
                None => true,
            };
            if !is_covered {
                fates.lost.push(format!("{by:?} at {at}"));
            }
            if noted_times > may && alone {
                fates
                    .twice
                    .push(format!("{by:?} is told {noted_times} times"));
            }
        }
        let present: BTreeSet<&String> = known.iter().flatten().collect();
        let quoted: BTreeSet<String> = client_messages
            .iter()
            .flat_map(|m| marks(&script::text(m)))
            .collect();
        let known_marks = &self.messages[conversation];
        fates.in_notes = noted_marks.into_iter().collect();
        for mark in &fates.in_notes {
            if !known_marks.contains(mark) {
                fates.foreign.insert(mark.clone());
            } else if !present.contains(mark) && !quoted.contains(mark) {
                fates.gone.insert(mark.clone());
            }
        }
        fates
    }
}

fn head(message: &Value) -> Option<String> {
    (message["role"] == "system").then(|| script::text(message))
}

/// Which of `ours` are in `sent`, and what is in `sent` besides.
fn split_sent<'a>(
    ours: &[Value],
    sent: &'a [Value],
    strange: &mut Vec<String>,
) -> (Vec<bool>, Vec<&'a Value>) {
    let tail = ours
        .iter()
        .rev()
        .zip(sent.iter().rev())
        .take_while(|(ours, sent)| ours == sent)
        .count();
    let behind = ours.len() - tail;
    let mut is_sent: Vec<bool> = (0..ours.len()).map(|at| at >= behind).collect();
    let mut inserted = Vec::new();
    let mut at = 0;
    for message in &sent[..sent.len() - tail] {
        if let Some(found) = ours[at..behind].iter().position(|ours| ours == message) {
            is_sent[at + found] = true;
            at += found + 1;
        } else if ours.contains(message) {
            strange.push(format!("out of order: {:.200}", message.to_string()));
        } else {
            inserted.push(message);
        }
    }
    (is_sent, inserted)
}

/// The marks that the notes in an inserted message tell of, without the hints at their end: these say
/// once more where things stood.
fn note_marks(inserted: &Value) -> Vec<String> {
    let text = script::text(inserted);
    let end = ["\n<current-task>\n", "\n<suggested-response>\n"]
        .iter()
        .filter_map(|tag| text.find(tag))
        .min()
        .unwrap_or(text.len());
    marks(&text[..end])
}

/// The words of a message as an Observer would be shown them: enough to know them by.
fn note_text(message: &Value) -> Option<String> {
    let text = script::text(message);
    let line = text.trim().lines().next()?.trim().to_owned();
    // What redaction or escaping may change proves nothing here.
    let plain = line.chars().all(|c| c.is_alphanumeric() || c == ' ');
    (plain && line.len() >= 16).then_some(line)
}
