//! The verdict about one request, and its cause: a pure function of two prompts, the provider's report and its rules.

use std::time::Duration;

use super::change::{Author, Change};
use super::rules::{CacheReads, CacheRules};
use super::sent_prompt::{PromptPart, SentPart, SentPrompt};
use crate::memory::PromptGrowth;
use crate::memory::policy::is_another_model;

/// What the provider's cache did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It gave back everything that the request before had left there.
    Warm,
    /// No earlier request of the conversation is known.
    ColdStart,
    /// It gave back a part.
    Partial,
    /// It gave back nothing.
    Miss,
    /// The provider reported nothing about its cache.
    Unknown,
}

impl Verdict {
    pub const ALL: [Self; 5] = [
        Self::Warm,
        Self::ColdStart,
        Self::Partial,
        Self::Miss,
        Self::Unknown,
    ];

    /// The name in audit and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::ColdStart => "cold_start",
            Self::Partial => "partial",
            Self::Miss => "miss",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it has a cause.
    #[must_use]
    pub fn has_cause(self) -> bool {
        matches!(self, Self::Partial | Self::Miss)
    }
}

/// Why the cache gave back less than the request before had left there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictCause {
    /// Observations replaced more messages.
    Activation,
    /// Observations were written anew: a reflection replaced them.
    Reflection,
    /// The client changed its tools or the form of the answer.
    ToolsChanged,
    /// The client changed its leading system messages.
    SystemChanged,
    /// The client changed or removed an earlier message.
    MessageChanged,
    /// The client inserted messages, and what it sent before follows them unchanged.
    MessageInserted,
    /// The client went back to an earlier point.
    Forked,
    /// Another model was asked.
    ModelChanged,
    /// The time since the request before is longer than the cache keeps a prompt.
    Idle,
    /// The prompt is too short for the cache.
    BelowMinimum,
    /// Memory applied to one of the two requests only.
    MemorySwitched,
    /// No mark for the cache reaches what the request before left there, or that one had none.
    CacheMarks,
    /// The prompt only grew, in time: the provider did not use its cache.
    Provider,
}

impl VerdictCause {
    pub const ALL: [Self; 13] = [
        Self::Activation,
        Self::Reflection,
        Self::ToolsChanged,
        Self::SystemChanged,
        Self::MessageChanged,
        Self::MessageInserted,
        Self::Forked,
        Self::ModelChanged,
        Self::Idle,
        Self::BelowMinimum,
        Self::MemorySwitched,
        Self::CacheMarks,
        Self::Provider,
    ];

    /// The name in audit and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Activation => "activation",
            Self::Reflection => "reflection",
            Self::ToolsChanged => "tools_changed",
            Self::SystemChanged => "system_changed",
            Self::MessageChanged => "message_changed",
            Self::MessageInserted => "message_inserted",
            Self::Forked => "forked",
            Self::ModelChanged => "model_changed",
            Self::Idle => "idle",
            Self::BelowMinimum => "below_minimum",
            Self::MemorySwitched => "memory_switched",
            Self::CacheMarks => "cache_marks",
            Self::Provider => "provider",
        }
    }
}

/// What the provider reported about a request, and the time since the request before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
    pub idle: Duration,
}

impl Reported {
    /// How much of the prompt the cache holds behind this request, if the provider reports what it wrote.
    #[must_use]
    pub fn stored_tokens(&self) -> Option<u64> {
        Some(self.cached_tokens?.saturating_add(self.cache_write_tokens?))
    }
}

/// Everything the audit says about the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// How the prompt differs from the one before; `None` if there is none.
    pub change: Option<Change>,
    /// Tokens that the cache should give back, estimated from the common prefix.
    pub expected_cached_tokens: Option<u64>,
    pub verdict: Verdict,
    /// Why less came back than the request before had left there.
    pub cause: Option<VerdictCause>,
    /// How much the prompt grew, if it only grew.
    pub growth: Option<PromptGrowth>,
}

/// Judges the request that went out as `current` after `previous`.
#[must_use]
pub fn judge(
    previous: Option<&SentPrompt>,
    current: &SentPrompt,
    reported: Reported,
    rules: &CacheRules,
) -> Judgement {
    let change = previous.map(|previous| Change::between(previous, current));
    let pair = previous.zip(change);
    let common = pair.and_then(|(previous, change)| {
        common_tokens(previous, current, change, reported.prompt_tokens, rules)
    });
    let judgement = |verdict, cause| Judgement {
        change,
        expected_cached_tokens: common.map(|tokens| rules.cacheable(tokens)),
        verdict,
        cause,
        growth: pair.and_then(|(previous, change)| growth(previous, current, change)),
    };
    let (Some(cached), Some(prompt)) = (reported.cached_tokens, reported.prompt_tokens) else {
        return judgement(Verdict::Unknown, None);
    };
    let Some(((previous, change), common)) = pair.zip(common) else {
        return judgement(Verdict::ColdStart, None);
    };
    let (left_there, unsure) = left_by(previous, current, change, prompt, rules);
    let left_there = left_there.min(prompt);
    let without_marks = cached == 0 && lacks_marks(previous, reported, rules);
    let is_short = left_there < rules.minimum_tokens + rules.step_tokens && change.first.is_none();
    let below_minimum =
        cached == 0 && !without_marks && (is_short || left_there < rules.minimum_tokens);
    let unsure = if cached > 0 { unsure } else { 0 };
    let is_warm = cached + rules.step_tokens + unsure >= rules.cacheable(left_there);
    if is_warm && !below_minimum && !without_marks {
        return judgement(Verdict::Warm, None);
    }
    let verdict = match cached {
        0 => Verdict::Miss,
        _ => Verdict::Partial,
    };
    let came_short = cached + rules.step_tokens < rules.cacheable(common);
    let idle = reported.idle > rules.lifetime;
    let cause = if below_minimum {
        VerdictCause::BelowMinimum
    } else if without_marks {
        VerdictCause::CacheMarks
    } else if is_another_model(&previous.model, &current.model) {
        VerdictCause::ModelChanged
    } else if idle && came_short {
        VerdictCause::Idle
    } else if let Some(first) = change.first {
        cause_of_change(first, change, previous, current)
    } else if is_out_of_reach(previous, current, reported, rules) {
        VerdictCause::CacheMarks
    } else if idle {
        VerdictCause::Idle
    } else {
        VerdictCause::Provider
    };
    judgement(verdict, Some(cause))
}

/// How much the prompt grew, if it only grew and the provider counted both.
fn growth(previous: &SentPrompt, current: &SentPrompt, change: Change) -> Option<PromptGrowth> {
    let only_grew = change.first.is_none() && previous.model == current.model;
    let messages = |prompt: &SentPrompt| {
        let is_raw = |sent: &SentPart| matches!(sent.part, PromptPart::Message(_));
        prompt.parts().filter(is_raw).count()
    };
    let added = messages(current).checked_sub(messages(previous))?;
    let tokens = current
        .prompt_tokens?
        .checked_sub(previous.prompt_tokens?)?;
    (only_grew && added > 0).then_some(PromptGrowth {
        messages: added,
        tokens,
    })
}

/// How much of the prompt before is in the cache, and by how much that may be wrong. Where marks are needed, it is what
/// the provider read and wrote.
fn left_by(
    previous: &SentPrompt,
    current: &SentPrompt,
    change: Change,
    prompt: u64,
    rules: &CacheRules,
) -> (u64, u64) {
    let needs_marks = matches!(rules.reads, CacheReads::UpToMarks { .. });
    let stored = previous.stored_tokens.filter(|_| needs_marks);
    if let Some(counted) = stored.or(previous.prompt_tokens) {
        return (counted, 0);
    }
    // Nobody counted it: a stream that was cut, or not asked for usage. Its bytes say how much it was.
    let estimated = share_of(prompt, previous.bytes(), current.bytes());
    // The new text may have half as many tokens again for a byte as the rest: code behind prose. Where the client changed
    // something, the change is the cause, whatever the estimate.
    let only_grew = change.first.is_none();
    let unsure = if only_grew {
        prompt.saturating_sub(estimated) / 2
    } else {
        0
    };
    (estimated, unsure)
}

/// Whether one of the two prompts is long enough, and the provider neither read nor wrote anything of it: it has no mark
/// where the prompt is long enough.
fn lacks_marks(previous: &SentPrompt, reported: Reported, rules: &CacheRules) -> bool {
    let nothing_held = |stored: Option<u64>, prompt: Option<u64>| {
        stored == Some(0) && prompt.is_some_and(|prompt| prompt >= rules.minimum_tokens)
    };
    matches!(rules.reads, CacheReads::UpToMarks { .. })
        && (nothing_held(previous.stored_tokens, previous.prompt_tokens)
            || nothing_held(reported.stored_tokens(), reported.prompt_tokens))
}

/// Whether the prompt only grew, and its marks stand before the end of what the request before left, or too far behind.
fn is_out_of_reach(
    previous: &SentPrompt,
    current: &SentPrompt,
    reported: Reported,
    rules: &CacheRules,
) -> bool {
    let stands_before = reported.stored_tokens() < previous.stored_tokens;
    let needs_marks = matches!(rules.reads, CacheReads::UpToMarks { .. });
    needs_marks && (stands_before || is_too_far_behind(previous, current, rules))
}

/// Whether so many blocks are new that a mark at the end does not find the end of the prompt before.
fn is_too_far_behind(previous: &SentPrompt, current: &SentPrompt, rules: &CacheRules) -> bool {
    let new_blocks = current.blocks.saturating_sub(previous.blocks);
    matches!(rules.reads, CacheReads::UpToMarks { look_back } if new_blocks >= look_back)
}

/// The cause that lies in the prompt itself.
fn cause_of_change(
    (part, author): (PromptPart, Author),
    change: Change,
    previous: &SentPrompt,
    current: &SentPrompt,
) -> VerdictCause {
    match (part, author) {
        (PromptPart::Tools, _) => VerdictCause::ToolsChanged,
        (PromptPart::System, _) => VerdictCause::SystemChanged,
        (_, Author::Client) if change.forked => VerdictCause::Forked,
        (_, Author::Client) if change.inserted => VerdictCause::MessageInserted,
        (_, Author::Client) => VerdictCause::MessageChanged,
        (_, Author::Memory) => match &current.layout.block {
            Some(_) if previous.has_memory != current.has_memory => VerdictCause::MemorySwitched,
            Some(block) => match &previous.layout.block {
                Some(before) if !block.begins_with_parts_of(before) => VerdictCause::Reflection,
                _ => VerdictCause::Activation,
            },
            None => VerdictCause::MemorySwitched,
        },
    }
}

/// Tokens of the common prefix that the cache can give back. Where it gives back whole prefixes only, the longest that was
/// sent and counted before. Otherwise exact if the prompt only grew and the provider counted the one before. Otherwise
/// estimated by bytes, with the ratio of the prompt that gives less: images have many bytes and few tokens.
fn common_tokens(
    previous: &SentPrompt,
    current: &SentPrompt,
    change: Change,
    prompt_tokens: Option<u64>,
    rules: &CacheRules,
) -> Option<u64> {
    if rules.reads != CacheReads::AnyBeginning {
        let only_grew = change.first.is_none();
        if only_grew && is_too_far_behind(previous, current, rules) {
            return Some(0);
        }
        // If nobody counted the prompt before, its own end has no number of tokens.
        if !only_grew || previous.prompt_tokens.is_some() {
            return Some(previous.stored_within(change.common_bytes));
        }
    }
    let by_ratio = |prompt: &SentPrompt, tokens: Option<u64>| {
        tokens.map(|tokens| share_of(tokens, change.common_bytes, prompt.bytes()))
    };
    let whole = previous.prompt_tokens.filter(|_| change.first.is_none());
    let before = whole.or_else(|| by_ratio(previous, previous.prompt_tokens));
    let now = by_ratio(current, prompt_tokens);
    match (whole, before, now) {
        (Some(tokens), ..) => Some(tokens),
        (None, Some(before), Some(now)) => Some(before.min(now)),
        (None, before, now) => before.or(now),
    }
}

/// The tokens of `bytes`, if those of `whole` bytes are `tokens`.
fn share_of(tokens: u64, bytes: u64, whole: u64) -> u64 {
    let share = u128::from(tokens) * u128::from(bytes.min(whole)) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(tokens)
}
