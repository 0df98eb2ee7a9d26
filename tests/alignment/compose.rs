//! Clients that do everything at once, as data: what they send, in which order, and what each message
//! is. They append, repeat, edit, branch and come back, prune, slide, renumber, respell, compact and
//! begin anew, over conversations whose short messages repeat and whose openings are alike; others say
//! the same under another key; processes end in between. A seed decides.
//!
//! Played by `random` through the whole proxy and by `proven` against the decisions alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::alignment::client_habits::{ClientHabits, summary_head};
use crate::alignment::harness::{marks, text, user};
use crate::alignment::script::message;
use crate::support::dice::Dice;

/// Which saying a message is, whatever became of its words since: the same words behind the same saying
/// are the same one, the same words elsewhere are another.
pub type Origin = u64;

/// A message as it is sent.
#[derive(Clone, Debug)]
pub struct Line {
    pub value: Value,
    /// `None` for what a program puts in.
    pub origin: Option<Origin>,
}

impl Line {
    /// What no person and no model said.
    pub fn inserted(value: Value) -> Self {
        Self {
            value,
            origin: None,
        }
    }

    fn behind(before: Option<&Self>, value: Value) -> Self {
        let before = before.and_then(|line| line.origin).unwrap_or_default();
        let hash = blake3::hash(format!("{before} {value}").as_bytes());
        let origin = u64::from_be_bytes(hash.as_bytes()[..8].try_into().unwrap());
        Self {
            value,
            origin: Some(origin),
        }
    }

    pub fn role(&self) -> &str {
        self.value["role"].as_str().unwrap()
    }

    /// A person's own words, which they may edit.
    fn is_question(&self) -> bool {
        self.role() == "user"
    }
}

/// One request, and what the model says to it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Which key it comes with, and which conversation it is of.
    pub tenant: usize,
    pub conversation: String,
    pub lines: Vec<Line>,
    pub system: String,
    pub fields: Value,
    pub reply: Value,
    /// The origin of that answer, if the client brings it back.
    pub gives: Option<Origin>,
    /// How often it is sent at one moment.
    pub times: usize,
    /// What was said on this branch of this conversation, what was edited away with it.
    pub allowed: BTreeSet<Origin>,
    /// The same by the marks of the texts.
    pub may_tell: BTreeSet<String>,
}

impl Ask {
    pub fn messages(&self) -> Vec<Value> {
        self.lines.iter().map(|line| line.value.clone()).collect()
    }
}

/// What happens next.
#[derive(Clone, Debug)]
pub enum Op {
    /// Another process goes on.
    Restart,
    Ask(Box<Ask>),
    /// One that was sent before comes again: its number.
    Again(usize),
}

/// A conversation as its user sees it.
#[derive(Clone, Debug)]
struct Conversation {
    name: String,
    messages: Vec<Line>,
    /// What was answered last; the client may go on from it.
    pending: Value,
    /// What was edited away: where it stood.
    replaced: Vec<(usize, Line)>,
    /// From where on the messages are sent behind a summary.
    summary: Option<(usize, Vec<Value>, Option<String>)>,
}

impl Conversation {
    fn push(&mut self, value: Value) {
        let line = Line::behind(self.messages.last(), value);
        self.messages.push(line);
    }

    fn all(&self) -> impl Iterator<Item = &Line> {
        let replaced = self.replaced.iter().map(|(_, line)| line);
        self.messages.iter().chain(replaced)
    }

    fn sent(&self) -> Vec<Line> {
        match &self.summary {
            None => self.messages.clone(),
            Some((from, head, _)) => {
                let head = head.iter().map(|head| {
                    let kept = Some(&self.messages[0]).filter(|first| first.value == *head);
                    kept.cloned()
                        .unwrap_or_else(|| Line::inserted(head.clone()))
                });
                head.chain(self.messages[*from..].iter().cloned()).collect()
            }
        }
    }

    fn begins(&self) -> usize {
        self.summary.as_ref().map_or(0, |(from, ..)| *from)
    }

    /// Questions behind what was summarised, but for the first and the newest message.
    fn questions(&self) -> Vec<usize> {
        let end = self.messages.len().saturating_sub(1);
        let questions = (self.begins() + 1..end).filter(|at| self.messages[*at].is_question());
        questions.collect()
    }

    /// Goes back to before `at`.
    fn back_to(&mut self, at: usize) {
        self.messages.truncate(at);
        self.replaced.retain(|(place, _)| *place < at);
    }

    fn replace(&mut self, at: usize, value: Value) {
        let before = at.checked_sub(1).map(|before| &self.messages[before]);
        let line = Line::behind(before, value);
        let old = std::mem::replace(&mut self.messages[at], line);
        self.replaced.push((at, old));
    }
}

/// What a seed makes of two conversations.
#[derive(Clone, Debug)]
pub struct Composer {
    dice: Dice,
    /// No two texts of a case bear the same number, but for what is said again.
    number: usize,
    conversations: [Conversation; 2],
    /// A branch of each that was left.
    left: [Option<Conversation>; 2],
    /// What somebody else said of each under another key.
    others: [(BTreeSet<Origin>, BTreeSet<String>); 2],
    habits: ClientHabits,
    /// Servers that number their calls begin anew with each conversation.
    numbered: bool,
    template: bool,
    request_count: usize,
    /// What was said of each kind.
    pub kinds: BTreeMap<&'static str, usize>,
}

impl Composer {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let empty = |name: &str| Conversation {
            name: name.to_owned(),
            messages: Vec::new(),
            pending: Value::Null,
            replaced: Vec::new(),
            summary: None,
        };
        let (numbered, template) = (dice.one_in(4), dice.one_in(2));
        let mut composer = Self {
            dice,
            number: 0,
            conversations: [empty("one"), empty("two")],
            left: [None, None],
            others: Default::default(),
            habits: ClientHabits::default(),
            numbered,
            template,
            request_count: 0,
            kinds: BTreeMap::new(),
        };
        for which in 0..2 {
            composer.begin(which);
        }
        composer
    }

    fn count(&mut self) -> usize {
        self.number += 1;
        self.number
    }

    fn kind(&mut self, kind: &'static str) {
        *self.kinds.entry(kind).or_default() += 1;
    }

    /// A conversation from its first message on, now and then one that was long before.
    fn begin(&mut self, which: usize) {
        let conversation = &mut self.conversations[which];
        (
            conversation.messages,
            conversation.replaced,
            conversation.summary,
        ) = (Vec::new(), Vec::new(), None);
        if self.template {
            for message in crate::alignment::harness::conversation("template", 6) {
                conversation.push(message);
            }
        }
        (self.left[which], self.others[which]) = (None, Default::default());
        let turns = match self.dice.below(6) {
            0 => 30,
            1 => 0,
            _ => self.dice.below(10),
        };
        self.ask(which);
        for _ in 0..turns {
            self.reply(which);
            self.goes_on(which);
        }
        self.reply(which);
    }

    /// The user says something.
    fn ask(&mut self, which: usize) {
        let number = self.count();
        let kind = self.dice.below(12);
        let conversation = &mut self.conversations[which];
        conversation.push(match kind {
            0 | 1 => message("user", "go on"),
            2 => message("user", "yes"),
            // The same long question as ever in this conversation.
            3 => user(&again(&conversation.name), 1),
            4 => json!({"role": "user", "content": [
                {"type": "text", "text": text(&conversation.name, number)},
                {"type": "image_url", "image_url": {"url": format!("https://pictures.example/{number}.png")}}]}),
            _ => user(&conversation.name, number),
        });
    }

    /// The model says something; it is not said before the client brings it back.
    fn reply(&mut self, which: usize) {
        let number = self.count();
        let kind = self.dice.below(14);
        let width = 1 + self.dice.below(3);
        let drawn = self.dice.next();
        let conversation = &mut self.conversations[which];
        let again = again(&conversation.name);
        let is_asked_again =
            conversation.messages.last().map(|line| &line.value) == Some(&user(&again, 1));
        conversation.pending = match kind {
            _ if is_asked_again => message("assistant", text(&again, 2)),
            0 => message("assistant", "Ok."),
            1 => message("assistant", format!("No, {number}.")),
            2 => message("assistant", GOODBYE),
            3 => message("assistant", "Got it. Shall I go on with the next of them?"),
            4..=7 => {
                let calls = (0..width).map(|at| {
                    let id = if self.numbered {
                        let before = conversation
                            .messages
                            .iter()
                            .filter(|line| line.role() == "tool");
                        format!("call_{}", before.count() + at)
                    } else {
                        format!("call_{drawn:016x}{at}")
                    };
                    let path = format!("{{\"path\":\"{number}/{at}\"}}");
                    json!({"id": id, "type": "function",
                           "function": {"name": "read", "arguments": path}})
                });
                let calls: Vec<Value> = calls.collect();
                json!({"role": "assistant", "content": null, "tool_calls": calls})
            }
            _ => message("assistant", text(&conversation.name, number)),
        };
    }

    /// The client brings the answer back: with the results it asked for, or with the next question.
    fn goes_on(&mut self, which: usize) {
        let pending = self.conversations[which].pending.clone();
        self.conversations[which].push(pending.clone());
        match pending["tool_calls"].as_array() {
            None => self.ask(which),
            Some(calls) => {
                for call in calls {
                    let number = self.count();
                    let conversation = &mut self.conversations[which];
                    let result = text(&conversation.name, number);
                    conversation.push(
                        json!({"role": "tool", "tool_call_id": call["id"], "content": result}),
                    );
                }
            }
        }
    }

    /// Until the user may speak.
    fn finish(&mut self, which: usize, ops: &mut Vec<Op>) {
        if !self.conversations[which].pending["tool_calls"].is_array() {
            return;
        }
        self.goes_on(which);
        let (number, conversation) = (self.count(), &mut self.conversations[which]);
        conversation.pending = message("assistant", text(&conversation.name, number));
        ops.push(self.request(which));
    }

    /// The request as it goes out now.
    fn request(&mut self, which: usize) -> Op {
        let conversation = &self.conversations[which];
        let lines = self.habits.shape(&conversation.sent());
        let system = match &conversation.summary {
            Some((_, _, Some(system))) => system.clone(),
            _ if self.habits.system => format!("You are patient. It is {} past.", lines.len()),
            _ => "You are a patient assistant.".to_owned(),
        };
        let may_tell = conversation
            .all()
            .flat_map(|line| marks(&line.value.to_string()));
        let ask = Ask {
            tenant: 0,
            conversation: conversation.name.clone(),
            fields: self.habits.fields(lines.len()),
            lines,
            system,
            reply: conversation.pending.clone(),
            gives: Line::behind(conversation.messages.last(), conversation.pending.clone()).origin,
            times: 1,
            allowed: conversation.all().filter_map(|line| line.origin).collect(),
            may_tell: may_tell.collect(),
        };
        self.request_count += 1;
        Op::Ask(Box::new(ask))
    }

    fn next_request(&mut self, which: usize) -> Op {
        self.reply(which);
        self.request(which)
    }

    /// One step: what happens, in order.
    pub fn step(&mut self) -> Vec<Op> {
        let which = usize::from(self.dice.one_in(4));
        let mut ops = Vec::new();
        match self.dice.below(32) {
            0 | 1 => {
                self.kind("restart");
                ops.push(Op::Restart);
            }
            2 | 3 => self.habits = ClientHabits::random(&mut self.dice),
            4 => self.habits = ClientHabits::default(),
            5 => self.edit(which),
            6 => self.branch(which),
            7 => self.swap(which),
            8 | 9 => return self.summarise(which),
            10..=13 => {
                self.kind("again, out of order");
                for _ in 0..=self.dice.below(3) {
                    let at = self.dice.below(self.request_count);
                    ops.extend((self.request_count > 0).then_some(Op::Again(at)));
                }
                return ops;
            }
            14 => self.edit_newest(which),
            15 => self.regenerate(which),
            16 => {
                self.kind("at once");
                self.goes_on(which);
                let mut asks = self.next_request(which);
                if let Op::Ask(ask) = &mut asks {
                    ask.times = 3;
                }
                return vec![asks];
            }
            17 => {
                self.kind("begins anew");
                let number = self.count();
                self.conversations[which].name = format!("new{number}x");
                self.begin(which);
            }
            18 => return vec![self.request_as_other_tenant(which)],
            _ => {
                self.kind("goes on");
                self.goes_on(which);
            }
        }
        ops.push(self.next_request(which));
        ops
    }

    fn edit(&mut self, which: usize) {
        let questions = self.conversations[which].questions();
        if questions.is_empty() {
            return self.goes_on(which);
        }
        self.kind("edits early");
        let (at, number) = (self.dice.below(questions.len()), self.count());
        let conversation = &mut self.conversations[which];
        let words = user(&conversation.name, number);
        conversation.replace(questions[at], words);
    }

    /// Goes back to a question and asks something else.
    fn branch(&mut self, which: usize) {
        let questions = self.conversations[which].questions();
        if questions.is_empty() {
            return self.goes_on(which);
        }
        self.kind("branches");
        let (at, number) = (self.dice.below(questions.len()), self.count());
        self.left[which] = Some(self.conversations[which].clone());
        let conversation = &mut self.conversations[which];
        conversation.back_to(questions[at]);
        let words = user(&conversation.name, number);
        conversation.push(words);
    }

    fn swap(&mut self, which: usize) {
        if let Some(left) = self.left[which].take() {
            self.kind("comes back");
            self.left[which] = Some(std::mem::replace(&mut self.conversations[which], left));
        }
        self.goes_on(which);
    }

    fn edit_newest(&mut self, which: usize) {
        let number = self.count();
        let conversation = &mut self.conversations[which];
        let last = conversation.messages.len() - 1;
        if conversation.messages[last].is_question() {
            let words = user(&conversation.name, number);
            conversation.back_to(last);
            conversation.push(words);
            self.kind("edits the newest");
        } else {
            self.goes_on(which);
        }
    }

    /// The last answer, given again.
    fn regenerate(&mut self, which: usize) {
        let conversation = &mut self.conversations[which];
        let end = conversation.messages.len().saturating_sub(2);
        let answer = end > conversation.begins() + 1
            && conversation.messages[end].role() == "assistant"
            && conversation.messages[end + 1].is_question();
        if answer {
            conversation.back_to(end);
            self.kind("regenerates");
            self.reply(which);
        }
        self.goes_on(which);
    }

    /// Somebody else says the same, word for word, and has nothing to do with it.
    fn request_as_other_tenant(&mut self, which: usize) -> Op {
        self.kind("another key");
        let op = self.request(which);
        let Op::Ask(mut ask) = op else {
            return op;
        };
        let (origins, may_tell) = &mut self.others[which];
        origins.extend(ask.lines.iter().filter_map(|line| line.origin));
        may_tell.extend(
            ask.lines
                .iter()
                .flat_map(|line| marks(&line.value.to_string())),
        );
        (ask.allowed, ask.may_tell) = (origins.clone(), may_tell.clone());
        ask.tenant = 1;
        Op::Ask(ask)
    }

    /// Asks for a summary, and goes on behind it as one of the real clients does.
    fn summarise(&mut self, which: usize) -> Vec<Op> {
        self.kind("compacts");
        let mut ops = Vec::new();
        self.finish(which, &mut ops);
        let how = self.dice.below(7);
        // opencode compacts on an answer that stood in no request.
        let on_a_call = how == 5;
        if on_a_call {
            self.goes_on(which);
            let drawn = self.dice.next();
            let call = json!({"id": format!("call_{drawn:016x}"), "type": "function",
                              "function": {"name": "read", "arguments": "{\"path\":\"it\"}"}});
            self.conversations[which].pending =
                json!({"role": "assistant", "content": null, "tool_calls": [call]});
            ops.push(self.request(which));
        }
        let kept = self.conversations[which].messages.len();
        if on_a_call {
            self.goes_on(which);
        } else {
            let pending = self.conversations[which].pending.clone();
            self.conversations[which].push(pending);
        }
        let number = self.count();
        let mut lines = self.habits.shape(&self.conversations[which].sent());
        let words = format!("Summarise the conversation so far, number {number}.");
        lines.push(Line::inserted(message("user", words)));
        let flat = on_a_call || how == 6;
        if flat {
            let words: Vec<String> = lines.iter().map(|line| line.value.to_string()).collect();
            let words = format!("Summarise this:\n{}", words.join("\n"));
            lines = vec![Line::inserted(message("user", words))];
        }
        let each = "The user asked for something, and it was done as was asked. ".repeat(5);
        let summary = format!("Summary {number}. {}", each.trim());
        let Op::Ask(mut side) = self.request(which) else {
            return ops;
        };
        side.lines = lines;
        side.reply = message("assistant", summary.clone());
        side.gives = None;
        ops.push(Op::Ask(side));
        let tail = self.dice.below(8);
        let conversation = &mut self.conversations[which];
        let (head, system) = summary_head(how, &summary, &conversation.messages[0].value);
        // From a question on, or nothing is kept.
        let least = conversation.messages.len().saturating_sub(tail).max(1);
        let from = (least..conversation.messages.len())
            .find(|at| conversation.messages[*at].is_question());
        let from = if on_a_call {
            kept
        } else {
            from.unwrap_or(conversation.messages.len())
        };
        // The summary tells of all that, wherever its user goes back to.
        let summarised: Vec<(usize, Line)> = conversation
            .messages
            .iter()
            .map(|line| (0, line.clone()))
            .collect();
        conversation.replaced.extend(summarised);
        conversation.summary = Some((from, head, system));
        let number = self.count();
        let conversation = &mut self.conversations[which];
        let words = user(&conversation.name, number);
        conversation.push(words);
        ops.push(self.next_request(which));
        ops
    }
}

/// What the model says to everybody in the end.
const GOODBYE: &str =
    "You are welcome! Should there be any more questions, just come back to me at any time.";

fn again(name: &str) -> String {
    format!("{name}-again")
}
