//! How a client sends what was said: what it prunes, drops, moves, renumbers and puts in.

use serde_json::{Value, json};

use crate::alignment::compose::Line;
use crate::alignment::harness::marks;
use crate::alignment::rows::{renumbered, respelled};
use crate::alignment::script::{message, reworded};
use crate::support::dice::Dice;

/// What stands in the place of an old result.
#[derive(Clone, Copy, Debug)]
enum Placeholder {
    /// The same for all.
    Plain,
    /// Another one for each.
    Named,
    /// The beginning of what it said.
    Cut,
}

/// The habits of one client.
#[derive(Clone, Debug, Default)]
pub struct ClientHabits {
    clock: bool,
    window: Option<usize>,
    keeps_first: bool,
    notice: bool,
    prunes: Option<(usize, Placeholder)>,
    /// Old rounds of tools go as a whole.
    drops_rounds: Option<usize>,
    drops_pictures: Option<usize>,
    reasons: bool,
    ids: bool,
    spelling: bool,
    reminder: bool,
    floating: bool,
    pub system: bool,
    tools: bool,
    two_answers: bool,
}

impl ClientHabits {
    pub fn random(dice: &mut Dice) -> Self {
        let old = |dice: &mut Dice| dice.one_in(3).then(|| 2 + dice.below(16));
        let prunes = old(dice).map(|behind| {
            let placeholders = [Placeholder::Plain, Placeholder::Named, Placeholder::Cut];
            (behind, placeholders[dice.below(3)])
        });
        Self {
            clock: dice.one_in(4),
            window: dice.one_in(3).then(|| 6 + dice.below(20)),
            keeps_first: dice.one_in(3),
            notice: dice.one_in(3),
            prunes,
            drops_rounds: old(dice).filter(|_| dice.one_in(2)),
            drops_pictures: old(dice),
            reasons: dice.one_in(4),
            ids: dice.one_in(4),
            spelling: dice.one_in(4),
            reminder: dice.one_in(4),
            floating: dice.one_in(4),
            system: dice.one_in(4),
            tools: dice.one_in(4),
            two_answers: dice.one_in(5),
        }
    }

    /// Fields beside the messages.
    pub fn fields(&self, turn: usize) -> Value {
        let mut fields = json!({});
        if self.tools {
            fields["tools"] = json!([{"type": "function", "function": {
                "name": format!("tool{turn}"), "parameters": {"type": "object", "properties": {}}}}]);
        }
        if self.two_answers {
            fields["n"] = json!(2);
        }
        fields
    }

    pub fn shape(&self, lines: &[Line]) -> Vec<Line> {
        let turn = lines.len();
        let mut sent = lines.to_vec();
        let old = |behind: Option<usize>| turn - behind.unwrap_or(turn).min(turn);
        if let Some((behind, how)) = self.prunes {
            for line in &mut sent[..old(Some(behind))] {
                if line.role() == "tool" {
                    line.value = reworded(&line.value, |words| placeholder(words, how));
                }
            }
        }
        for line in &mut sent[..old(self.drops_pictures)] {
            if let Some(words) = line.value["content"][0]["text"].as_str() {
                line.value["content"] = json!(words);
            }
        }
        if self.reasons {
            for line in &mut sent[old(Some(6))..] {
                if line.role() == "assistant" {
                    line.value["reasoning_content"] = json!("Let me think about that.");
                    if line.value["content"].is_string() {
                        line.value =
                            reworded(&line.value, |words| format!("<think>Hm.</think>\n{words}"));
                    }
                }
            }
        }
        if let Some(behind) = self.drops_rounds {
            sent = without_rounds(&sent, old(Some(behind)));
        }
        if self.clock && sent[0].value["content"].is_string() {
            sent[0].value = reworded(&sent[0].value, |words| {
                format!("It is {turn} past. {words}")
            });
        }
        if self.reminder && sent.last().unwrap().value["content"].is_string() {
            let last = sent.last_mut().unwrap();
            last.value = reworded(&last.value, |words| {
                format!("{words}\n<reminder>Be brief.</reminder>")
            });
        }
        self.slide(&mut sent);
        if self.floating {
            let files = format!("I have *added these files to the chat*: {}", turn / 6);
            let fixed = "Ok, any changes I propose will be to those files.";
            let pair = [message("user", files), message("assistant", fixed)];
            let at = sent.iter().rposition(|line| line.role() == "user");
            let at = at.unwrap_or(0);
            sent.splice(at..at, pair.map(Line::inserted));
        }
        if self.spelling {
            for line in &mut sent {
                line.value = respelled(&line.value, turn);
            }
        }
        if self.ids {
            let values: Vec<Value> = sent.iter().map(|line| line.value.clone()).collect();
            let renumbered = renumbered(&values, &format!("id{turn}_"));
            for (line, value) in sent.iter_mut().zip(renumbered) {
                line.value = value;
            }
        }
        sent
    }

    /// Drops the oldest, whole turns of them.
    fn slide(&self, sent: &mut Vec<Line>) {
        let Some(window) = self.window else { return };
        let least = sent.len().saturating_sub(window);
        let from = (least..sent.len()).find(|at| sent[*at].role() == "user");
        let from = from.unwrap_or(0);
        let first = sent[0].clone();
        sent.drain(..from);
        if from > 0 && self.keeps_first && first.role() == "user" {
            sent.insert(0, first);
        } else if from > 0 && self.notice {
            let notice = message("user", "[Earlier messages were removed to save space.]");
            sent.insert(0, Line::inserted(notice));
        }
    }
}

fn placeholder(words: &str, how: Placeholder) -> String {
    match how {
        Placeholder::Plain => "[Old tool result content cleared]".to_owned(),
        Placeholder::Named => {
            let mark = marks(words).pop_first().unwrap_or_default();
            format!("[cleared] (gone-{mark})")
        }
        Placeholder::Cut => {
            let end = words.floor_char_boundary(20.min(words.len()));
            format!("{}...", &words[..end])
        }
    }
}

/// Without the calls among the first `old` messages whose results are all among them.
fn without_rounds(sent: &[Line], old: usize) -> Vec<Line> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < sent.len() {
        let results = sent[at].value["tool_calls"].as_array().map_or(0, Vec::len);
        if results > 0 && at + results < old {
            at += results + 1;
        } else {
            kept.push(sent[at].clone());
            at += 1;
        }
    }
    kept
}

/// What a client puts in the place of what was summarised, and its system prompt where that holds it.
pub fn summary_head(how: usize, summary: &str, first: &Value) -> (Vec<Value>, Option<String>) {
    let head = match how {
        0 => vec![
            message("user", format!("Summary so far:\n{summary}")),
            message("assistant", "Got it."),
        ],
        1 | 5 => vec![
            message("user", "What did we do so far?"),
            message("assistant", summary),
        ],
        2 => vec![message("assistant", summary)],
        3 => vec![
            first.clone(),
            message("assistant", "Noted."),
            message(
                "user",
                format!("Another model was at work before you and left this:\n{summary}"),
            ),
            message("assistant", "Got it. Thanks for the additional context!"),
        ],
        4 => {
            let system = format!("You are patient.\nSummary: {summary}");
            return (Vec::new(), Some(system));
        }
        _ => vec![message("user", summary), message("assistant", "Ok.")],
    };
    (head, None)
}
