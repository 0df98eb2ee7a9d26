//! Generates conversations that are long, varied, and the same for every run with one seed.
//!
//! They have the proportions of recorded ones: short user turns, tool rounds (some of them parallel)
//! whose results are larger than everything else, and facts that are said once and matter later.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{Conversation, Fact};

/// The subject of a generated conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A travel assistant: bookings, look-ups, facts about the traveller.
    Travel,
    /// A coding assistant: files, test runs, decisions.
    Coding,
}

impl Conversation {
    /// Generates a conversation of `turns` user turns; always the same for the same arguments.
    pub fn generate(seed: u64, turns: usize, style: Style) -> Self {
        let mut writer = Writer {
            random: StdRng::seed_from_u64(seed),
            style,
            calls: 0,
            messages: vec![json!({"role": "system", "content": style.system()})],
            facts: Vec::new(),
        };
        for turn in 0..turns {
            writer.turn(turn);
        }
        Conversation {
            id: format!("{}-{seed}", style.name()),
            source: "generated".to_owned(),
            tools: Some(style.tools()),
            messages: writer.messages,
            facts: writer.facts,
        }
    }
}

struct Writer {
    random: StdRng,
    style: Style,
    calls: u32,
    messages: Vec<Value>,
    facts: Vec<Fact>,
}

impl Writer {
    fn turn(&mut self, turn: usize) {
        let question = self.question(turn);
        self.messages
            .push(json!({"role": "user", "content": question}));
        // As in recorded agents, most turns use tools, and a few of them several rounds.
        let rounds = *[0, 1, 1, 1, 2, 3].choose(&mut self.random).unwrap_or(&1);
        for _ in 0..rounds {
            self.round();
        }
        let answer = self.answer(turn);
        self.messages
            .push(json!({"role": "assistant", "content": answer}));
    }

    fn question(&mut self, turn: usize) -> String {
        let question = self.pick(self.style.questions());
        let place = self.pick(self.style.subjects());
        let question = question.replace("{}", place);
        // One turn in three also states something to be remembered.
        if !turn.is_multiple_of(3) {
            return question;
        }
        let number = self.random.random_range(1000..9999);
        let words = self
            .pick(self.style.facts())
            .replace("{}", &number.to_string());
        self.facts.push(Fact {
            at: self.messages.len(),
            words: words.clone(),
        });
        format!("{words}. {question}")
    }

    fn round(&mut self) {
        let parallel = *[1, 1, 1, 2, 3].choose(&mut self.random).unwrap_or(&1);
        let mut calls = Vec::new();
        let mut results = Vec::new();
        for _ in 0..parallel {
            self.calls += 1;
            let id = format!("call_{:04}{:08x}", self.calls, self.random.random::<u32>());
            let tool = self.pick(self.style.tool_names());
            let subject = self.pick(self.style.subjects());
            let arguments = json!({"query": subject, "limit": self.random.random_range(1..20)});
            calls.push(json!({
                "id": id,
                "type": "function",
                "function": {"name": tool, "arguments": arguments.to_string()},
            }));
            results.push(json!({
                "role": "tool",
                "tool_call_id": id,
                "content": self.result(subject),
            }));
        }
        self.messages
            .push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        self.messages.append(&mut results);
    }

    fn result(&mut self, subject: &str) -> String {
        let rows = self.random.random_range(5..16);
        let rows: Vec<String> = (0..rows)
            .map(|row| {
                let (code, price) = (self.random.random_range(100..999), self.random.random_range(40..900));
                let note = self.pick(self.style.notes());
                match self.style {
                    Style::Travel => format!(
                        "{{\"flight\": \"HAT{code}\", \"to\": \"{subject}\", \"price\": {price}, \"note\": \"{note}\"}}"
                    ),
                    Style::Coding => format!("{:>4}  {subject}: {note} (case {code}, {price} ms)", row + 1),
                }
            })
            .collect();
        rows.join("\n")
    }

    fn answer(&mut self, turn: usize) -> String {
        let subject = self.pick(self.style.subjects());
        let number = self.random.random_range(100..999);
        let sentences = self.random.random_range(1..4);
        let mut answer = format!(
            "For turn {}, I settled on option {number} for {subject}.",
            turn + 1
        );
        for _ in 0..sentences {
            answer.push(' ');
            answer.push_str(self.pick(self.style.remarks()));
        }
        answer
    }

    fn pick(&mut self, from: &'static [&'static str]) -> &'static str {
        from.choose(&mut self.random).copied().unwrap_or_default()
    }
}

impl Style {
    fn name(self) -> &'static str {
        match self {
            Self::Travel => "travel",
            Self::Coding => "coding",
        }
    }

    fn system(self) -> &'static str {
        match self {
            Self::Travel => {
                "You are the booking assistant of a small travel agency. Look things up before you \
                 answer, never book without a clear yes, and keep the traveller's wishes in mind."
            }
            Self::Coding => {
                "You are a coding assistant working in the user's repository. Read before you edit, \
                 run the tests after every change, and say what you did in a few sentences."
            }
        }
    }

    fn tool_names(self) -> &'static [&'static str] {
        match self {
            Self::Travel => &["search_flights", "search_hotels", "get_reservation"],
            Self::Coding => &["read_file", "search_code", "run_tests"],
        }
    }

    fn tools(self) -> Value {
        self.tool_names()
            .iter()
            .map(|name| {
                json!({"type": "function", "function": {
                    "name": name,
                    "description": format!("{} and return what was found, one entry per line.", name.replace('_', " ")),
                    "parameters": {
                        "type": "object",
                        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
                        "required": ["query"],
                    },
                }})
            })
            .collect()
    }

    fn subjects(self) -> &'static [&'static str] {
        match self {
            Self::Travel => &[
                "Oslo",
                "Lisbon",
                "Kyoto",
                "Montréal",
                "Cape Town",
                "Reykjavík",
                "Hanoi",
                "Lima",
            ],
            Self::Coding => &[
                "src/parser.rs",
                "src/cache/lru.rs",
                "tests/retries.rs",
                "src/main.rs",
                "docs/config.md",
                "src/net/pool.rs",
            ],
        }
    }

    fn questions(self) -> &'static [&'static str] {
        match self {
            Self::Travel => &[
                "What are the options for {} next month?",
                "Can you compare that with {}?",
                "yes",
                "Please change the hotel in {} to something quieter, and keep the breakfast.",
                "How long is the connection to {}, and is there one without a night stop?",
                "Thanks. And what would {} cost for two?",
            ],
            Self::Coding => &[
                "Why does {} fail on the second run?",
                "Please split {} into two modules and keep the public names.",
                "yes",
                "Is there anything in {} that depends on the clock?",
                "Add a test for the empty input in {}, then run everything.",
                "Show me where {} is called from.",
            ],
        }
    }

    fn facts(self) -> &'static [&'static str] {
        match self {
            Self::Travel => &[
                "My reservation code is QX{}",
                "My loyalty number is LN-{}",
                "The budget for this leg is {} euros",
                "My sister Ingrid travels with me, her passport ends in {}",
                "I need \"aisle seat {}A\" because of my knee",
            ],
            Self::Coding => &[
                "The failing build is number {}",
                "Our limit for p95 is {} microseconds",
                "The ticket for this is CORE-{}",
                "Nils owns the parser, ask for review {}",
                "Keep the magic value \"0x{}\" as it is",
            ],
        }
    }

    fn notes(self) -> &'static [&'static str] {
        match self {
            Self::Travel => &[
                "non-stop, one bag included",
                "one change, 95 minutes in between",
                "refundable until the day before",
                "last 3 seats at this fare",
                "arrives after midnight, airport hotel included in the price",
            ],
            Self::Coding => &[
                "expected 3 items, found 2",
                "ok",
                "thread panicked at an index out of range",
                "called from four places, none of them in tests",
                "the lock is held across an await point",
            ],
        }
    }

    fn remarks(self) -> &'static [&'static str] {
        match self {
            Self::Travel => &[
                "The fare holds until tomorrow evening.",
                "I have not booked anything yet; say the word and I will.",
                "The quieter hotel is a ten minute walk from the station.",
                "There is a cheaper one, but it changes twice and arrives at night.",
            ],
            Self::Coding => &[
                "All tests pass after the change.",
                "The cause was a guard that outlived the await.",
                "I left the public names as they were.",
                "One warning remains; it was there before.",
            ],
        }
    }
}
