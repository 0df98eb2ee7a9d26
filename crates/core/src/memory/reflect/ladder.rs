//! Which attempt at a reflection is asked for next, and which one is kept. Pure: attempts come in judged.

use std::ops::RangeInclusive;

/// The level a reflection that somebody asked for starts with, as published.
const ASKED: u8 = 0;
/// The level any other one starts with.
const START: u8 = 1;
/// Models of this family condense too little at level 1, as published.
const FAINT: &str = "gemini-2.5-flash";
const START_OF_FAINT: u8 = 2;
/// The highest level.
const LAST: u8 = 4;

/// How often one reflection is asked for again with the list of what it lost. Ours: each is a call of
/// the size of the log, and what is still missing then can be put back by code.
const REMINDERS: u8 = 2;

/// The level to start with.
pub fn start_level(model: &str, asked: bool) -> u8 {
    if asked {
        ASKED
    } else if model.to_lowercase().contains(FAINT) {
        START_OF_FAINT
    } else {
        START
    }
}

/// The levels to try in order, from `start`; each is asked for only if the one before was not good
/// enough.
pub fn levels(start: u8) -> RangeInclusive<u8> {
    let start = start.min(LAST);
    start..=LAST.min(start + 3)
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

/// Judges an attempt of `candidate` tokens at condensing `input` tokens below `target`. All three count
/// the same kind of text (with or without system messages).
pub fn accept(candidate: u32, input: u32, target: u32) -> Verdict {
    if candidate >= input {
        Verdict::Rejected
    } else if candidate < target {
        Verdict::GoodEnough
    } else {
        Verdict::Smaller
    }
}

/// An answer of the Reflector, judged.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The whole log that would be sent.
    pub text: String,
    /// Its tokens.
    pub tokens: u32,
    /// The share of the items of high priority that it lost, 0 to 1.
    pub loss: f64,
    /// The same with the lines that lost something put back, where any did: text and tokens.
    pub mended: Option<(String, u32)>,
    /// What to remind the Reflector of; empty where nothing of high priority is missing.
    pub missing: String,
    /// The same with as many of those lines put back as there is room for, where there is none for all
    /// and something may be lost for once.
    pub partial: Option<Partial>,
}

/// A log that lost more than it may, since otherwise it would not be smaller.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// The whole log that would be sent.
    pub text: String,
    /// Its tokens.
    pub tokens: u32,
    /// The share of the items of high priority that it lost, 0 to 1.
    pub loss: f64,
    /// It is longer than there is room for, with nothing put back.
    pub beyond: bool,
}

/// What to ask for next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How hard to condense.
    pub level: u8,
    /// What the last answer lost, if this is to remind of it.
    pub missing: Option<String>,
}

/// The attempts at one reflection: levels in order, reminders between them, the best answer so far.
#[derive(Clone, Debug)]
pub struct Ladder {
    next: Option<Ask>,
    last: u8,
    reminders: u8,
    input: u32,
    target: u32,
    max_loss: f64,
    best: Option<(u32, String)>,
    partial: Option<Partial>,
}

impl Ladder {
    /// No attempt yet at condensing `input` tokens to `target`, where no more than `max_loss` of the
    /// items of high priority may be lost.
    pub fn new(start: u8, input: u32, target: u32, max_loss: f64) -> Self {
        let levels = levels(start);
        Self {
            next: Some(Ask {
                level: *levels.start(),
                missing: None,
            }),
            last: *levels.end(),
            reminders: REMINDERS,
            input,
            target,
            max_loss,
            best: None,
            partial: None,
        }
    }

    /// What to ask for; `None` when enough was asked.
    pub fn ask(&self) -> Option<&Ask> {
        self.next.as_ref()
    }

    /// The answer to the last question was none: empty, a loop, a refusal.
    pub fn unusable(&mut self) {
        self.climb();
    }

    /// No more questions.
    pub fn stop(&mut self) {
        self.next = None;
    }

    /// Takes the answer to the last question.
    ///
    /// What lost too much is never kept as it is: the Reflector is reminded, and if that does not help,
    /// what is missing is put back. What lost little is mended too, where that costs nothing.
    pub fn offer(&mut self, attempt: Attempt) {
        if let Some(partial) = attempt.partial {
            self.keep_partial(partial);
        }
        let faithful = attempt.loss <= self.max_loss;
        // Who did not shorten it is told to shorten it more, and of what is missing only later.
        let shorter = accept(attempt.tokens, self.input, self.target) != Verdict::Rejected;
        let mended = attempt
            .mended
            .filter(|(_, tokens)| !faithful || *tokens < self.target);
        let candidate = mended.or_else(|| faithful.then_some((attempt.text, attempt.tokens)));
        let verdict = candidate.map_or(Verdict::Rejected, |(text, tokens)| self.keep(text, tokens));
        if !faithful && shorter && self.reminders > 0 && !attempt.missing.is_empty() {
            self.reminders -= 1;
            if let Some(ask) = &mut self.next {
                ask.missing = Some(attempt.missing);
            }
        } else if verdict == Verdict::GoodEnough {
            self.next = None;
        } else {
            self.climb();
        }
    }

    fn keep(&mut self, text: String, tokens: u32) -> Verdict {
        let verdict = accept(tokens, self.input, self.target);
        let better = self.best.as_ref().is_none_or(|(best, _)| tokens < *best);
        if verdict != Verdict::Rejected && better {
            self.best = Some((tokens, text));
        }
        verdict
    }

    /// What there is room for comes before what there is not; of those, what lost less.
    fn keep_partial(&mut self, partial: Partial) {
        if accept(partial.tokens, self.input, self.target) == Verdict::Rejected {
            return;
        }
        let rank = |partial: &Partial| (partial.beyond, partial.loss);
        let better = self
            .partial
            .as_ref()
            .is_none_or(|best| rank(&partial) < rank(best));
        if better {
            self.partial = Some(partial);
        }
    }

    fn climb(&mut self) {
        let level = self.next.as_ref().map_or(self.last, |ask| ask.level);
        self.next = (level < self.last).then_some(Ask {
            level: level + 1,
            missing: None,
        });
    }

    /// The smallest answer that is smaller than what it condenses and lost no more than it may, and its
    /// tokens.
    pub fn best(&mut self) -> Option<(String, u32)> {
        self.best.take().map(|(tokens, text)| (text, tokens))
    }

    /// Where there is none: the answer that is smaller and lost least, with what there was room for put
    /// back.
    pub fn partial(&mut self) -> Option<Partial> {
        self.partial.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder() -> Ladder {
        Ladder::new(1, 1_000, 750, 0.05)
    }

    fn faithful(text: &str, tokens: u32) -> Attempt {
        Attempt {
            text: text.to_owned(),
            tokens,
            loss: 0.0,
            mended: None,
            missing: String::new(),
            partial: None,
        }
    }

    fn lossy(text: &str, tokens: u32, mended: u32) -> Attempt {
        Attempt {
            loss: 0.2,
            mended: Some((format!("{text}, mended"), mended)),
            missing: format!("what {text} lacks"),
            ..faithful(text, tokens)
        }
    }

    fn asked(ladder: &Ladder) -> Option<(u8, Option<&str>)> {
        let ask = ladder.ask()?;
        Some((ask.level, ask.missing.as_deref()))
    }

    #[test]
    fn where_it_starts_and_where_it_ends() {
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
    fn strictly_smaller_or_not_at_all() {
        // Below the target is good, at the target not yet, at the input is nothing.
        assert_eq!(accept(749, 1_000, 750), Verdict::GoodEnough);
        assert_eq!(accept(750, 1_000, 750), Verdict::Smaller);
        assert_eq!(accept(751, 1_000, 750), Verdict::Smaller);
        assert_eq!(accept(1_000, 1_000, 750), Verdict::Rejected);
        assert_eq!(accept(0, 0, 0), Verdict::Rejected);
    }

    #[test]
    fn the_best_attempt_is_kept_not_the_last() {
        let mut ladder = ladder();
        ladder.offer(faithful("as long", 1_000));
        assert_eq!(asked(&ladder), Some((2, None)));
        ladder.offer(faithful("small", 800));
        ladder.offer(faithful("larger", 900));
        assert_eq!(asked(&ladder), Some((4, None)));
        ladder.unusable();
        assert_eq!(asked(&ladder), None);
        assert_eq!(ladder.best(), Some(("small".into(), 800)));
    }

    #[test]
    fn what_is_good_enough_ends_it() {
        let mut ladder = ladder();
        ladder.unusable();
        ladder.offer(faithful("good", 749));
        assert_eq!(asked(&ladder), None);
        assert_eq!(ladder.best(), Some(("good".into(), 749)));
    }

    #[test]
    fn whoever_loses_too_much_is_reminded_at_the_same_level() {
        let mut ladder = ladder();
        ladder.offer(lossy("first", 500, 800));
        assert_eq!(asked(&ladder), Some((1, Some("what first lacks"))));
        ladder.offer(faithful("second", 700));
        assert_eq!(asked(&ladder), None);
        assert_eq!(ladder.best(), Some(("second".into(), 700)));
    }

    #[test]
    fn what_stays_missing_is_put_back_and_never_sent_without() {
        let mut ladder = ladder();
        ladder.offer(lossy("one", 100, 990));
        ladder.offer(lossy("two", 100, 980));
        assert_eq!(
            asked(&ladder),
            Some((1, Some("what two lacks"))),
            "reminded twice"
        );
        ladder.offer(lossy("three", 100, 970));
        assert_eq!(asked(&ladder), Some((2, None)), "and no more");
        ladder.offer(lossy("four", 100, 740));
        assert_eq!(asked(&ladder), None, "mended it is good enough");
        assert_eq!(ladder.best(), Some(("four, mended".into(), 740)));

        let mut hopeless = self::ladder();
        while hopeless.ask().is_some() {
            hopeless.offer(lossy("gutted", 100, 1_000));
        }
        assert_eq!(hopeless.best(), None);
    }

    #[test]
    fn a_small_loss_is_mended_where_that_costs_nothing() {
        let little = |mended| Attempt {
            loss: 0.04,
            ..lossy("fine", 700, mended)
        };
        let mut ladder = ladder();
        ladder.offer(little(740));
        assert_eq!(ladder.best(), Some(("fine, mended".into(), 740)));
        let mut ladder = self::ladder();
        ladder.offer(little(800));
        assert_eq!(ladder.best(), Some(("fine".into(), 700)));
    }

    #[test]
    fn what_is_not_shorter_is_not_worth_a_reminder() {
        let mut ladder = ladder();
        ladder.offer(lossy("long", 1_000, 1_100));
        assert_eq!(asked(&ladder), Some((2, None)));
    }

    #[test]
    fn it_always_ends() {
        let mut ladder = Ladder::new(0, 1_000, 750, 0.0);
        let mut calls = 0;
        while ladder.ask().is_some() {
            ladder.offer(lossy("x", 100, 990));
            calls += 1;
        }
        assert_eq!(calls, 6, "four levels and two reminders");
    }

    #[test]
    fn where_nothing_else_is_smaller_the_least_loss_is_kept() {
        let with = |tokens, loss| Attempt {
            partial: Some(Partial {
                text: format!("{tokens} {loss}"),
                tokens,
                loss,
                beyond: tokens > 900,
            }),
            ..lossy("gutted", 100, 1_000)
        };
        let mut ladder = ladder();
        // Too long, at the most there is room for, with less lost, with more lost, and no smaller at all.
        for (tokens, loss) in [
            (901, 0.1),
            (900, 0.3),
            (700, 0.2),
            (600, 0.25),
            (1_000, 0.0),
        ] {
            ladder.offer(with(tokens, loss));
        }
        assert_eq!(ladder.best(), None);
        assert_eq!(ladder.partial().map(|partial| partial.tokens), Some(700));
        assert_eq!(ladder.partial(), None);
    }
}
