//! One conversation as its user sees it, and what happens to it turn by turn. Everything is decided before
//! anything is sent, the answers as well: what a run plays follows from its seed, whatever comes of it.

use std::collections::{BTreeSet, VecDeque};

use serde_json::Value;

use crate::dice::Dice;
use crate::kinds::{Kind, Naming};
use crate::marks::{Mark, found};
use crate::words::{self, said};

/// How many messages later a client leaves out what its user has rewritten, at least.
const SEEN: usize = 6;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// The provider fails with this status.
    Fails(u16),
    /// The client leaves in the middle of the answer.
    HungUp,
    /// The provider breaks the answer off.
    CutOff,
}

/// One request, and what is true of it.
#[derive(Clone, Debug)]
pub struct Request {
    pub user: usize,
    pub talk: usize,
    pub kind: Kind,
    pub tenant: usize,
    pub headers: Vec<(&'static str, String)>,
    pub messages: Vec<Value>,
    pub reply: Value,
    pub fate: Fate,
    pub stream: bool,
    /// Whether the client waits until memory has nothing left to do.
    pub rests: bool,
    /// Which of the processes it goes to.
    pub process: usize,
    /// What was said on this branch of this conversation.
    pub may: BTreeSet<Mark>,
    /// What its user said and took back.
    pub taken: BTreeSet<Mark>,
}

impl Request {
    pub fn memory(&self) -> &str {
        let mut headers = self.headers.iter();
        headers
            .find(|(name, _)| *name == "x-diarist-memory")
            .map_or("on", |(_, mode)| mode)
    }
}

/// A message, and the marks in it.
#[derive(Clone, Debug)]
pub struct Line {
    pub value: Value,
    pub marks: BTreeSet<Mark>,
}

impl Line {
    pub fn of(value: Value) -> Self {
        let marks = found(value.to_string().as_bytes());
        Self { value, marks }
    }

    pub fn role(&self) -> &str {
        self.value["role"].as_str().unwrap()
    }

    fn is_question(&self) -> bool {
        self.role() == "user"
    }
}

/// What stands in the place of what was summarised.
#[derive(Clone, Debug)]
pub struct Summary {
    /// From where on messages are sent as they are.
    pub from: usize,
    pub head: Vec<Value>,
    pub system: Option<String>,
    pub marks: BTreeSet<Mark>,
}

/// A branch as it is left and found again.
#[derive(Clone, Debug)]
pub struct Branch {
    pub said: Vec<Line>,
    pub pending: Value,
    pub summary: Option<Summary>,
    pub taken: BTreeSet<Mark>,
    /// What was rewritten last: where, and what it was.
    rewritten: Option<(usize, Line)>,
}

/// What all conversations of a world draw from.
#[derive(Debug)]
pub struct Pool {
    pub dice: Dice,
    pub users: usize,
    pub talks: usize,
    pub processes: usize,
    /// The next canned text that nobody was told yet.
    pub fresh: usize,
}

impl Pool {
    pub fn fresh(&mut self) -> usize {
        self.fresh += 1;
        self.fresh
    }

    /// A text that is told to many, or only now and then.
    fn canned(&mut self) -> Value {
        let number = match self.dice.below(3) {
            0 => self.dice.below(6),
            1 => 50 + self.dice.below(60),
            _ => 1_000 + self.dice.below(20),
        };
        let text = match number {
            1_000.. => words::short_canned(number),
            _ => words::canned(number),
        };
        said("assistant", text)
    }
}

/// A conversation.
#[derive(Clone, Debug)]
pub struct Talk {
    pub user: usize,
    pub id: usize,
    pub tenant: usize,
    pub kind: Kind,
    pub naming: Naming,
    pub headers: Vec<(&'static str, String)>,
    pub system: Option<String>,
    pub now: Branch,
    left: Option<Branch>,
    numbers: usize,
    /// Turns that are still to come.
    pub turns: usize,
    /// Turns that were.
    pub turn: usize,
    /// Questions and answers that come next.
    pub ahead: VecDeque<(Value, Value)>,
    /// How many answers in a hundred are canned.
    canned: usize,
    /// How many answers in a hundred call tools.
    tools: usize,
    /// Servers that number their calls begin anew with each conversation.
    numbered: bool,
    /// How many messages the client keeps, where it keeps not all.
    pub window: usize,
    /// How many of the first messages a scene leaves out.
    pub skips: usize,
    pub process: usize,
    /// Whether the next request may go to another process.
    moves: bool,
    /// How many of its requests in a hundred fail, are cut off, or have no memory.
    troubles: usize,
    /// Whether what is answered now comes from somewhere else. No cache answers there: whoever has the
    /// drawn id of somebody's call and nothing of his own around it can be told from nobody.
    elsewhere: bool,
}

impl Talk {
    pub fn begin(pool: &mut Pool, kind: Kind) -> Self {
        pool.users += 1;
        // Some users come again.
        let user = match pool.dice.one_in(6) {
            true => 1 + pool.dice.below(pool.users),
            false => pool.users,
        };
        pool.talks += 1;
        let (id, dice) = (pool.talks, &mut pool.dice);
        let naming = Naming::drawn(dice);
        let (canned, tools) = match kind {
            Kind::Bot | Kind::Form => (70, 0),
            Kind::Pruned | Kind::DroppedRounds => (10, 60),
            Kind::Import | Kind::Window | Kind::Refused => (35, 15),
            _ => (*dice.pick(&[0, 10, 40]), *dice.pick(&[0, 0, 30])),
        };
        let mut talk = Self {
            user,
            id,
            tenant: usize::from(user.is_multiple_of(11)),
            kind,
            naming,
            headers: naming.headers(user, id),
            system: (!dice.one_in(8)).then(|| words::system(dice.below(3))),
            now: Branch {
                said: Vec::new(),
                pending: Value::Null,
                summary: None,
                taken: BTreeSet::new(),
                rewritten: None,
            },
            left: None,
            numbers: 0,
            turns: dice.between(8, 28),
            turn: 0,
            ahead: VecDeque::new(),
            canned,
            tools,
            numbered: dice.one_in(6),
            window: dice.between(12, 30),
            skips: 0,
            process: dice.below(pool.processes),
            moves: false,
            troubles: if kind.keeps_its_beginning() && dice.one_in(6) {
                20
            } else {
                0
            },
            elsewhere: false,
        };
        if dice.one_in(6) {
            let about = talk.own(90);
            talk.system = talk.system.map(|system| format!("{system} {about}"));
        }
        talk.open(pool);
        talk
    }

    fn open(&mut self, pool: &mut Pool) {
        match self.kind {
            Kind::Examples => {
                let number = pool.dice.below(2);
                words::examples(number)
                    .into_iter()
                    .for_each(|m| self.push(m));
            }
            Kind::Template => {
                let number = pool.dice.below(3);
                words::template(number)
                    .into_iter()
                    .for_each(|m| self.push(m));
            }
            Kind::Import => self.grow(pool, 3, 9),
            Kind::Bot if self.troubles == 0 => {
                self.push(said("assistant", words::canned(500_000)));
            }
            _ => {}
        }
        if self.kind.edits() {
            self.turns += 4;
        }
    }

    /// Says so many turns that nobody was sent.
    pub fn grow(&mut self, pool: &mut Pool, least: usize, most: usize) {
        self.elsewhere = true;
        for _ in 0..pool.dice.between(least, most) {
            self.goes_on(pool);
            self.reply(pool);
        }
        self.elsewhere = false;
    }

    pub fn mark(&mut self) -> Mark {
        self.numbers += 1;
        Mark {
            user: self.user,
            talk: self.id,
            number: self.numbers,
        }
    }

    pub fn own(&mut self, bytes: usize) -> String {
        words::own(self.mark(), bytes)
    }

    pub fn push(&mut self, value: Value) {
        self.now.said.push(Line::of(value));
    }

    /// The client brings the answer back: with the results it asked for, or with the next question.
    pub fn goes_on(&mut self, pool: &mut Pool) {
        let pending = std::mem::take(&mut self.now.pending);
        let calls = pending["tool_calls"].as_array().cloned();
        if !pending.is_null() {
            self.push(pending);
        }
        match calls {
            None => self.ask(pool),
            Some(calls) => {
                for call in calls {
                    let words = match pool.dice.one_in(6) {
                        true => "done".to_owned(),
                        false => self.own(420),
                    };
                    self.push(words::result(call["id"].as_str().unwrap(), words));
                }
            }
        }
    }

    fn ask(&mut self, pool: &mut Pool) {
        // Whoever brings along what nobody saw begins in words of his own: else he may be somebody who
        // left his beginning out.
        let begins = self.now.said.is_empty() && self.may_be_unseen();
        if self.ahead.is_empty() && !begins {
            let number = pool.dice.below(5);
            match self.kind {
                Kind::Bot if pool.dice.one_in(3) => self.ahead.extend(words::flow(number)),
                Kind::Form if pool.dice.one_in(2) => {
                    let form = words::form(number, &mut pool.dice);
                    self.ahead.extend(form);
                }
                Kind::Import | Kind::Refused | Kind::Window if pool.dice.one_in(8) => {
                    self.ahead.extend(words::flow(number));
                }
                _ => {}
            }
        }
        let question = match self.ahead.front() {
            Some((question, _)) => question.clone(),
            None if begins => said("user", self.own(300)),
            None => match pool.dice.below(12) {
                0 => said("user", *pool.dice.pick(&words::ANSWERS)),
                1..=6 if self.kind == Kind::Cached => said("user", *pool.dice.pick(&words::COMMON)),
                1 => said("user", *pool.dice.pick(&words::COMMON)),
                _ => {
                    let bytes = pool.dice.between(200, 480);
                    said("user", self.own(bytes))
                }
            },
        };
        self.push(question);
    }

    /// The model says something; it is not said before the client brings it back.
    pub fn reply(&mut self, pool: &mut Pool) {
        let last = self.now.said.last().map(|line| line.value.clone());
        let last = last.unwrap_or_default();
        if let Some((question, _)) = self.ahead.front()
            && *question == last
        {
            let (_, answer) = self.ahead.pop_front().unwrap();
            self.now.pending = answer;
            return;
        }
        let dice = &mut pool.dice;
        let asked = words::text(&last).to_owned();
        let common = words::COMMON.iter().position(|common| *common == asked);
        let elsewhere = self.elsewhere;
        if let Some(common) = common.filter(|_| self.kind == Kind::Cached || dice.chance(70)) {
            let id = format!("call_cached{common}Zt5Wq");
            self.now.pending = match common % 3 {
                0 if !elsewhere => words::calls(&[id], &asked),
                _ => said("assistant", words::canned(600_000 + common)),
            };
            return;
        }
        let drawn = dice.below(100);
        self.now.pending = if drawn < self.canned {
            pool.canned()
        } else if drawn < self.canned + self.tools {
            self.calls(pool)
        } else {
            let bytes = pool.dice.between(260, 560);
            said("assistant", self.own(bytes))
        };
    }

    fn calls(&mut self, pool: &mut Pool) -> Value {
        let results = self.now.said.iter().filter(|line| line.role() == "tool");
        let (before, width) = (results.count(), 1 + pool.dice.below(2));
        let drawn = pool.dice.next();
        let ids: Vec<String> = (0..width)
            .map(|at| match self.numbered {
                true => format!("call_{}", before + at),
                false => format!("call_{drawn:016x}{at}"),
            })
            .collect();
        let asked = self.mark().to_string();
        words::calls(&ids, &asked)
    }

    /// Questions that the client still sends as they are, but for the newest message.
    pub fn questions(&self) -> Vec<usize> {
        let from = self.now.summary.as_ref().map_or(0, |summary| summary.from);
        let end = self.now.said.len().saturating_sub(1);
        let questions = from..end;
        questions
            .filter(|at| {
                let line = &self.now.said[*at];
                line.is_question() && !line.marks.is_empty()
            })
            .collect()
    }

    /// The user says something else in the place of an earlier question, or nothing, and keeps what follows.
    pub fn takes_back(&mut self, pool: &mut Pool) {
        let mut questions = self.questions();
        if self.kind == Kind::RewritesWindow {
            // What was taken back is seen in several requests before the client leaves it out.
            let seen = (self.now.said.len() + SEEN).saturating_sub(self.window);
            questions.retain(|at| *at >= seen);
        }
        let Some(at) = (!questions.is_empty()).then(|| *pool.dice.pick(&questions)) else {
            return;
        };
        if self.kind == Kind::Removes {
            let answered = self.now.said[at + 1].role() == "assistant"
                && self.now.said[at + 1].value["tool_calls"].is_null()
                && at + 2 < self.now.said.len();
            let count = if answered && pool.dice.one_in(2) {
                2
            } else {
                1
            };
            self.now.rewritten = None;
            let gone: Vec<Line> = self.now.said.drain(at..at + count).collect();
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
            None => (at, Line::of(said("user", self.own(300)))),
        };
        let old = std::mem::replace(&mut self.now.said[at], line);
        self.now.taken.extend(old.marks.iter().copied());
        for mark in &self.now.said[at].marks {
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
        self.now.said.truncate(at);
        self.now.rewritten = None;
        let question = self.own(300);
        self.push(said("user", question));
    }

    /// The user begins anew under the same name, and keeps what canned messages stand at the end.
    fn begins_anew(&mut self, pool: &mut Pool) {
        pool.talks += 1;
        self.id = pool.talks;
        let mut kept = Vec::new();
        if pool.dice.one_in(2) {
            let pending = std::mem::take(&mut self.now.pending);
            if !pending.is_null() {
                self.push(pending);
            }
            let said = self.now.said.iter().rev();
            let canned = said.take_while(|line| {
                let plain = line.value["tool_calls"].is_null() && line.role() != "tool";
                line.marks.is_empty() && plain
            });
            kept = canned.take(6).cloned().collect();
            kept.reverse();
        }
        self.now = Branch {
            said: kept,
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
        if self.moves && pool.dice.one_in(4) {
            self.process = pool.dice.below(pool.processes);
        }
        let often = self.turn > 3 && pool.dice.chance(20);
        match self.kind {
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
        let troubled = dice.chance(self.troubles);
        match self.kind {
            Kind::OffOrRead if dice.chance(40) => self.without_memory(&mut request, dice),
            Kind::Refused if dice.chance(35) => request.fate = fails(dice),
            Kind::HungUp if dice.chance(35) => request.fate = leaves(dice),
            _ if troubled => match dice.below(3) {
                0 => self.without_memory(&mut request, dice),
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

    fn may_be_unseen(&self) -> bool {
        let kinds = [Kind::Import, Kind::OffOrRead, Kind::Refused, Kind::HungUp];
        kinds.contains(&self.kind) || self.kind.is_scene() || self.troubles > 0
    }

    fn without_memory(&self, request: &mut Request, dice: &mut Dice) {
        let mode = *dice.pick(&["off", "read"]);
        request.headers.push(("x-diarist-memory", mode.to_owned()));
    }

    pub fn request(&mut self, pool: &mut Pool) -> Request {
        let said = self.now.said.iter().flat_map(|line| &line.marks);
        let summary = self.now.summary.iter().flat_map(|summary| &summary.marks);
        let may = said.chain(summary).copied().collect();
        Request {
            user: self.user,
            talk: self.id,
            kind: self.kind,
            tenant: self.tenant,
            headers: self.headers.clone(),
            messages: self.shaped(),
            reply: self.now.pending.clone(),
            fate: Fate::Answered,
            stream: pool.dice.one_in(5),
            rests: !pool.dice.one_in(4),
            process: self.process,
            may,
            taken: self.now.taken.clone(),
        }
    }
}

fn fails(dice: &mut Dice) -> Fate {
    Fate::Fails(*dice.pick(&[429, 500, 503]))
}

fn leaves(dice: &mut Dice) -> Fate {
    *dice.pick(&[Fate::HungUp, Fate::CutOff])
}
