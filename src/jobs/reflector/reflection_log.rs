//! The log that a Reflector condenses: what it reads, what an answer to it is worth, and how code shortens it.
//! Text only: no model is called here. Called by [`super::Reflector`].

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::memory::reflect::{
    self, ParsedAnswer, PartialReflection, ReflectionAttempt, ReflectionSource,
};
use crate::memory::system_messages::split_messages;
use crate::memory::{Part, code_reflection, render, retention};
use crate::tokens::TokenCounter;

/// The log that replaces what was condensed.
pub(super) struct ChosenLog {
    pub(super) text: String,
    pub(super) tokens: u32,
    /// The share of high-priority items that it lost, if that may be more than allowed.
    pub(super) loss: Option<f64>,
    /// Whether code wrote it.
    pub(super) by_code: bool,
}

/// For a log over its budget. Losing something is better than not condensing at all.
#[derive(Clone, Copy)]
pub(super) struct OverBudget {
    /// The hard limit of the log, in tokens.
    pub(super) limit: u32,
    /// The size to reach if something is lost: well below the limit, or else the next chunk would
    /// cost something again.
    pub(super) target: u32,
}

/// The log to condense, and the measure for answers.
pub(super) struct ReflectionLog {
    pub(super) parts: Vec<Part>,
    pub(super) source: ReflectionSource,
    /// The whole days that the Reflector reads.
    pub(super) older: String,
    /// The days that stay as they are.
    newer: String,
    items: retention::RetentionSource,
    pub(super) tokens: u32,
    pub(super) target: u32,
    over_budget: Option<OverBudget>,
    counter: Arc<dyn TokenCounter>,
}

impl ReflectionLog {
    /// All of `parts`, or only their days up to `until` tokens.
    pub(super) fn new(
        parts: Vec<Part>,
        until: Option<u32>,
        over_budget: Option<OverBudget>,
        counter: Arc<dyn TokenCounter>,
    ) -> Self {
        let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
        let source = ReflectionSource::from_parts(&texts);
        let count = |log: &str| render::max_tokens(log, |text| counter.count(text));
        // Counted as one part, because a reflection is one. A part names each day once, which is no
        // condensing.
        let tokens = count(&source.with_system_messages(&source.observations));
        let (older, newer) = match until {
            // If the log is far beyond that point, the older half of it.
            Some(point) => source.split_older(point.max(tokens / 2), count),
            None => (source.observations.as_str(), ""),
        };
        let (older, newer) = (older.to_owned(), newer.to_owned());
        let newer_tokens = match newer.as_str() {
            "" => 0,
            newer => count(newer),
        };
        Self {
            items: retention::RetentionSource::from_log(&older),
            // A quarter of what the Reflector reads is to go.
            target: newer_tokens.min(tokens)
                + reflect::target_tokens(tokens.saturating_sub(newer_tokens)),
            older,
            newer,
            tokens,
            source,
            over_budget,
            counter,
            parts,
        }
    }

    /// The log to store. If it is still too long, code shortens it here, because a range has only
    /// one reflection. If something is lost anyway, code competes with the model: by leaving out
    /// whole lines, the oldest of the least priority first, it may lose less.
    pub(super) fn fit_to_limit(&self, chosen: ChosenLog, limit: u32) -> ChosenLog {
        let target = reflect::target_tokens(limit);
        if let Some(loss) = chosen.loss {
            let (text, tokens) = self.shorten(&self.source.observations, self.tokens, target);
            let code_loss = self.loss(&text);
            if code_loss < loss && tokens < limit {
                return ChosenLog {
                    text,
                    tokens,
                    loss: Some(code_loss),
                    by_code: true,
                };
            }
        }
        if chosen.tokens < limit {
            return chosen;
        }
        let (observations, _) = split_messages(&chosen.text);
        let (text, tokens) = self.shorten(&observations, chosen.tokens, target);
        ChosenLog {
            loss: Some(self.loss(&text)),
            text,
            tokens,
            ..chosen
        }
    }

    /// Shortens `observations` by code, from `tokens` of the whole log to `target`.
    fn shorten(&self, observations: &str, tokens: u32, target: u32) -> (String, u32) {
        let excess = tokens.saturating_sub(target);
        let short = code_reflection::shorten(observations, excess, |line| self.counter.count(line));
        let text = self.source.with_system_messages(&short);
        let tokens = self.count_tokens(&text);
        (text, tokens)
    }

    /// The share of high-priority items that a whole log lost.
    fn loss(&self, text: &str) -> f64 {
        let (observations, _) = split_messages(text);
        self.items.check(&observations).retention.high.loss()
    }

    /// Measures an answer; `None` if it has no observations.
    pub(super) fn evaluate(&self, answer: &str) -> Option<ReflectionAttempt> {
        let ParsedAnswer::Observed { text, .. } = reflect::read_answer(answer, &self.older) else {
            return None;
        };
        let report = self.items.check(&text);
        let lost: BTreeSet<usize> = report.damaged_lines().collect();
        let restored = (!lost.is_empty()).then(|| self.restore_lines(&text, &lost));
        let partial = match (&restored, self.over_budget) {
            (Some((_, all)), Some(over)) if *all >= over.limit.min(self.tokens) => {
                Some(self.restore_partially(&text, &lost, over.target))
            }
            _ => None,
        };
        let (text, tokens) = self.full_log(&text);
        Some(ReflectionAttempt {
            text,
            tokens,
            loss: report.retention.high.loss(),
            restored,
            lost_items: reflect::list_lost_items(&self.older, &report),
            partial,
        })
    }

    /// The log to store if `condensed` replaces its older days, and its tokens.
    fn full_log(&self, condensed: &str) -> (String, u32) {
        let text = self
            .source
            .with_system_messages(&reflect::join_newer(condensed, &self.newer));
        let tokens = self.count_tokens(&text);
        (text, tokens)
    }

    fn count_tokens(&self, text: &str) -> u32 {
        render::max_tokens(text, |text| self.counter.count(text))
    }

    fn restore_lines(&self, condensed: &str, lost: &BTreeSet<usize>) -> (String, u32) {
        self.full_log(&retention::restore_lines(&self.older, condensed, lost))
    }

    /// Puts back as many of the lost lines as fit, the newest first.
    fn restore_partially(
        &self,
        condensed: &str,
        lost: &BTreeSet<usize>,
        target: u32,
    ) -> PartialReflection {
        let mut tokens_left = target.saturating_sub(self.full_log(condensed).1);
        loop {
            let count = |line: &str| self.counter.count(line);
            let to_restore = retention::newest_that_fit(&self.older, lost, tokens_left, count);
            let (text, tokens) = self.restore_lines(condensed, &to_restore);
            // A day heading that comes back costs tokens too.
            if tokens > target && !to_restore.is_empty() {
                tokens_left = tokens_left.saturating_sub(tokens - target);
                continue;
            }
            return PartialReflection {
                loss: self.loss(&text),
                over_limit: tokens > target,
                text,
                tokens,
            };
        }
    }
}
