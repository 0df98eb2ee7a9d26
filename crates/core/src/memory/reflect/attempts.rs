//! Decides which attempt at a reflection comes next and which one is kept. Pure: attempts come with
//! their measurements.

use std::ops::RangeInclusive;

/// The first level of a reflection that an operator requested, as published.
const REQUESTED_LEVEL: u8 = 0;
/// The first level of any other reflection.
const DEFAULT_LEVEL: u8 = 1;
/// Models of this family condense too little at level 1, as published.
const WEAK_MODEL: &str = "gemini-2.5-flash";
const WEAK_MODEL_LEVEL: u8 = 2;
/// The highest level.
const MAX_LEVEL: u8 = 4;

/// How often a level is repeated with the list of what was lost. Our own number: each call has the size
/// of the log, and code can restore what is still missing after that.
const MAX_REMINDERS: u8 = 2;

/// The first level for this model.
pub fn start_level(model: &str, requested: bool) -> u8 {
    if requested {
        REQUESTED_LEVEL
    } else if model.to_lowercase().contains(WEAK_MODEL) {
        WEAK_MODEL_LEVEL
    } else {
        DEFAULT_LEVEL
    }
}

/// The levels to try in order, from `start`. A level is tried only if the one before was not good
/// enough.
pub fn levels(start: u8) -> RangeInclusive<u8> {
    let start = start.min(MAX_LEVEL);
    start..=MAX_LEVEL.min(start + 3)
}

/// What to do with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReflectionVerdict {
    /// Keep it and stop.
    GoodEnough,
    /// Keep it if no smaller one comes, and try the next level.
    Smaller,
    /// It is not smaller than its input, so it is useless.
    Rejected,
}

/// Judges an attempt of `candidate` tokens at condensing `input` tokens to less than `target`. All
/// three count the same kind of text (with or without system messages).
pub fn verdict_for(candidate: u32, input: u32, target: u32) -> ReflectionVerdict {
    if candidate >= input {
        ReflectionVerdict::Rejected
    } else if candidate < target {
        ReflectionVerdict::GoodEnough
    } else {
        ReflectionVerdict::Smaller
    }
}

/// An answer of the Reflector with its measurements.
#[derive(Clone, Debug)]
pub struct ReflectionAttempt {
    /// The whole log that would be sent.
    pub text: String,
    /// Its tokens.
    pub tokens: u32,
    /// The share of items of high priority that it lost, 0 to 1.
    pub loss: f64,
    /// The text and tokens after the damaged lines were restored; `None` if there were none.
    pub restored: Option<(String, u32)>,
    /// What to remind the Reflector of; empty if nothing of high priority is missing.
    pub lost_items: String,
    /// The log with as many damaged lines restored as there is room for. Only if there is no room
    /// for all, and a greater loss is allowed as an exception.
    pub partial: Option<PartialReflection>,
}

/// A log that lost more than allowed, because it would not be smaller otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialReflection {
    /// The whole log that would be sent.
    pub text: String,
    /// Its tokens.
    pub tokens: u32,
    /// The share of items of high priority that it lost, 0 to 1.
    pub loss: f64,
    /// Whether it exceeds the room even with nothing restored.
    pub over_limit: bool,
}

/// The next attempt to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextAttempt {
    /// How hard to condense.
    pub level: u8,
    /// What the last answer lost, if the Reflector is to be reminded of it.
    pub lost_items: Option<String>,
}

/// The attempts at one reflection: levels in order, reminders between them, the best answer so far.
#[derive(Clone, Debug)]
pub struct ReflectionAttempts {
    next: Option<NextAttempt>,
    max_level: u8,
    reminders: u8,
    input: u32,
    target: u32,
    max_loss: f64,
    best: Option<(u32, String)>,
    partial: Option<PartialReflection>,
}

impl ReflectionAttempts {
    /// Begins the attempts at condensing `input` tokens to `target`, with at most `max_loss` of the
    /// items of high priority lost.
    pub fn new(start: u8, input: u32, target: u32, max_loss: f64) -> Self {
        let levels = levels(start);
        Self {
            next: Some(NextAttempt {
                level: *levels.start(),
                lost_items: None,
            }),
            max_level: *levels.end(),
            reminders: MAX_REMINDERS,
            input,
            target,
            max_loss,
            best: None,
            partial: None,
        }
    }

    /// The next attempt; `None` when no more should be made.
    pub fn next_attempt(&self) -> Option<&NextAttempt> {
        self.next.as_ref()
    }

    /// Records that the last answer was unusable: empty, a loop, a refusal.
    pub fn answer_unusable(&mut self) {
        self.next_level();
    }

    /// Makes no more attempts.
    pub fn stop(&mut self) {
        self.next = None;
    }

    /// Records the answer to the last attempt.
    ///
    /// An answer that lost too much is never kept as it is: the Reflector is reminded, and if that
    /// does not help, the damaged lines are restored. If little was lost, lines are restored only
    /// where the result stays below the target.
    pub fn add_attempt(&mut self, attempt: ReflectionAttempt) {
        if let Some(partial) = attempt.partial {
            self.keep_partial_if_better(partial);
        }
        let retained_enough = attempt.loss <= self.max_loss;
        // If the answer is not shorter, the next level comes first and reminders later.
        let is_shorter =
            verdict_for(attempt.tokens, self.input, self.target) != ReflectionVerdict::Rejected;
        let restored = attempt
            .restored
            .filter(|(_, tokens)| !retained_enough || *tokens < self.target);
        let candidate =
            restored.or_else(|| retained_enough.then_some((attempt.text, attempt.tokens)));
        let verdict = candidate.map_or(ReflectionVerdict::Rejected, |(text, tokens)| {
            self.keep_if_better(text, tokens)
        });
        if !retained_enough && is_shorter && self.reminders > 0 && !attempt.lost_items.is_empty() {
            self.reminders -= 1;
            if let Some(next) = &mut self.next {
                next.lost_items = Some(attempt.lost_items);
            }
        } else if verdict == ReflectionVerdict::GoodEnough {
            self.next = None;
        } else {
            self.next_level();
        }
    }

    fn keep_if_better(&mut self, text: String, tokens: u32) -> ReflectionVerdict {
        let verdict = verdict_for(tokens, self.input, self.target);
        let better = self.best.as_ref().is_none_or(|(best, _)| tokens < *best);
        if verdict != ReflectionVerdict::Rejected && better {
            self.best = Some((tokens, text));
        }
        verdict
    }

    /// An attempt that fits the room comes before one that does not; of equal ones, the one that
    /// lost less.
    fn keep_partial_if_better(&mut self, partial: PartialReflection) {
        if verdict_for(partial.tokens, self.input, self.target) == ReflectionVerdict::Rejected {
            return;
        }
        let rank = |partial: &PartialReflection| (partial.over_limit, partial.loss);
        let better = self
            .partial
            .as_ref()
            .is_none_or(|best| rank(&partial) < rank(best));
        if better {
            self.partial = Some(partial);
        }
    }

    fn next_level(&mut self) {
        let level = self.next.as_ref().map_or(self.max_level, |next| next.level);
        self.next = (level < self.max_level).then_some(NextAttempt {
            level: level + 1,
            lost_items: None,
        });
    }

    /// The smallest answer that is smaller than its input and lost no more than allowed, with its
    /// tokens.
    pub fn take_best(&mut self) -> Option<(String, u32)> {
        self.best.take().map(|(tokens, text)| (text, tokens))
    }

    /// If there is none: the smaller answer that lost least, with lines restored as far as there
    /// was room.
    pub fn take_partial(&mut self) -> Option<PartialReflection> {
        self.partial.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder() -> ReflectionAttempts {
        ReflectionAttempts::new(1, 1_000, 750, 0.05)
    }

    fn faithful(text: &str, tokens: u32) -> ReflectionAttempt {
        ReflectionAttempt {
            text: text.to_owned(),
            tokens,
            loss: 0.0,
            restored: None,
            lost_items: String::new(),
            partial: None,
        }
    }

    fn lossy(text: &str, tokens: u32, mended: u32) -> ReflectionAttempt {
        ReflectionAttempt {
            loss: 0.2,
            restored: Some((format!("{text}, mended"), mended)),
            lost_items: format!("what {text} lacks"),
            ..faithful(text, tokens)
        }
    }

    fn next_of(ladder: &ReflectionAttempts) -> Option<(u8, Option<&str>)> {
        let ask = ladder.next_attempt()?;
        Some((ask.level, ask.lost_items.as_deref()))
    }

    #[test]
    fn the_first_level_depends_on_the_model_and_limits_the_last() {
        assert_eq!(start_level("gpt-5-mini", false), 1);
        assert_eq!(start_level("google/gemini-2.5-flash", false), 2);
        assert_eq!(start_level("Gemini-2.5-Flash-lite-preview", false), 2);
        assert_eq!(start_level("gemini-2.5-pro", false), 1);
        assert_eq!(start_level("google/gemini-2.5-flash", true), 0);
        for (start, end) in [(0, 3), (1, 4), (2, 4), (3, 4), (4, 4), (9, 4)] {
            assert_eq!(levels(start), start.min(4)..=end);
        }
    }

    #[test]
    fn a_reflection_that_is_not_smaller_is_rejected() {
        // Below the target is good enough, at the target only smaller, at the input useless.
        assert_eq!(verdict_for(749, 1_000, 750), ReflectionVerdict::GoodEnough);
        assert_eq!(verdict_for(750, 1_000, 750), ReflectionVerdict::Smaller);
        assert_eq!(verdict_for(751, 1_000, 750), ReflectionVerdict::Smaller);
        assert_eq!(verdict_for(1_000, 1_000, 750), ReflectionVerdict::Rejected);
        assert_eq!(verdict_for(0, 0, 0), ReflectionVerdict::Rejected);
    }

    #[test]
    fn the_best_attempt_is_kept_not_the_last() {
        let mut ladder = ladder();
        ladder.add_attempt(faithful("as long", 1_000));
        assert_eq!(next_of(&ladder), Some((2, None)));
        ladder.add_attempt(faithful("small", 800));
        ladder.add_attempt(faithful("larger", 900));
        assert_eq!(next_of(&ladder), Some((4, None)));
        ladder.answer_unusable();
        assert_eq!(next_of(&ladder), None);
        assert_eq!(ladder.take_best(), Some(("small".into(), 800)));
    }

    #[test]
    fn a_good_enough_attempt_ends_the_reflection() {
        let mut ladder = ladder();
        ladder.answer_unusable();
        ladder.add_attempt(faithful("good", 749));
        assert_eq!(next_of(&ladder), None);
        assert_eq!(ladder.take_best(), Some(("good".into(), 749)));
    }

    #[test]
    fn an_attempt_that_loses_too_much_is_repeated_with_a_reminder() {
        let mut ladder = ladder();
        ladder.add_attempt(lossy("first", 500, 800));
        assert_eq!(next_of(&ladder), Some((1, Some("what first lacks"))));
        ladder.add_attempt(faithful("second", 700));
        assert_eq!(next_of(&ladder), None);
        assert_eq!(ladder.take_best(), Some(("second".into(), 700)));
    }

    #[test]
    fn items_lost_after_two_reminders_are_restored_or_the_attempt_is_rejected() {
        let mut ladder = ladder();
        ladder.add_attempt(lossy("one", 100, 990));
        ladder.add_attempt(lossy("two", 100, 980));
        assert_eq!(
            next_of(&ladder),
            Some((1, Some("what two lacks"))),
            "reminded twice"
        );
        ladder.add_attempt(lossy("three", 100, 970));
        assert_eq!(next_of(&ladder), Some((2, None)), "and no more");
        ladder.add_attempt(lossy("four", 100, 740));
        assert_eq!(next_of(&ladder), None, "mended it is good enough");
        assert_eq!(ladder.take_best(), Some(("four, mended".into(), 740)));

        let mut hopeless = self::ladder();
        while hopeless.next_attempt().is_some() {
            hopeless.add_attempt(lossy("gutted", 100, 1_000));
        }
        assert_eq!(hopeless.take_best(), None);
    }

    #[test]
    fn a_small_loss_is_restored_if_the_attempt_stays_good_enough() {
        let little = |mended| ReflectionAttempt {
            loss: 0.04,
            ..lossy("fine", 700, mended)
        };
        let mut ladder = ladder();
        ladder.add_attempt(little(740));
        assert_eq!(ladder.take_best(), Some(("fine, mended".into(), 740)));
        let mut ladder = self::ladder();
        ladder.add_attempt(little(800));
        assert_eq!(ladder.take_best(), Some(("fine".into(), 700)));
    }

    #[test]
    fn an_attempt_that_is_not_shorter_gets_no_reminder() {
        let mut ladder = ladder();
        ladder.add_attempt(lossy("long", 1_000, 1_100));
        assert_eq!(next_of(&ladder), Some((2, None)));
    }

    #[test]
    fn the_attempts_end_after_four_levels_and_two_reminders() {
        let mut ladder = ReflectionAttempts::new(0, 1_000, 750, 0.0);
        let mut calls = 0;
        while ladder.next_attempt().is_some() {
            ladder.add_attempt(lossy("x", 100, 990));
            calls += 1;
        }
        assert_eq!(calls, 6, "four levels and two reminders");
    }

    #[test]
    fn without_a_usable_attempt_the_partial_one_with_least_loss_is_kept() {
        let with = |tokens, loss| ReflectionAttempt {
            partial: Some(PartialReflection {
                text: format!("{tokens} {loss}"),
                tokens,
                loss,
                over_limit: tokens > 900,
            }),
            ..lossy("gutted", 100, 1_000)
        };
        let mut ladder = ladder();
        // Over the limit; exactly at the limit; with less loss; with more loss; not smaller at
        // all.
        for (tokens, loss) in [
            (901, 0.1),
            (900, 0.3),
            (700, 0.2),
            (600, 0.25),
            (1_000, 0.0),
        ] {
            ladder.add_attempt(with(tokens, loss));
        }
        assert_eq!(ladder.take_best(), None);
        assert_eq!(
            ladder.take_partial().map(|partial| partial.tokens),
            Some(700)
        );
        assert_eq!(ladder.take_partial(), None);
    }
}
