//! Writes the prompt for the Reflector and decides which of its attempts is kept. Pure: no clock and no
//! randomness, token counts come in as values; answers are read by [`super::output`].
//!
//! A reflection replaces the whole log, so the bar is higher than for an observation. It must be
//! smaller than what it condenses, it may not lose items of high priority ([`super::retention`]), and
//! of several attempts the smallest wins, not the last ([`attempts`]). System messages never pass
//! through the model. Called by the jobs that reflect.

mod attempts;

use std::collections::BTreeSet;
use std::fmt::Write as _;

pub use attempts::{
    NextAttempt, PartialReflection, ReflectionAttempt, ReflectionAttempts, ReflectionVerdict,
    levels, start_level, verdict_for,
};

use super::observe::add_instruction;
pub use super::output::{ParsedAnswer, read_answer};
use super::prompt::{Prompt, fence, first_chars};
use super::retention::{self, RetentionReport};
use super::system_messages::{self, SystemMessage};

/// The most characters of the list of lost items, and of each line quoted in it.
const MISSING_CHARS: usize = 8_000;
const QUOTED_CHARS: usize = 240;

/// The log to condense: observations for the model, and system messages that code copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReflectionSource {
    /// The observations of all parts in order.
    pub observations: String,
    system_messages: Vec<SystemMessage>,
}

impl ReflectionSource {
    /// Separates the system messages from the texts of `parts`. A day that continues in the next
    /// part is named once.
    pub fn from_parts<T: AsRef<str>>(parts: &[T]) -> Self {
        let mut observations: Vec<String> = Vec::new();
        let mut system_messages = Vec::new();
        let mut day: Option<String> = None;
        for part in parts {
            let (text, messages) = system_messages::split_messages(part.as_ref());
            system_messages.extend(messages);
            for line in text.trim().lines() {
                if line.starts_with("Date:") {
                    if day.as_deref() == Some(line.trim_end()) {
                        continue;
                    }
                    day = Some(line.trim_end().to_owned());
                }
                observations.push(line.to_owned());
            }
        }
        Self {
            observations: observations.join("\n"),
            system_messages,
        }
    }

    /// The text of the reflection: the Reflector's answer with the system messages behind it.
    pub fn with_system_messages(&self, reflected: &str) -> String {
        system_messages::join_messages(reflected, &self.system_messages)
    }

    /// Cuts the log behind the first whole days that have `max_tokens` tokens: the older part is
    /// condensed, the newer part stays as it is. A day is never cut. If the days before the last
    /// one have fewer tokens, everything is condensed.
    ///
    /// `count_tokens` counts the tokens of a day.
    pub fn split_older(&self, max_tokens: u32, count_tokens: impl Fn(&str) -> u32) -> (&str, &str) {
        let log = self.observations.as_str();
        let (mut tokens, mut from) = (0_u32, 0);
        for start in day_starts(log) {
            tokens = tokens.saturating_add(count_tokens(&log[from..start]));
            if tokens >= max_tokens {
                let (older, newer) = log.split_at(start);
                return (older.trim_end(), newer);
            }
            from = start;
        }
        (log, "")
    }
}

/// Where days begin, except at the first line.
fn day_starts(log: &str) -> impl Iterator<Item = usize> {
    memchr::memmem::find_iter(log.as_bytes(), b"\nDate:").map(|at| at + 1)
}

/// Puts the condensed part before the part that stays as it is.
pub fn join_newer(condensed: &str, newer: &str) -> String {
    let condensed = condensed.trim_end();
    if newer.is_empty() {
        return condensed.to_owned();
    }
    format!("{condensed}\n{newer}")
}

/// The list of what an attempt lost of `log`, for the Reflector: the missing items and their lines.
/// Empty if nothing of high priority is missing.
pub fn list_lost_items(log: &str, report: &RetentionReport) -> String {
    let damaged: BTreeSet<usize> = report.damaged_lines().collect();
    let mut list = String::new();
    for (index, line) in log
        .lines()
        .enumerate()
        .filter(|(index, _)| damaged.contains(index))
    {
        let items = report
            .lost
            .iter()
            .filter(|lost| lost.high && lost.line == index);
        let items: Vec<&str> = items
            .filter(|lost| lost.kind != retention::ItemKind::Done)
            .map(|lost| lost.text.as_str())
            .collect();
        let lost_text = match items.as_slice() {
            [] => "that it was done".to_owned(),
            items => items.join(" | "),
        };
        let entry = format!(
            "{lost_text}\n    of: {}\n",
            first_chars(line.trim(), QUOTED_CHARS)
        );
        if list.len() + entry.len() > MISSING_CHARS {
            break;
        }
        list.push_str(&entry);
    }
    list
}

/// The content of one Reflector call.
#[derive(Clone, Copy, Debug)]
pub struct ReflectInput<'a> {
    /// From [`ReflectionSource`].
    pub observations: &'a str,
    /// How hard to condense, 0 to 4; see [`levels`].
    pub level: u8,
    /// A fresh random code for the fence: at least 8 letters and digits.
    pub nonce: &'a str,
    /// Today, as [`super::dates::format_day`] writes it.
    pub now_date: &'a str,
    /// The operator's instruction, added to the rules.
    pub instruction: Option<&'a str>,
    /// What the operator who requested this reflection wants the Reflector to focus on.
    pub focus: Option<&'a str>,
    /// What the last attempt lost, from [`list_lost_items`].
    pub lost_items: Option<&'a str>,
}

/// The prompt that condenses `input`.
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
    if let Some(focus) = input.focus.map(str::trim).filter(|text| !text.is_empty()) {
        let _ = write!(
            user,
            "The operator asks you to look at this above all, and to keep what belongs to it in full: {focus}\n\n"
        );
    }
    if let Some(lost_items) = input.lost_items {
        let _ = write!(
            user,
            "A version you wrote before left out what this list names, each with the beginning of the entry it \
             stood in. All of it has to be in the log that you write now, word for word; shorten other entries \
             instead:\n{}\n\n",
            fence("missing", input.nonce, lost_items)
        );
    }
    user.push_str("Write the condensed log now, all of it, from the first day to the last.");
    Prompt {
        system,
        user,
        ..Prompt::default()
    }
}

/// The tokens that a reflection aims at: 75 % of what it condenses, as published.
pub fn target_tokens(input_tokens: u32) -> u32 {
    // In u64, because three times a count may overflow u32.
    u32::try_from(u64::from(input_tokens) * 3 / 4).unwrap_or(input_tokens)
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
            focus: None,
            lost_items: None,
        }
    }

    #[test]
    fn each_level_has_its_own_reflector_prompt() {
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
    fn targets_do_not_overflow() {
        assert_eq!(target_tokens(0), 0);
        assert_eq!(target_tokens(20_000), 15_000);
        assert_eq!(target_tokens(u32::MAX), 3_221_225_471);
    }

    #[test]
    fn system_messages_are_not_changed_by_the_reflector() {
        let parts = [
            chunk_text("* 🔴 one", &[(4, "Be brief."), (6, "Be kind.")]),
            chunk_text("* 🔴 two", &[] as &[(usize, &str)]),
            chunk_text("", &[(9, "Be brief.")]),
        ];
        let source = ReflectionSource::from_parts(&parts);
        assert_eq!(source.observations, "* 🔴 one\n* 🔴 two");
        assert_snapshot!(source.with_system_messages("* 🔴 one and two"), @r#"
        * 🔴 one and two
        <system-message n="6">
        Be kind.
        </system-message>
        <system-message n="9">
        Be brief.
        </system-message>
        "#);
        let again =
            ReflectionSource::from_parts(&[source.with_system_messages("* 🔴 one and two")]);
        assert_eq!(
            again.with_system_messages("x"),
            source.with_system_messages("x")
        );
    }

    #[test]
    fn the_reflector_prompt_contains_the_focus_and_the_lost_items() {
        let guided = prompt(&ReflectInput {
            focus: Some(" the budget "),
            lost_items: Some("48,211\n    of: * 🔴 rows </missing-k7Qz91ab>\n"),
            ..input(1)
        });
        assert!(
            guided
                .user
                .contains("keep what belongs to it in full: the budget\n")
        );
        assert!(
            guided
                .user
                .contains("<missing-k7Qz91ab>\n48,211\n    of: * 🔴 rows &lt;/missing-")
        );
        assert_eq!(guided.system, prompt(&input(1)).system);
    }

    #[test]
    fn lost_items_are_listed_with_their_observation_line() {
        let log = "* 🔴 Ann has 31 goats and 9 hens\n* 🟡 and 17 cows\n* ✅ Barn painted";
        let report = retention::check_reflection(log, "* 🔴 Ann has goats");
        assert_eq!(
            list_lost_items(log, &report),
            "31 | 9\n    of: * 🔴 Ann has 31 goats and 9 hens\nthat it was done\n    of: * ✅ Barn painted\n"
        );
        assert_eq!(
            list_lost_items(log, &retention::check_reflection(log, log)),
            ""
        );
    }

    #[test]
    fn only_whole_days_are_condensed_and_the_newest_may_stay() {
        let log = ReflectionSource::from_parts(&[
            "Date: Mar 1, 2026\n* 🔴 a\n* 🔴 b\nDate: Mar 2, 2026\n* 🔴 c",
            "Date: Mar 2, 2026\n* 🔴 d\nDate: Mar 3, 2026\n* 🔴 e",
        ]);
        // A day that continues in the next part is named once.
        assert_eq!(log.observations.matches("Date:").count(), 3);
        let lines = |day: &str| u32::try_from(day.lines().count()).expect("few");
        let cut = |point| log.split_older(point, lines);
        let (first, rest) = cut(1);
        assert_eq!(first, "Date: Mar 1, 2026\n* 🔴 a\n* 🔴 b");
        assert!(rest.starts_with("Date: Mar 2, 2026\n* 🔴 c\n* 🔴 d\n"));
        assert_eq!(join_newer(first, rest), log.observations);
        // The point is inside Mar 2, so all of it is condensed.
        for point in [4, 5, 6] {
            assert_eq!(cut(point).1, "Date: Mar 3, 2026\n* 🔴 e", "{point}");
        }
        // Nothing behind the beginning of the last day stays as it is.
        for point in [7, 8, 100] {
            assert_eq!(cut(point), (log.observations.as_str(), ""), "{point}");
        }
        let one = ReflectionSource::from_parts(&["* 🔴 without a day"]);
        assert_eq!(one.split_older(0, lines), ("* 🔴 without a day", ""));
    }
}
