//! One conversation as its user sees it, and what happens to it turn by turn. Everything is decided before
//! anything is sent, the answers as well: what a run plays follows from its seed, whatever comes of it.

use std::collections::{BTreeSet, VecDeque};

use serde_json::Value;

use crate::population::documents::Documents;
use crate::population::kinds::{Kind, Naming};
use crate::population::marks::{Mark, found};
use crate::population::words::{self, message};
use crate::support::dice::Dice;

/// A message, and the marks in it.
#[derive(Clone, Debug)]
pub struct Line {
    pub value: Value,
    pub marks: BTreeSet<Mark>,
}

impl Line {
    pub fn new(value: Value) -> Self {
        let marks = found(value.to_string().as_bytes());
        Self { value, marks }
    }

    pub fn role(&self) -> &str {
        self.value["role"].as_str().unwrap()
    }

    pub fn is_question(&self) -> bool {
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
    pub messages: Vec<Line>,
    pub pending: Value,
    pub summary: Option<Summary>,
    pub taken: BTreeSet<Mark>,
    /// What was rewritten last: where, and what it was.
    pub rewritten: Option<(usize, Line)>,
}

/// What all conversations of a world draw from.
#[derive(Debug)]
pub struct Pool {
    pub dice: Dice,
    pub users: usize,
    pub conversations: usize,
    pub processes: usize,
    /// The next canned text that nobody was told yet.
    pub fresh: usize,
    /// How many conversations of equal answers have begun.
    pub equal: usize,
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
        message("assistant", text)
    }
}

/// A conversation.
#[derive(Clone, Debug)]
pub struct Conversation {
    pub user: usize,
    pub id: usize,
    pub tenant: usize,
    /// What it counts as.
    pub kind: Kind,
    /// How its client behaves.
    pub habit: Kind,
    pub naming: Naming,
    pub headers: Vec<(&'static str, String)>,
    pub system: Option<String>,
    pub now: Branch,
    pub left: Option<Branch>,
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
    /// What its application puts beside the questions.
    pub documents: Documents,
    /// How many of the first messages a scene leaves out.
    pub skips: usize,
    pub process: usize,
    /// Whether the next request may go to another process.
    pub moves: bool,
    /// How many of its requests in a hundred fail, are cut off, or have no memory.
    pub troubles: usize,
    /// Whether what is answered now comes from somewhere else. No cache answers there: whoever has the
    /// drawn id of somebody's call and nothing of his own around it can be told from nobody.
    pub elsewhere: bool,
}

impl Conversation {
    pub fn begin(pool: &mut Pool, kind: Kind) -> Self {
        pool.users += 1;
        // Some users come again.
        let user = if pool.dice.one_in(6) {
            1 + pool.dice.below(pool.users)
        } else {
            pool.users
        };
        pool.conversations += 1;
        let (id, dice) = (pool.conversations, &mut pool.dice);
        let naming = Naming::drawn(dice);
        let habit = match kind {
            Kind::EqualAnswers => Kind::habit_with_equal_answers(dice),
            _ => kind,
        };
        let (canned, tools) = match kind {
            Kind::Bot | Kind::Form => (70, 0),
            Kind::Pruned | Kind::DroppedRounds => (10, 60),
            Kind::Import | Kind::Window | Kind::WindowAdding | Kind::Refused => (35, 15),
            _ => (*dice.pick(&[0, 10, 40]), *dice.pick(&[0, 0, 30])),
        };
        let mut conversation = Self {
            user,
            id,
            tenant: usize::from(user.is_multiple_of(11)),
            kind,
            habit,
            naming,
            headers: naming.headers(user, id),
            system: (!dice.one_in(8)).then(|| words::system(dice.below(3))),
            now: Branch {
                messages: Vec::new(),
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
            documents: Documents::drawn(kind, dice),
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
            let about = conversation.own(90);
            conversation.system = conversation
                .system
                .map(|system| format!("{system} {about}"));
        }
        conversation.open(pool);
        conversation
    }

    fn open(&mut self, pool: &mut Pool) {
        match self.kind {
            Kind::Examples => {
                let number = pool.dice.below(2);
                for message in words::examples(number) {
                    self.push(message);
                }
            }
            Kind::Template => {
                let number = pool.dice.below(3);
                for message in words::template(number) {
                    self.push(message);
                }
            }
            Kind::Import => self.grow(pool, 3, 9),
            Kind::EqualAnswers => {
                let number = pool.equal / self.kind.together();
                pool.equal += 1;
                self.turns += 16;
                self.ahead.extend(words::equal_answers(number));
                self.process = number % pool.processes;
            }
            Kind::Bot if self.troubles == 0 => {
                self.push(message("assistant", words::canned(500_000)));
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
            conversation: self.id,
            number: self.numbers,
        }
    }

    pub fn own(&mut self, bytes: usize) -> String {
        words::own(self.mark(), bytes)
    }

    pub fn push(&mut self, value: Value) {
        self.now.messages.push(Line::new(value));
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
                    let words = if pool.dice.one_in(6) {
                        "done".to_owned()
                    } else {
                        self.own(420)
                    };
                    self.push(words::result(call["id"].as_str().unwrap(), words));
                }
            }
        }
    }

    pub fn ask(&mut self, pool: &mut Pool) {
        // Whoever brings along what nobody saw begins in words of his own: else he may be somebody who
        // left his beginning out.
        let says_own = self.now.messages.iter().any(|line| !line.marks.is_empty());
        let begins = !says_own && self.may_be_unseen();
        if self.ahead.is_empty() && !begins {
            let number = pool.dice.below(5);
            match self.kind {
                Kind::Bot if pool.dice.one_in(3) => self.ahead.extend(words::flow(number)),
                Kind::Form if pool.dice.one_in(2) => {
                    let form = words::form(number, &mut pool.dice);
                    self.ahead.extend(form);
                }
                Kind::Import | Kind::Refused | Kind::Window | Kind::WindowAdding
                    if pool.dice.one_in(8) =>
                {
                    self.ahead.extend(words::flow(number));
                }
                _ => {}
            }
        }
        let question = match self.ahead.front() {
            Some((question, _)) => question.clone(),
            None if begins => message("user", self.own(300)),
            None => match pool.dice.below(12) {
                0 => message("user", *pool.dice.pick(&words::ANSWERS)),
                1..=6 if self.kind == Kind::Cached => {
                    message("user", *pool.dice.pick(&words::COMMON))
                }
                1 => message("user", *pool.dice.pick(&words::COMMON)),
                _ => {
                    let bytes = pool.dice.between(200, 480);
                    message("user", self.own(bytes))
                }
            },
        };
        self.push(question);
    }

    /// The model says something; it is not said before the client brings it back.
    pub fn reply(&mut self, pool: &mut Pool) {
        let last = self.now.messages.last().map(|line| line.value.clone());
        let last = last.unwrap_or_default();
        if let Some((question, _)) = self.ahead.front()
            && *question == last
        {
            let (_, answer) = self.ahead.pop_front().unwrap();
            self.now.pending = answer;
            return;
        }
        let dice = &mut pool.dice;
        let question = words::text(&last).to_owned();
        let common = words::COMMON.iter().position(|common| *common == question);
        let elsewhere = self.elsewhere;
        if let Some(common) = common.filter(|_| self.kind == Kind::Cached || dice.chance(70)) {
            let id = format!("call_cached{common}Zt5Wq");
            self.now.pending = match common % 3 {
                0 if !elsewhere => words::calls(&[id], &question),
                _ => message("assistant", words::canned(600_000 + common)),
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
            message("assistant", self.own(bytes))
        };
    }

    fn calls(&mut self, pool: &mut Pool) -> Value {
        let results = self
            .now
            .messages
            .iter()
            .filter(|line| line.role() == "tool");
        let (before, width) = (results.count(), 1 + pool.dice.below(2));
        let drawn = pool.dice.next();
        let ids: Vec<String> = (0..width)
            .map(|at| {
                if self.numbered {
                    format!("call_{}", before + at)
                } else {
                    format!("call_{drawn:016x}{at}")
                }
            })
            .collect();
        let query = self.mark().to_string();
        words::calls(&ids, &query)
    }
}
