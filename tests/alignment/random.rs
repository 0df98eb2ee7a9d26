//! Clients that do everything at once, in an order that a seed decides: they append, repeat, edit,
//! branch and come back, prune, slide, renumber, respell, compact, and begin anew, over conversations
//! with short messages that repeat and openings that are alike; processes end between any two requests.
//!
//! The oracle knows what each request may be told of, since it made it: what is left out was observed
//! ([`Client::send`]), nothing is told that is not of this branch of this conversation, and the same
//! request goes out as the same bytes, however much later. A failure names its seed:
//! `DIARIST_SEED=7 cargo test --test alignment whatever` plays that one alone, `DIARIST_CASES=300` many.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use diarist::provider::Options;
use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use crate::rig::Rig;
use crate::rows::{renumbered, respelled};
use crate::script::{reworded, said};
use crate::stage::{Client, Seen, marks, text, user};

const CASES: u64 = 24;

/// Requests of a case, retries and side calls apart.
const STEPS: usize = 34;

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }

    /// Once in so many times.
    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// How a client sends what was said.
#[derive(Clone, Debug, Default)]
struct Manners {
    clock: bool,
    window: Option<usize>,
    keeps_first: bool,
    notice: bool,
    prune_behind: Option<usize>,
    ids: bool,
    spelling: bool,
    reminder: bool,
    floating: bool,
    system: bool,
}

impl Manners {
    fn of(dice: &mut Dice) -> Self {
        Self {
            clock: dice.one_in(4),
            window: dice.one_in(3).then(|| 6 + dice.below(20)),
            keeps_first: dice.one_in(3),
            notice: dice.one_in(3),
            prune_behind: dice.one_in(3).then(|| 2 + dice.below(16)),
            ids: dice.one_in(4),
            spelling: dice.one_in(4),
            reminder: dice.one_in(4),
            floating: dice.one_in(4),
            system: dice.one_in(4),
        }
    }

    fn shape(&self, sent: &[Value]) -> Vec<Value> {
        let turn = sent.len();
        let mut sent = sent.to_vec();
        let old = turn.saturating_sub(self.prune_behind.unwrap_or(turn));
        for message in &mut sent[..old] {
            if message["role"] == "tool" {
                message["content"] = json!("[cleared]");
            }
        }
        if self.clock {
            sent[0] = reworded(&sent[0], |words| format!("It is {turn} past. {words}"));
        }
        if self.reminder {
            let last = sent.last_mut().unwrap();
            *last = reworded(last, |words| {
                format!("{words}\n<reminder>Be brief.</reminder>")
            });
        }
        if let Some(window) = self.window {
            // Clients drop whole rounds.
            let least = turn.saturating_sub(window);
            let from = (least..turn).find(|at| sent[*at]["role"] == "user");
            let from = from.unwrap_or(0);
            let first = sent[0].clone();
            sent.drain(..from);
            if from > 0 && self.keeps_first {
                sent.insert(0, first);
            } else if from > 0 && self.notice {
                sent.insert(
                    0,
                    said("user", "[Earlier messages were removed to save space.]"),
                );
            }
        }
        if self.floating {
            let files = said(
                "user",
                format!("I have *added these files to the chat*: {}", turn / 6),
            );
            let fixed = said(
                "assistant",
                "Ok, any changes I propose will be to those files.",
            );
            let at = sent.iter().rposition(|m| m["role"] == "user").unwrap_or(0);
            sent.splice(at..at, [files, fixed]);
        }
        if self.spelling {
            sent = sent
                .iter()
                .map(|message| respelled(message, turn))
                .collect();
        }
        if self.ids {
            sent = renumbered(&sent, &format!("id{turn}_"));
        }
        sent
    }
}

/// A conversation as its user sees it.
#[derive(Clone)]
struct Talk {
    name: &'static str,
    said: Vec<Value>,
    /// What was edited away: where it stood, and its mark.
    replaced: Vec<(usize, String)>,
    /// From where on the messages are sent behind a summary.
    summary: Option<(usize, String)>,
}

impl Talk {
    fn may_tell(&self) -> BTreeSet<String> {
        let said = self.said.iter().flat_map(|m| marks(&m.to_string()));
        let replaced = self.replaced.iter().map(|(_, mark)| mark.clone());
        said.chain(replaced).collect()
    }

    fn sent(&self) -> Vec<Value> {
        match &self.summary {
            None => self.said.clone(),
            Some((from, summary)) => {
                let mut sent = vec![
                    said("user", format!("Summary so far:\n{summary}")),
                    said("assistant", "Got it."),
                ];
                sent.extend_from_slice(&self.said[*from..]);
                sent
            }
        }
    }

    /// Questions behind what was summarised.
    fn questions(&self) -> Vec<usize> {
        let from = self.summary.as_ref().map_or(1, |(from, _)| from + 1);
        let asked =
            |at: &usize| self.said[*at]["role"] == "user" && self.said[*at]["content"].is_string();
        (from..self.said.len().saturating_sub(1))
            .filter(asked)
            .collect()
    }
}

/// A request, and what went out for it.
struct Sent {
    messages: Vec<Value>,
    system: String,
    body: String,
}

struct Case {
    rig: Rig,
    dice: Dice,
    /// No two messages of a case bear the same number.
    number: usize,
    talks: Vec<Talk>,
    /// A branch of each that was left.
    left: Vec<Option<Talk>>,
    manners: Manners,
    before: Vec<Sent>,
    aligned: usize,
    told: usize,
}

impl Case {
    async fn new(seed: u64) -> Self {
        let settings = [
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "1000"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "20000"),
        ];
        let mut case = Self {
            rig: Rig::with(Options::default(), &settings).await,
            dice: Dice(seed),
            number: 0,
            talks: Vec::new(),
            left: vec![None, None],
            manners: Manners::default(),
            before: Vec::new(),
            aligned: 0,
            told: 0,
        };
        let template = case.dice.one_in(2);
        for name in ["one", "two"] {
            let mut said = Vec::new();
            if template {
                said.extend(crate::stage::talk("template", 6));
            }
            said.push(user(name, case.count()));
            case.talks.push(Talk {
                name,
                said,
                replaced: Vec::new(),
                summary: None,
            });
            for _ in 0..case.dice.below(8) {
                let which = case.talks.len() - 1;
                case.answer(which);
                case.ask(which);
            }
        }
        case
    }

    fn count(&mut self) -> usize {
        self.number += 1;
        self.number
    }

    fn ask(&mut self, which: usize) {
        let number = self.count();
        let short = self.dice.one_in(4);
        let talk = &mut self.talks[which];
        talk.said.push(if short {
            said("user", "go on")
        } else {
            user(talk.name, number)
        });
    }

    fn call(&mut self, which: usize) {
        let number = self.count();
        let talk = &mut self.talks[which];
        let id = format!("call_{}Zq8t{number}", talk.name);
        let path = format!("{{\"path\":\"{number}\"}}");
        talk.said.push(
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": id,
            "type": "function", "function": {"name": "read", "arguments": path}}]}),
        );
        let result = text(talk.name, number);
        talk.said
            .push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }

    fn answer(&mut self, which: usize) {
        let number = self.count();
        let short = self.dice.one_in(4);
        let talk = &mut self.talks[which];
        let words = if short {
            "Ok.".to_owned()
        } else {
            text(talk.name, number)
        };
        talk.said.push(said("assistant", words));
    }

    async fn send(&mut self, which: usize) -> Result<Seen, String> {
        let talk = &self.talks[which];
        let messages = self.manners.shape(&talk.sent());
        let may = talk.may_tell();
        let turn = messages.len();
        let system = if self.manners.system {
            format!("You are patient. It is {turn} past.")
        } else {
            "You are a patient assistant.".to_owned()
        };
        let seen = self.out(&messages, &system).await;
        if let Some(strange) = seen.told.iter().find(|mark| !may.contains(*mark)) {
            let (name, manners) = (self.talks[which].name, &self.manners);
            return Err(format!(
                "{name} is told of {strange}, {} {manners:?}",
                seen.reason
            ));
        }
        self.aligned += usize::from(matches!(&*seen.reason, "aligned" | "compaction_link"));
        self.told += usize::from(!seen.told.is_empty());
        let body = seen.body.0.clone();
        self.before.push(Sent {
            messages,
            system,
            body,
        });
        Ok(seen)
    }

    async fn out(&mut self, messages: &[Value], system: &str) -> Seen {
        let mut client = Client::new(&mut self.rig);
        client.system = Some(system.to_owned());
        client.send(messages).await
    }

    /// One that was sent before goes out as it did.
    async fn again(&mut self) -> Result<(), String> {
        if self.before.is_empty() {
            return Ok(());
        }
        let at = self.dice.below(self.before.len());
        let (messages, system) = (
            self.before[at].messages.clone(),
            self.before[at].system.clone(),
        );
        let seen = self.out(&messages, &system).await;
        if seen.body.0 == self.before[at].body {
            return Ok(());
        }
        Err(format!(
            "request {at} of {} went out as other bytes",
            self.before.len()
        ))
    }

    async fn summarise(&mut self, which: usize) -> Result<(), String> {
        self.answer(which);
        let mut asked = self.manners.shape(&self.talks[which].sent());
        let number = self.count();
        asked.push(said(
            "user",
            format!("Summarise the conversation so far, number {number}."),
        ));
        let seen = self.out(&asked, "You are a patient assistant.").await;
        let tail = self.dice.below(8);
        let talk = &mut self.talks[which];
        // From a question on, or nothing is kept.
        let least = talk.said.len().saturating_sub(tail).max(1);
        let from = (least..talk.said.len()).find(|at| talk.said[*at]["role"] == "user");
        talk.summary = Some((from.unwrap_or(talk.said.len()), seen.answer));
        self.ask(which);
        Ok(())
    }

    fn edit(&mut self, which: usize) {
        let questions = self.talks[which].questions();
        if questions.is_empty() {
            return;
        }
        let at = questions[self.dice.below(questions.len())];
        let number = self.count();
        let talk = &mut self.talks[which];
        let gone = marks(&talk.said[at].to_string());
        talk.replaced
            .extend(gone.into_iter().map(|mark| (at, mark)));
        talk.said[at] = user(talk.name, number);
    }

    /// Goes back to a question and asks something else.
    fn branch(&mut self, which: usize) {
        let questions = self.talks[which].questions();
        if questions.is_empty() {
            return;
        }
        let at = questions[self.dice.below(questions.len())];
        self.left[which] = Some(self.talks[which].clone());
        let number = self.count();
        let talk = &mut self.talks[which];
        talk.said.truncate(at);
        talk.replaced.retain(|(place, _)| *place < at);
        talk.said.push(user(talk.name, number));
    }

    async fn step(&mut self) -> Result<(), String> {
        let which = usize::from(self.dice.one_in(4));
        match self.dice.below(24) {
            0 | 1 => self.rig.restart().await,
            2 => self.manners = Manners::of(&mut self.dice),
            3 => self.manners = Manners::default(),
            4 => self.edit(which),
            5 => self.branch(which),
            6 => {
                if let Some(left) = self.left[which].take() {
                    self.left[which] = Some(std::mem::replace(&mut self.talks[which], left));
                }
            }
            7 => self.summarise(which).await?,
            8..=10 => self.again().await?,
            11 => {
                // The newest question, asked in other words.
                let number = self.count();
                let talk = &mut self.talks[which];
                let name = talk.name;
                *talk.said.last_mut().unwrap() = user(name, number);
            }
            12 => {
                // The last answer, given again.
                let talk = &mut self.talks[which];
                let summarised = talk.summary.as_ref().map_or(0, |(from, _)| *from);
                let answers = talk.said.len() > summarised + 3
                    && talk.said[talk.said.len() - 2]["role"] == "assistant"
                    && talk.said[talk.said.len() - 3]["role"] == "user";
                if answers {
                    let end = talk.said.len() - 2;
                    talk.said.truncate(end);
                    talk.replaced.retain(|(place, _)| *place < end);
                    self.answer(which);
                    self.ask(which);
                }
            }
            13..=16 => {
                self.call(which);
                self.send(which).await?;
                self.answer(which);
                self.ask(which);
            }
            _ => {
                self.answer(which);
                self.ask(which);
            }
        }
        self.send(which).await.map(drop)
    }
}

/// How many of its requests were views, and told of something.
async fn play(seed: u64) -> Result<(usize, usize), String> {
    let mut case = Case::new(seed).await;
    for step in 0..STEPS {
        let stepped = AssertUnwindSafe(case.step()).catch_unwind().await;
        stepped
            .unwrap_or_else(|_| Err("a check of every request failed, see above".to_owned()))
            .map_err(|broken| format!("DIARIST_SEED={seed}, step {step}: {broken}"))?;
    }
    Ok((case.aligned, case.told))
}

#[expect(clippy::disallowed_methods, reason = "a switch of this test alone")]
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_client_does() {
    let seeds = match asked("DIARIST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..asked("DIARIST_CASES").unwrap_or(CASES),
    };
    let whole = seeds.end - seeds.start > 1;
    let played: Vec<_> = stream::iter(seeds)
        .map(play)
        .buffer_unordered(3)
        .collect()
        .await;
    let broken: Vec<&String> = played
        .iter()
        .filter_map(|case| case.as_ref().err())
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
    let (aligned, told) = played
        .iter()
        .flatten()
        .fold((0, 0), |sum, case| (sum.0 + case.0, sum.1 + case.1));
    println!(
        "{} cases, {aligned} requests were views, {told} told of something",
        played.len()
    );
    assert!(
        !whole || (aligned > played.len() && told > played.len() * 5),
        "{aligned} {told}"
    );
}
