//! What a client sends of its conversation: it drops, prunes, puts in front and puts in between.

use serde_json::{Value, json};

use crate::population::conversation::{Conversation, Line, Summary};
use crate::population::kinds::Kind;
use crate::population::marks::Mark;
use crate::population::request::Request;
use crate::population::words::{self, message, reworded, text};
use crate::support::dice::Dice;

/// Bytes of a conversation at which its client summarises it.
const FULL: usize = 7_000;

/// Marks of retrieved text have numbers from here on. No later request may hold them.
const RETRIEVED: usize = 10_000;

/// Results younger than this many messages are not pruned.
const YOUNG: usize = 6;

impl Conversation {
    /// The messages as they are sent.
    pub fn shaped(&self) -> Vec<Value> {
        let summary = self.now.summary.as_ref();
        let from = summary.map_or(self.skips, |summary| summary.from);
        let mut sent: Vec<Value> = summary.map_or_else(Vec::new, |summary| summary.head.clone());
        sent.extend(self.with_documents(from));
        match self.habit {
            Kind::Window | Kind::WindowKeepsFirst | Kind::WindowNotice | Kind::RewritesWindow => {
                self.slide(&mut sent);
            }
            Kind::WindowAdding => {
                self.slide(&mut sent);
                self.insert_additions(&mut sent);
            }
            Kind::EqualAnswers if self.turn > self.window => {
                sent.drain(..self.window & !1);
            }
            Kind::Pruned => prune(&mut sent, self.id.is_multiple_of(2)),
            Kind::DroppedRounds => sent = without_rounds(&sent),
            Kind::Floating => {
                let files = format!("I have *added these files to the chat*: {}", self.turn / 5);
                let fixed = "Ok, any changes I propose will be to those files.";
                let at = sent.iter().rposition(|m| m["role"] == "user").unwrap_or(0);
                sent.splice(
                    at..at,
                    [message("user", files), message("assistant", fixed)],
                );
            }
            Kind::Clock => {
                let words = format!("It is {} past. {}", self.turn, text(&sent[0]));
                sent[0] = reworded(&sent[0], words);
            }
            Kind::Reminder => {
                let last = sent.last_mut().unwrap();
                let words = format!("{}\n<reminder>Be brief.</reminder>", text(last));
                *last = reworded(last, words);
            }
            _ => {}
        }
        let system = summary.and_then(|summary| summary.system.as_ref());
        if let Some(system) = system.or(self.system.as_ref()) {
            sent.insert(0, message("system", system.as_str()));
        }
        sent
    }

    /// Drops the oldest, whole turns of them.
    fn slide(&self, sent: &mut Vec<Value>) {
        let least = sent.len().saturating_sub(self.window);
        let from = (least..sent.len()).find(|at| sent[*at]["role"] == "user");
        let from = from.unwrap_or(0);
        if from == 0 {
            return;
        }
        let first = sent[0].clone();
        sent.drain(..from);
        match self.habit {
            Kind::WindowKeepsFirst if first["role"] == "user" => sent.insert(0, first),
            Kind::WindowNotice => {
                let notice = "[Earlier messages were removed to save space.]";
                sent.insert(0, message("user", notice));
            }
            _ => {}
        }
    }

    /// Inserts what only this request has: a retrieved text, which is the user's own or the same for everybody; perhaps a reminder.
    fn insert_additions(&self, sent: &mut Vec<Value>) {
        let retrieved = match self.id % 4 {
            0 => {
                let mark = Mark {
                    user: self.user,
                    conversation: self.id,
                    number: RETRIEVED + self.turn,
                };
                words::own(mark, 200)
            }
            topic => words::canned(800_000 + topic),
        };
        let role = ["system", "user"][self.id % 2];
        let newest = sent.len() - 1;
        // Results stand right behind their calls.
        let may_stand_in_front = sent[newest]["role"] == "user";
        let at = if may_stand_in_front && !self.id.is_multiple_of(3) {
            newest
        } else {
            newest + 1
        };
        sent.insert(at, message(role, retrieved));
        if self.id.is_multiple_of(5) {
            sent.push(message("system", "Be brief."));
        }
    }

    /// Whether the client summarises before it goes on.
    pub fn is_full(&self) -> bool {
        let sent: usize = self.shaped().iter().map(|m| text(m).len()).sum();
        sent > FULL && self.now.pending["content"].is_string()
    }

    /// Asks for a summary beside the conversation, and goes on behind it.
    pub fn summarise(&mut self, pool: &mut crate::population::conversation::Pool) -> Vec<Request> {
        let pending = std::mem::take(&mut self.now.pending);
        self.push(pending);
        let asks = "Summarise our conversation so far, so that somebody else can go on with it.";
        let mark = self.mark();
        let summary = if self.habit == Kind::SummaryCanned {
            crate::population::words::canned(700_000 + pool.dice.below(3))
        } else {
            let each = "The user asked for something, and it was done as was asked. ";
            format!("Summary {mark}. {}", each.repeat(5).trim())
        };
        let goes_on = self.now.pending.clone();
        self.now.pending = message("assistant", summary.as_str());
        let mut side = self.request(pool);
        if pool.dice.one_in(3) {
            // The words of the conversation in one message.
            let words: Vec<String> = side.messages.iter().map(ToString::to_string).collect();
            let all = format!("{asks}\n{}", words.join("\n"));
            side.messages = vec![message("user", all)];
        } else {
            side.messages.push(message("user", asks));
        }
        self.settles(&side, pool);
        self.now.pending = goes_on;
        // From a question on, or nothing is kept.
        let length = self.now.messages.len();
        let least = length - pool.dice.below(7).min(length - 1);
        let from = (least..length).find(|at| self.now.messages[*at].role() == "user");
        let from = from
            .filter(|_| self.habit != Kind::SceneBehind)
            .unwrap_or(length);
        let marks = self
            .now
            .summary
            .take()
            .map_or_else(Default::default, |s| s.marks);
        let (head, system) = self.head(&summary, from, &mut pool.dice);
        let mut summary = Summary {
            from,
            head,
            system,
            marks,
        };
        summary.marks.insert(mark);
        self.now.summary = Some(summary);
        self.goes_on(pool);
        self.reply(pool);
        let mut all = vec![side];
        all.extend(self.sends(pool));
        all
    }

    fn head(&self, summary: &str, from: usize, dice: &mut Dice) -> (Vec<Value>, Option<String>) {
        let kind = match self.habit {
            Kind::SummaryCanned => *dice.pick(&[
                Kind::SummaryUser,
                Kind::SummaryAssistant,
                Kind::SummaryAsked,
                Kind::SummarySystem,
            ]),
            kind => kind,
        };
        let handed = format!("Another model was at work before you and left this:\n{summary}");
        let head = match kind {
            Kind::SummaryUser => {
                let words = format!("This is what was said before:\n{summary}\nGo on from there.");
                vec![message("user", words), message("assistant", "Got it.")]
            }
            Kind::SummaryAsked => vec![
                message("user", "What did we do so far?"),
                message("assistant", summary),
            ],
            Kind::SummaryAssistant => vec![message("assistant", summary)],
            Kind::SummaryBehindUsers => {
                let lines: &[Line] = &self.now.messages[..from];
                let users = lines.iter().filter(|line| line.role() == "user");
                let mut head: Vec<Value> = users.map(|line| line.value.clone()).collect();
                head.push(message("user", handed));
                head
            }
            // A message of its own behind the system message.
            Kind::SceneBehind => vec![message("system", summary)],
            _ => {
                let system = self.system.as_deref().unwrap_or("You are patient.");
                return (Vec::new(), Some(format!("{system}\nSummary: {summary}")));
            }
        };
        (head, None)
    }
}

/// Old results are replaced by a note, or cut.
fn prune(sent: &mut [Value], cuts: bool) {
    let old = sent.len().saturating_sub(YOUNG);
    for message in &mut sent[..old] {
        if message["role"] == "tool" {
            let words = if cuts {
                format!("{}...", text(message).get(..20).unwrap_or("done"))
            } else {
                "[Old tool result content cleared]".to_owned()
            };
            message["content"] = json!(words);
        }
    }
}

/// Without old calls and their results.
fn without_rounds(sent: &[Value]) -> Vec<Value> {
    let old = sent.len().saturating_sub(YOUNG + 4);
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < sent.len() {
        let results = sent[at]["tool_calls"].as_array().map_or(0, Vec::len);
        if results > 0 && at + results < old {
            at += results + 1;
        } else {
            kept.push(sent[at].clone());
            at += 1;
        }
    }
    kept
}
