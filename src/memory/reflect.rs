//! What the Reflector is asked, and which of its attempts is kept. Pure: no clock, no randomness,
//! token counts come in as values; answers are read by [`super::output`].
//!
//! A reflection replaces the whole log, so the bar is higher than for an observation: it must be
//! strictly smaller than what it condenses, and where several attempts are, the smallest wins, not
//! the last. System messages never pass through the model. Called by the jobs that reflect.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::observe::add_instruction;
pub use super::output::{Outcome, read};
use super::prompt::{Prompt, fence};
use super::verbatim::{self, Verbatim};

/// The level a reflection that nobody asked for starts with, as published.
pub const START_LEVEL: u8 = 1;
/// The highest level.
const LAST_LEVEL: u8 = 4;

/// What is condensed: the observations for the model, the system messages for nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The observations of all parts in order: [`ReflectInput::observations`].
    pub observations: String,
    verbatim: Vec<Verbatim>,
}

impl Source {
    /// Takes the system messages out of the texts of `parts`.
    pub fn of<T: AsRef<str>>(parts: &[T]) -> Self {
        let mut observations = Vec::new();
        let mut verbatim = Vec::new();
        for part in parts {
            let (text, messages) = verbatim::split(part.as_ref());
            observations.push(text.trim().to_owned());
            verbatim.extend(messages);
        }
        observations.retain(|text| !text.is_empty());
        Self {
            observations: observations.join("\n"),
            verbatim,
        }
    }

    /// The text of the reflection: what the Reflector wrote and the system messages behind it.
    pub fn restore(&self, reflected: &str) -> String {
        verbatim::join(reflected, &self.verbatim)
    }
}

/// What one call of the Reflector is about.
#[derive(Clone, Copy, Debug)]
pub struct ReflectInput<'a> {
    /// From [`Source::of`].
    pub observations: &'a str,
    /// How hard to condense, 0 to 4; see [`levels`].
    pub level: u8,
    /// A fresh random code for the fence: letters and digits, at least 8.
    pub nonce: &'a str,
    /// Today, as [`super::dates::day`] writes it.
    pub now_date: &'a str,
    /// What the operator wants kept in mind besides the rules.
    pub instruction: Option<&'a str>,
}

/// The call that condenses `input`.
pub fn prompt(input: &ReflectInput<'_>) -> Prompt {
    let mut system = [
        include_str!("prompts/reflector.md"),
        include_str!("prompts/rules.md"),
        include_str!("prompts/format.md"),
    ]
    .join("\n");
    add_instruction(&mut system, input.instruction);

    let mut user = format!(
        "Today is {}. The code is {}.\n\nThe log to condense:\n{}\n\n",
        input.now_date,
        input.nonce,
        fence("history", input.nonce, input.observations)
    );
    let guidance = guidance(input.level);
    if !guidance.is_empty() {
        let _ = write!(user, "{guidance}\n\n");
    }
    user.push_str("Write the condensed log now, all of it, from the first day to the last.");
    Prompt {
        system,
        user,
        ..Prompt::default()
    }
}

/// The levels to try in order, from `start`; each is asked for only if the one before was not good
/// enough.
pub fn levels(start: u8) -> RangeInclusive<u8> {
    let start = start.min(LAST_LEVEL);
    start..=LAST_LEVEL.min(start + 3)
}

/// The tokens a reflection aims at: 75 % of what it condenses, as published.
pub fn target(input_tokens: u32) -> u32 {
    // In u64: three times a count may not fit.
    u32::try_from(u64::from(input_tokens) * 3 / 4).unwrap_or(input_tokens)
}

/// What to do with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep it and stop.
    GoodEnough,
    /// Keep it if nothing smaller comes, and try the next level.
    Smaller,
    /// Not smaller than what it condenses: worth nothing.
    Rejected,
}

/// Judges an attempt of `candidate` tokens at condensing `input` tokens to `target`. All three count
/// the same kind of text (with or without system messages).
pub fn accept(candidate: u32, input: u32, target: u32) -> Verdict {
    if candidate >= input {
        Verdict::Rejected
    } else if candidate <= target {
        Verdict::GoodEnough
    } else {
        Verdict::Smaller
    }
}

/// The attempts at one reflection; keeps the best.
#[derive(Clone, Debug)]
pub struct Attempts {
    input: u32,
    target: u32,
    best: Option<(u32, String)>,
}

impl Attempts {
    /// No attempt yet at condensing `input` tokens to `target`.
    pub fn new(input: u32, target: u32) -> Self {
        Self {
            input,
            target,
            best: None,
        }
    }

    /// Takes an attempt of `tokens`; [`Verdict::GoodEnough`] ends the ladder.
    pub fn offer(&mut self, text: String, tokens: u32) -> Verdict {
        let verdict = accept(tokens, self.input, self.target);
        let better = self.best.as_ref().is_none_or(|(best, _)| tokens < *best);
        if verdict != Verdict::Rejected && better {
            self.best = Some((tokens, text));
        }
        verdict
    }

    /// The smallest attempt and its tokens; `None` if none was smaller than what it condenses.
    pub fn into_best(self) -> Option<(String, u32)> {
        self.best.map(|(tokens, text)| (text, tokens))
    }
}

fn guidance(level: u8) -> &'static str {
    match level {
        0 => "",
        1 => {
            "Aim at about eight tenths of the length: tighten the older part, merge what is said more than once, leave the newest part nearly as it is."
        }
        2 => {
            "Aim at about six tenths of the length: one entry for each file, module or subject instead of one for each step; drop what another entry already implies."
        }
        3 => {
            "Aim at about four tenths of the length: turn the older half or more into a few dense entries for each day; drop how things were done and what has been replaced since; keep what came of it."
        }
        _ => {
            "Aim at about two tenths of the length: outcomes only, one or two lines for an old subject, at most three dates for what lies furthest back. Names, decisions, open questions and every ✅ stay."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::render::chunk_text;
    use insta::assert_snapshot;

    fn input(level: u8) -> ReflectInput<'static> {
        ReflectInput {
            observations: "Date: Mar 4, 2026\n* 🔴 (14:05) hi </history-k7Qz91ab>",
            level,
            nonce: "k7Qz91ab",
            now_date: "Mar 5, 2026",
            instruction: None,
        }
    }

    #[test]
    fn the_call_names_its_level() {
        assert_snapshot!(prompt(&input(1)).user, @"
        Today is Mar 5, 2026. The code is k7Qz91ab.

        The log to condense:
        <history-k7Qz91ab>
        Date: Mar 4, 2026
        * 🔴 (14:05) hi &lt;/history-k7Qz91ab>
        </history-k7Qz91ab>

        Aim at about eight tenths of the length: tighten the older part, merge what is said more than once, leave the newest part nearly as it is.

        Write the condensed log now, all of it, from the first day to the last.
        ");
        let users: Vec<String> = (0..=4).map(|level| prompt(&input(level)).user).collect();
        for (index, user) in users.iter().enumerate() {
            assert!(users[index + 1..].iter().all(|other| other != user));
        }
        assert_eq!(prompt(&input(0)).system, prompt(&input(4)).system);
        assert!(!prompt(&input(0)).system.contains("<current-task>"));
    }

    #[test]
    fn the_ladder_ends() {
        assert_eq!(levels(START_LEVEL).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(levels(0).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(levels(200).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn the_best_attempt_is_kept_not_the_last() {
        let mut attempts = Attempts::new(1_000, target(1_000));
        assert_eq!(attempts.offer("as long".into(), 1_000), Verdict::Rejected);
        assert_eq!(attempts.clone().into_best(), None);
        assert_eq!(attempts.offer("small".into(), 800), Verdict::Smaller);
        assert_eq!(attempts.offer("larger".into(), 900), Verdict::Smaller);
        assert_eq!(attempts.clone().into_best(), Some(("small".into(), 800)));
        assert_eq!(attempts.offer("good".into(), 750), Verdict::GoodEnough);
        assert_eq!(attempts.into_best(), Some(("good".into(), 750)));
    }

    #[test]
    fn targets_do_not_overflow() {
        assert_eq!(target(0), 0);
        assert_eq!(target(20_000), 15_000);
        assert_eq!(target(u32::MAX), 3_221_225_471);
        assert_eq!(accept(0, 0, 0), Verdict::Rejected);
    }

    #[test]
    fn system_messages_pass_by_the_reflector() {
        let parts = [
            chunk_text("* 🔴 one", &[(4, "Be brief."), (6, "Be kind.")]),
            chunk_text("* 🔴 two", &[] as &[(usize, &str)]),
            chunk_text("", &[(9, "Be brief.")]),
        ];
        let source = Source::of(&parts);
        assert_eq!(source.observations, "* 🔴 one\n* 🔴 two");
        assert_snapshot!(source.restore("* 🔴 one and two"), @r#"
        * 🔴 one and two
        <system-message n="6">
        Be kind.
        </system-message>
        <system-message n="9">
        Be brief.
        </system-message>
        "#);
        let again = Source::of(&[source.restore("* 🔴 one and two")]);
        assert_eq!(again.restore("x"), source.restore("x"));
    }
}
