//! What a turn of a conversation is: the user goes on, takes words back, goes back, begins anew; and what becomes
//! of the request.

use std::collections::{BTreeSet, VecDeque};

use serde_json::Value;

use crate::population::conversation::{Branch, Conversation, Line, Pool};
use crate::population::kinds::Kind;
use crate::population::marks::Mark;
use crate::population::request::{Fate, Request};
use crate::population::words::{self, message};
use crate::support::dice::Dice;

/// For how many more messages, at least, a client sends what its user has rewritten.
const TAKEN_BACK_FOR: usize = 6;

/// Messages of which no more than a question and its answer are taken out.
const BEGINNING: usize = 4;

impl Conversation {
    /// Questions that the client still sends as they are, but for the newest message.
    pub fn questions(&self) -> Vec<usize> {
        let from = self.now.summary.as_ref().map_or(0, |summary| summary.from);
        let end = self.now.messages.len().saturating_sub(1);
        let questions = from..end;
        questions
            .filter(|at| {
                let line = &self.now.messages[*at];
                line.is_question() && !line.marks.is_empty()
            })
            .collect()
    }

    /// The user says something else in the place of an earlier question, or nothing, and keeps what follows.
    pub fn takes_back(&mut self, pool: &mut Pool) {
        let mut questions = self.questions();
        if self.kind == Kind::RewritesWindow {
            // What was taken back is seen in several requests before the client leaves it out.
            let lines = &self.now.messages;
            let least = lines.len().saturating_sub(self.window);
            // A client may put a line of its own where it has left something out.
            let first_sent = (least..lines.len()).find(|at| lines[*at].is_question());
            let first_visible = lines.len() + TAKEN_BACK_FOR;
            let first_visible = first_visible.saturating_sub(self.window);
            questions.retain(|at| *at >= first_visible && Some(*at) > first_sent);
        }
        if self.kind == Kind::Removes && !self.now.taken.is_empty() {
            // Whoever takes out its first messages again and again does what a window does that slides.
            questions.retain(|at| *at >= BEGINNING);
        }
        let Some(at) = (!questions.is_empty()).then(|| *pool.dice.pick(&questions)) else {
            return;
        };
        if self.kind == Kind::Removes {
            let answered = self.now.messages[at + 1].role() == "assistant"
                && self.now.messages[at + 1].value["tool_calls"].is_null()
                && at + 2 < self.now.messages.len();
            let count = if answered && pool.dice.one_in(2) {
                2
            } else {
                1
            };
            self.now.rewritten = None;
            let gone: Vec<Line> = self.now.messages.drain(at..at + count).collect();
            for line in gone {
                self.now.taken.extend(line.marks);
            }
            return;
        }
        // Now and then the user wants the first words back.
        let again = self.now.rewritten.take();
        let again = again.filter(|_| self.kind == Kind::Rewrites);
        let (at, line) = match again.filter(|_| pool.dice.one_in(5)) {
            Some((at, line)) => (at, line),
            None => (at, Line::new(message("user", self.own(300)))),
        };
        let old = std::mem::replace(&mut self.now.messages[at], line);
        self.now.taken.extend(old.marks.iter().copied());
        for mark in &self.now.messages[at].marks {
            self.now.taken.remove(mark);
        }
        self.now.rewritten = Some((at, old));
    }

    /// Goes back to a question and asks something else.
    fn branches(&mut self, pool: &mut Pool) {
        let questions = self.questions();
        if questions.is_empty() {
            return self.goes_on(pool);
        }
        let at = *pool.dice.pick(&questions);
        self.left = Some(self.now.clone());
        self.now.messages.truncate(at);
        self.now.rewritten = None;
        let question = self.own(300);
        self.push(message("user", question));
    }

    /// The user begins anew under the same name, and keeps what canned messages stand at the end.
    fn begins_anew(&mut self, pool: &mut Pool) {
        pool.conversations += 1;
        self.id = pool.conversations;
        let mut kept = Vec::new();
        if pool.dice.one_in(2) {
            let pending = std::mem::take(&mut self.now.pending);
            if !pending.is_null() {
                self.push(pending);
            }
            let newest_first = self.now.messages.iter().rev();
            let canned = newest_first.take_while(|line| {
                let plain = line.value["tool_calls"].is_null() && line.role() != "tool";
                line.marks.is_empty() && plain
            });
            kept = canned.take(6).cloned().collect();
            kept.reverse();
        }
        self.now = Branch {
            messages: kept,
            pending: Value::Null,
            summary: None,
            taken: BTreeSet::new(),
            rewritten: None,
        };
        (self.left, self.ahead) = (None, VecDeque::new());
        if self.system.as_ref().is_some_and(|s| s.contains("fact-")) {
            self.system = Some(words::system(0));
        }
        self.ask(pool);
    }

    /// One turn: what is sent, in order.
    pub fn turn(&mut self, pool: &mut Pool) -> Vec<Request> {
        self.turn += 1;
        self.turns = self.turns.saturating_sub(1);
        // The last answer of a conversation is in no recorded message: another process does not know who got it.
        let moves = self.moves && self.kind != Kind::EqualAnswers;
        if moves && pool.dice.one_in(4) {
            self.process = pool.dice.below(pool.processes);
        }
        let often = self.turn > 3 && pool.dice.chance(20);
        match self.habit {
            kind if kind.edits() && often => {
                self.goes_on(pool);
                self.takes_back(pool);
            }
            // The same is asked again; the answer that came is forgotten.
            Kind::Regenerates if often => {}
            Kind::Branches if often && pool.dice.one_in(3) && self.left.is_some() => {
                let left = self.left.take().unwrap();
                self.left = Some(std::mem::replace(&mut self.now, left));
                self.goes_on(pool);
            }
            Kind::Branches if often => self.branches(pool),
            Kind::Restart if self.turn > 6 && pool.dice.one_in(6) => self.begins_anew(pool),
            kind if kind.summarises() && self.is_full() => return self.summarise(pool),
            _ => self.goes_on(pool),
        }
        self.reply(pool);
        self.sends(pool)
    }

    /// The request as it goes out now, and what follows from how it ends.
    pub fn sends(&mut self, pool: &mut Pool) -> Vec<Request> {
        let mut request = self.request(pool);
        let dice = &mut pool.dice;
        // A process that ends forgets what it was asked to forget: a cached call that was answered then, and
        // nothing else, would be somebody else's.
        let may_go_unseen = !request.reply["tool_calls"].is_array();
        let troubled = may_go_unseen && dice.chance(self.troubles);
        match self.kind {
            Kind::OffOrRead if dice.chance(40) && may_go_unseen => {
                without_memory(&mut request, dice);
            }
            Kind::Refused if dice.chance(35) => request.fate = fails(dice),
            Kind::HungUp if dice.chance(35) => request.fate = leaves(dice),
            _ if troubled => match dice.below(3) {
                0 => without_memory(&mut request, dice),
                1 => request.fate = fails(dice),
                _ => request.fate = leaves(dice),
            },
            _ => {}
        }
        self.settles(&request, pool);
        vec![request]
    }

    /// What the client goes on from once the request has ended so.
    pub fn settles(&mut self, request: &Request, pool: &mut Pool) {
        let recorded = request.fate == Fate::Answered && request.memory() == "on";
        self.moves = recorded && request.rests;
        if request.fate == Fate::Answered {
            return;
        }
        // It asks again, or has an answer from elsewhere.
        if request.reply["tool_calls"].is_array() || pool.dice.one_in(2) {
            self.elsewhere = true;
            self.reply(pool);
            self.elsewhere = false;
        }
    }

    pub fn may_be_unseen(&self) -> bool {
        let kinds = [Kind::Import, Kind::OffOrRead, Kind::Refused, Kind::HungUp];
        kinds.contains(&self.kind) || self.kind.is_scene() || self.troubles > 0
    }

    pub fn request(&mut self, pool: &mut Pool) -> Request {
        let own_marks = self.now.messages.iter().flat_map(|line| &line.marks);
        let summary = self.now.summary.iter().flat_map(|summary| &summary.marks);
        let mut may: BTreeSet<Mark> = own_marks.chain(summary).copied().collect();
        may.extend(self.document_marks());
        Request {
            kind: self.kind,
            tenant: self.tenant,
            headers: self.headers.clone(),
            messages: self.shaped(),
            reply: self.now.pending.clone(),
            stream: pool.dice.one_in(5),
            rests: !pool.dice.one_in(4),
            process: self.process,
            may,
            taken: self.now.taken.clone(),
            ..Request::nothing(self.user, self.id)
        }
    }
}

fn fails(dice: &mut Dice) -> Fate {
    Fate::Fails(*dice.pick(&[429, 500, 503]))
}

fn leaves(dice: &mut Dice) -> Fate {
    *dice.pick(&[Fate::HungUp, Fate::CutOff])
}

fn without_memory(request: &mut Request, dice: &mut Dice) {
    let mode = *dice.pick(&["off", "read"]);
    request.headers.push(("x-diarist-memory", mode.to_owned()));
}
