//! Clients: what they do, as a list of moves that shrinks, and how they do it.
//!
//! A move never looks at what the proxy did beyond what a client sees: whether it was answered.

use proptest::sample::Index;

use super::conversation::{Call, MessageContent, Msg, Owner, Request, Spelling, words};
use diarist::history::Role;

/// One thing a client does.
#[derive(Clone, Debug)]
pub enum Act {
    /// Says something and gets an answer.
    Chat { ask: usize, answer: usize },
    /// Says the same short word as ever.
    Yes,
    /// Says something that takes rounds of parallel tool calls to answer.
    Task {
        ask: usize,
        rounds: usize,
        width: usize,
        result: usize,
        finish: bool,
    },
    /// Sends the last request again.
    Retry,
    /// Says something, and sends it twice at the same moment.
    Twins { ask: usize },
    /// Sends an older request again.
    Late(Index),
    /// Puts other words in the place of the last user message.
    EditLast { ask: usize },
    /// Puts other words in the place of an earlier user message and goes on from there.
    EditEarly { at: Index, ask: usize },
    /// Goes back to the branch left by the last edit.
    Return,
    /// Has the last question answered anew.
    Regenerate { answer: usize },
    /// Changes the system prompt.
    Head,
    /// Inserts messages nobody saw being said, at the end or somewhere.
    Foreign { at: Option<Index> },
    /// Forgets the oldest messages.
    Truncate { rounds: usize },
    /// Spells its earlier messages otherwise.
    Respell(u8),
    /// Puts placeholders in the place of old tool results.
    Prune,
    /// Asks for a title, as a request of its own.
    Side,
    /// Lets the Observer catch up.
    Rest,
    /// Says nothing for longer than its provider keeps a prompt.
    Idle,
    /// Finds the proxy started anew.
    Restart,
}

/// Who makes a move.
#[derive(Clone, Debug)]
pub struct Move {
    pub who: usize,
    pub act: Act,
}

/// What a client does in every request.
#[derive(Clone, Debug)]
pub struct Habits {
    pub head: Head,
    /// The system prompt tells the time: it changes every turn.
    pub clock: bool,
    /// A system message stands at the end of every request, and nowhere else (aider).
    pub trailing: bool,
    /// The newest user message carries a reminder that is gone with the next one (opencode).
    pub floating: bool,
    pub images: bool,
    pub json_object: bool,
    pub pretty: bool,
    pub stream: bool,
    pub spelling: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    None,
    System,
    Developer,
    Two,
}

/// What takes a client's requests.
pub trait Upstream {
    /// Sends a request; whether it was answered.
    fn ask(&mut self, request: &Request) -> bool;
    /// Sends a request twice at the same moment.
    fn ask_twice(&mut self, request: &Request) -> bool;
    /// Waits until the Observer has nothing left to do.
    fn rest(&mut self);
    /// Nobody says anything for longer than the provider keeps a prompt.
    fn idle(&mut self);
    /// Starts every process of it anew.
    fn restart(&mut self);
}

/// A client in the middle of its conversation.
#[derive(Debug)]
pub struct Client {
    owner: Owner,
    habits: Habits,
    turns: Vec<Msg>,
    branches: Vec<Vec<Msg>>,
    sent: Vec<Request>,
    spelling: Spelling,
    text_count: usize,
    heads: usize,
    /// Nothing but appended so far.
    pub linear: bool,
}

impl Client {
    pub fn new(owner: Owner, habits: Habits) -> Self {
        Self {
            owner,
            turns: Vec::new(),
            branches: Vec::new(),
            sent: Vec::new(),
            spelling: Spelling(habits.spelling),
            text_count: 0,
            heads: 0,
            linear: !habits.trailing && !habits.floating,
            habits,
        }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    pub fn perform(&mut self, act: &Act, upstream: &mut dyn Upstream) {
        let appends = matches!(
            act,
            Act::Chat { .. }
                | Act::Yes
                | Act::Task { .. }
                | Act::Retry
                | Act::Rest
                | Act::Idle
                | Act::Restart
                | Act::Head
        );
        self.linear &= appends;
        match act {
            Act::Chat { ask, answer } => {
                self.says(*ask);
                self.answered(*answer, upstream);
            }
            Act::Yes => {
                self.push(MessageContent::User {
                    text: "yes".into(),
                    image: false,
                });
                self.answered(12, upstream);
            }
            Act::Task {
                ask,
                rounds,
                width,
                result,
                finish,
            } => self.task(*ask, *rounds, *width, *result, *finish, upstream),
            Act::Retry => self.again(self.sent.len().checked_sub(1), upstream),
            Act::Late(at) => {
                let at = (!self.sent.is_empty()).then(|| at.index(self.sent.len()));
                self.again(at, upstream);
            }
            Act::Twins { ask } => {
                self.says(*ask);
                let request = self.request();
                let answered = upstream.ask_twice(&request);
                self.after(request, answered, 40);
            }
            Act::EditLast { ask } => self.edit(usize::MAX, *ask, upstream),
            Act::EditEarly { at, ask } => self.edit(at.index(usize::MAX - 1), *ask, upstream),
            Act::Return => {
                if let Some(branch) = self.branches.pop() {
                    self.branches
                        .insert(0, std::mem::replace(&mut self.turns, branch));
                    self.says(30);
                    self.answered(30, upstream);
                }
            }
            Act::Regenerate { answer } => {
                if matches!(self.turns.last().map(Msg::role), Some(Role::Assistant)) {
                    self.turns.pop();
                    if !self.turns.is_empty() {
                        self.answered(*answer, upstream);
                    }
                }
            }
            Act::Head => self.heads += 1,
            Act::Foreign { at } => self.foreign(at.as_ref()),
            Act::Truncate { rounds } => self.truncate(*rounds),
            Act::Respell(habits) => {
                self.spelling = Spelling(*habits);
                for turn in &mut self.turns {
                    *turn = turn.respelled(Spelling(*habits));
                }
            }
            Act::Prune => self.prune(),
            Act::Side => {
                let request = self.side();
                upstream.ask(&request);
            }
            Act::Rest => upstream.rest(),
            Act::Idle => upstream.idle(),
            Act::Restart => upstream.restart(),
        }
    }

    fn fresh(&mut self, kind: char, tokens: usize) -> String {
        self.text_count += 1;
        words(&format!("{kind}{}", self.text_count), tokens)
    }

    fn push(&mut self, content: MessageContent) {
        self.turns.push(Msg::new(content, self.spelling));
    }

    fn says(&mut self, tokens: usize) {
        let text = self.fresh('u', tokens);
        let image = self.habits.images && self.text_count % 5 == 1;
        self.push(MessageContent::User { text, image });
    }

    /// Sends what stands, and takes the answer in.
    fn answered(&mut self, tokens: usize, upstream: &mut dyn Upstream) -> bool {
        let request = self.request();
        let answered = upstream.ask(&request);
        self.after(request, answered, tokens)
    }

    fn after(&mut self, request: Request, answered: bool, tokens: usize) -> bool {
        self.sent.push(request);
        if answered {
            let text = self.fresh('a', tokens);
            self.push(MessageContent::Answer(text));
        } else {
            // As `llm` does: the turn that failed is gone.
            self.linear = false;
            while let Some(gone) = self.turns.pop() {
                if gone.role() == Role::User {
                    break;
                }
            }
        }
        answered
    }

    fn task(
        &mut self,
        ask: usize,
        rounds: usize,
        width: usize,
        result: usize,
        finish: bool,
        upstream: &mut dyn Upstream,
    ) {
        self.says(ask);
        for _ in 0..rounds {
            let request = self.request();
            let answered = upstream.ask(&request);
            if !answered {
                self.after(request, false, 0);
                return;
            }
            self.sent.push(request);
            self.round(width, result);
        }
        if finish || rounds == 0 {
            self.answered(40, upstream);
        } else {
            // Given up in the middle: the next request goes on from before the task.
            self.linear = false;
            while self
                .turns
                .pop()
                .is_some_and(|gone| gone.role() != Role::User)
            {}
        }
    }

    fn round(&mut self, width: usize, result: usize) {
        self.text_count += 1;
        let (name, number) = (["look", "write"][self.text_count % 2], self.text_count);
        let calls: Vec<Call> = (0..width)
            .map(|at| Call {
                id: format!("call_{number}_{at}"),
                name,
                number: u32::try_from(number).unwrap(),
                query: format!("q{at} é"),
            })
            .collect();
        let ids: Vec<String> = calls.iter().map(|call| call.id.clone()).collect();
        let text = if number % 3 == 0 {
            self.fresh('c', 10)
        } else {
            String::new()
        };
        self.push(MessageContent::Calls { text, calls });
        for id in ids {
            let text = self.fresh('r', result);
            self.push(MessageContent::Result { id, text });
        }
    }

    fn again(&mut self, at: Option<usize>, upstream: &mut dyn Upstream) {
        if let Some(request) = at.and_then(|at| self.sent.get(at)) {
            upstream.ask(&request.clone());
        }
    }

    fn edit(&mut self, at: usize, ask: usize, upstream: &mut dyn Upstream) {
        let users: Vec<usize> = (0..self.turns.len())
            .filter(|at| self.turns[*at].role() == Role::User)
            .collect();
        let Some(last) = users.len().checked_sub(1) else {
            return;
        };
        let at = users[if at == usize::MAX {
            last
        } else {
            at % users.len()
        }];
        self.branches.push(self.turns.clone());
        self.turns.truncate(at);
        self.says(ask);
        self.answered(50, upstream);
    }

    fn foreign(&mut self, at: Option<&Index>) {
        let ends: Vec<usize> = (1..=self.turns.len())
            .filter(|count| {
                self.turns[count - 1].role() == Role::Assistant
                    && self.turns[count - 1].calls() == 0
            })
            .collect();
        let Some(last) = ends.last() else { return };
        let at = at.map_or(*last, |at| ends[at.index(ends.len())]);
        let (question, ok) = (self.fresh('f', 20), self.fresh('g', 5));
        let pair = [
            MessageContent::User {
                text: question,
                image: false,
            },
            MessageContent::Answer(ok),
        ];
        let pair = pair.map(|content| Msg::new(content, self.spelling));
        self.turns.splice(at..at, pair);
    }

    /// Drops whole exchanges from the front: what remains begins with a user message.
    fn truncate(&mut self, rounds: usize) {
        let users = (1..self.turns.len()).filter(|at| self.turns[*at].role() == Role::User);
        if let Some(at) = users.take(rounds).last() {
            self.turns.drain(..at);
        }
    }

    fn prune(&mut self) {
        let keep = self.turns.len().saturating_sub(6);
        for turn in &mut self.turns[..keep] {
            if let MessageContent::Result { id, .. } = &*turn.content {
                let content = MessageContent::Result {
                    id: id.clone(),
                    text: "[Old tool result content cleared]".into(),
                };
                *turn = Msg::new(content, self.spelling);
            }
        }
    }

    fn head(&self) -> Vec<String> {
        let time = if self.habits.clock {
            self.sent.len()
        } else {
            0
        };
        let text = |name: &str| words(&format!("{name} {} at {time}:", self.heads), 30);
        let one = |role: &str, name: &str| {
            format!(
                "{{\"role\":\"{role}\",\"content\":{}}}",
                serde_json::to_string(&text(name)).unwrap()
            )
        };
        match self.habits.head {
            Head::None => vec![],
            Head::System => vec![one("system", "rules")],
            Head::Developer => vec![one("developer", "rules")],
            Head::Two => vec![one("system", "rules"), one("system", "more")],
        }
    }

    fn request(&self) -> Request {
        let mut turns = self.turns.clone();
        if self.habits.floating
            && let Some(at) = turns.iter().rposition(|turn| turn.role() == Role::User)
            && let MessageContent::User { text, image } = &*turns[at].content
        {
            let content = MessageContent::User {
                text: format!("{text}\n\nReminder: plan only, change nothing."),
                image: *image,
            };
            turns[at] = Msg::new(content, self.spelling);
        }
        if self.habits.trailing {
            let content = MessageContent::System("Reminder: answer with edit blocks only.".into());
            turns.push(Msg::new(content, self.spelling));
        }
        self.written(&turns)
    }

    fn side(&self) -> Request {
        let text = match self.turns.first().map(|turn| &*turn.content) {
            Some(MessageContent::User { text, .. }) => format!("A title for: {text}"),
            _ => "A title for nothing".into(),
        };
        let content = MessageContent::User { text, image: false };
        self.written(&[Msg::new(content, self.spelling)])
    }

    fn written(&self, turns: &[Msg]) -> Request {
        let head = self.head();
        let (space, gap) = if self.habits.pretty {
            ("\n  ", " ")
        } else {
            ("", "")
        };
        let items: Vec<&str> = head
            .iter()
            .map(String::as_str)
            .chain(turns.iter().map(|turn| &*turn.json))
            .collect();
        let mut body = format!("{{{space}\"model\":{gap}\"m\",");
        if self.habits.stream {
            body.push_str("\"stream\":true,");
        }
        body.push_str(&format!("{space}\"messages\":{gap}["));
        body.push_str(&items.join(&format!(",{space}")));
        body.push_str(&format!("{gap}],\"temperature\":0.70e0,"));
        if self.habits.json_object {
            body.push_str("\"response_format\":{\"type\":\"json_object\"},");
        }
        body.push_str("\"seed\":1,\"seed\":1.0,\"metadata\":{\"k\":\"\\u00e9 [[no]]\"}");
        body.push_str(space);
        body.push('}');
        let system = turns
            .iter()
            .take_while(|turn| turn.role() == Role::System)
            .count();
        Request {
            owner: self.owner.clone(),
            body: body.into(),
            leading: head.len() + system,
            turns: turns[system..].to_vec(),
        }
    }
}
