//! What a request would have cost without Diarist: an estimate, and its assumptions.
//!
//! 1. A request that went out as it came, in a conversation in which nothing was replaced before, costs the same.
//! 2. Otherwise the client's whole history is sent. Its tokens are `prompt_tokens` × `bytes_received` / `bytes_sent`.
//! 3. That prompt only grows: what the conversation's request before sent to the same model comes from the cache, and
//!    the cache never forgets. If no line before is known, all but the last two messages come from the cache. On demand
//!    ([`Estimator::repeats_forgetting`]) the cache gives no more than the real one where that was seen to forget.
//! 4. Where the provider reported no cache hit for the conversation so far, none is assumed.
//! 5. Where the provider reported cache writes, what is new counts as written.
//!
//! The prompt of a request without usage is estimated too: its bytes, by the tokens of a byte in the requests of the same
//! model before it.
//!
//! Assumption 3 makes the estimate low, so the net is rather too small than too large.

use super::line::{Line, Text};
use super::price::BilledTokens;
use super::recent::RecentMap;

/// What the lines before tell about one conversation with one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Conversation {
    /// Tokens of the last request as it would have been.
    prompt: Option<u64>,
    /// Messages were replaced.
    replaced: bool,
    /// The provider reported a cache hit.
    hit: bool,
}

/// Remembers the conversations of the lines so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Estimator {
    /// Whether the cache forgets where the real one did: after a pause, or for a reason that only the provider knows.
    pub(super) repeats_forgetting: bool,
    conversations: RecentMap<Conversation>,
    /// Tokens and bytes of the prompts with usage, by model.
    density: RecentMap<(u64, u64)>,
}

/// The tokens of a line as the provider counted them; `None` without a count of prompt and answer. If the cached part is
/// not known, the whole prompt counts as uncached.
pub(super) fn billed(line: &Line<'_>) -> Option<BilledTokens> {
    let prompt = line.prompt_tokens?;
    let cached = line.cached_tokens.unwrap_or(0).min(prompt);
    let write = line.cache_write_tokens.unwrap_or(0).min(prompt - cached);
    Some(BilledTokens {
        input: prompt - cached - write,
        cached,
        write,
        output: line.completion_tokens?,
    })
}

impl Estimator {
    /// Remembers at most twice so many conversations.
    pub(super) fn with_generation(conversations: usize) -> Self {
        Self {
            conversations: RecentMap::with_generation(conversations),
            ..Self::default()
        }
    }

    /// The tokens of a prompt that nobody reported: the stream was cut before, or the provider reports none. Takes every
    /// request line, in order.
    pub(super) fn unreported(&mut self, line: &Line<'_>) -> Option<u64> {
        let sent = line.bytes_sent.filter(|_| !line.is_refused())?;
        let (tokens, bytes) = self
            .density
            .get(line.model_name())
            .copied()
            .unwrap_or_default();
        if let Some(prompt) = line.prompt_tokens {
            let sums = (tokens.saturating_add(prompt), bytes.saturating_add(sent));
            self.density.set(line.model_name().to_owned(), sums);
            return None;
        }
        let estimate = u128::from(sent) * u128::from(tokens) / u128::from(bytes.max(1));
        (bytes > 0).then(|| u64::try_from(estimate).unwrap_or(u64::MAX))
    }

    /// The tokens of this request without Diarist. Takes every request line, in order.
    pub(super) fn without(&mut self, line: &Line<'_>) -> Option<BilledTokens> {
        let key = [line.tenant.as_str(), line.thread_name(), line.model_name()].join("\0");
        let before = self.conversations.get(&key).copied().unwrap_or_default();
        let mut conversation = Conversation {
            replaced: before.replaced || line.is_active(),
            hit: before.hit || line.cached_tokens.is_some_and(|cached| cached > 0),
            ..before
        };
        let billed = billed(line);
        let prompt = billed.and_then(|billed| whole_prompt(line, &billed));
        if let Some(prompt) = prompt {
            conversation.prompt = Some(prompt);
        }
        if line.thread.is_some() {
            self.conversations.set(key, conversation);
        }
        if !conversation.replaced {
            return billed;
        }
        let (prompt, billed) = (prompt?, billed?);
        let cached = match (conversation.hit, before.prompt) {
            (false, _) => 0,
            (true, Some(before)) => before.min(prompt),
            (true, None) => without_last_two(prompt, line.messages_received?),
        };
        let cause = line.verdict_cause.as_ref().map(Text::as_str);
        let cached = if self.repeats_forgetting && matches!(cause, Some("idle" | "provider")) {
            cached.min(billed.cached)
        } else {
            cached
        };
        let new = prompt - cached;
        let written = line.cache_write_tokens.is_some_and(|tokens| tokens > 0);
        let (input, write) = if written { (0, new) } else { (new, 0) };
        Some(BilledTokens {
            input,
            cached,
            write,
            output: billed.output,
        })
    }
}

/// The tokens of the prompt that the client sent.
fn whole_prompt(line: &Line<'_>, billed: &BilledTokens) -> Option<u64> {
    let prompt = billed.input + billed.cached + billed.write;
    if !line.is_active() {
        return Some(prompt);
    }
    let (received, sent) = (line.bytes_received?, line.bytes_sent?);
    let tokens = u128::from(prompt) * u128::from(received) / u128::from(sent).max(1);
    (sent > 0).then(|| u64::try_from(tokens).unwrap_or(u64::MAX))
}

fn without_last_two(prompt: u64, messages: u64) -> u64 {
    let share = u128::from(prompt) * u128::from(messages.saturating_sub(2));
    u64::try_from(share / u128::from(messages.max(1))).unwrap_or(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each line: its tokens without Diarist, as input, cached, written.
    fn estimates(lines: &[&str]) -> Vec<Option<(u64, u64, u64)>> {
        let mut estimator = Estimator::default();
        let estimate = |fields: &&str| {
            let text = format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a","completion_tokens":5,{fields}}}"#
            );
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            let tokens = estimator.without(&line)?;
            Some((tokens.input, tokens.cached, tokens.write))
        };
        lines.iter().map(estimate).collect()
    }

    const ACTIVE: &str = r#""thread":"a","memory":"active","bytes_received":3000,"bytes_sent":1000,"messages_received":10,"prompt_tokens":400"#;

    #[test]
    fn what_went_out_as_it_came_costs_the_same() {
        let watching = r#""thread":"a","memory":"watching","bytes_received":900,"bytes_sent":999,"prompt_tokens":1000,"cached_tokens":300"#;
        assert_eq!(estimates(&[watching, watching]), [Some((700, 300, 0)); 2]);
    }

    #[test]
    fn a_whole_history_grows_and_its_beginning_is_cached() {
        let watching =
            r#""thread":"a","memory":"watching","prompt_tokens":1000,"cached_tokens":300"#;
        let active = format!(r#"{ACTIVE},"cached_tokens":0"#);
        let other = r#""thread":"b","memory":"watching","prompt_tokens":7,"cached_tokens":1"#;
        assert_eq!(
            estimates(&[watching, other, &active, &active, watching]),
            [
                Some((700, 300, 0)),
                Some((6, 1, 0)),
                Some((200, 1_000, 0)),
                Some((0, 1_200, 0)),
                Some((0, 1_000, 0)),
            ]
        );
    }

    #[test]
    fn without_a_line_before_all_but_two_messages_are_cached() {
        let active = format!(r#"{ACTIVE},"cached_tokens":10"#);
        assert_eq!(estimates(&[&active]), [Some((240, 960, 0))]);
    }

    #[test]
    fn no_cache_is_assumed_where_none_was_seen() {
        let active = format!(r#"{ACTIVE},"cached_tokens":0"#);
        assert_eq!(estimates(&[&active, ACTIVE]), [Some((1_200, 0, 0)); 2]);
    }

    #[test]
    fn on_demand_the_cache_forgets_where_the_real_one_did() {
        let hit = format!(r#"{ACTIVE},"cached_tokens":10"#);
        let idle = format!(r#"{ACTIVE},"cached_tokens":7,"verdict_cause":"idle""#);
        let reflected = format!(r#"{ACTIVE},"cached_tokens":7,"verdict_cause":"reflection""#);
        let lines = [&hit, &idle, &reflected].map(|fields| {
            format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a","completion_tokens":5,{fields}}}"#
            )
        });
        for (repeats_forgetting, expected) in
            [(false, [960, 1_200, 1_200]), (true, [960, 7, 1_200])]
        {
            let mut estimator = Estimator {
                repeats_forgetting,
                ..Estimator::default()
            };
            let cached = lines.each_ref().map(|text| {
                let (_, line) = Line::parse(text.as_bytes()).unwrap();
                estimator.without(&line).unwrap().cached
            });
            assert_eq!(cached, expected);
        }
    }

    #[test]
    fn what_is_new_is_written_where_writes_are_reported() {
        let active = format!(r#"{ACTIVE},"cached_tokens":100,"cache_write_tokens":50"#);
        assert_eq!(estimates(&[&active]), [Some((0, 960, 240))]);
    }

    #[test]
    fn a_prompt_without_usage_is_estimated_by_its_bytes() {
        let line = |model: &str, fields: &str| {
            format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a","model":"{model}","bytes_sent":1000,{fields}}}"#
            )
        };
        let lines = [
            line("a", r#""status":200"#),
            line("a", r#""status":200,"prompt_tokens":300"#),
            line("a", r#""status":200,"prompt_tokens":200"#),
            line("b", r#""status":200"#),
            line("a", r#""status":429"#),
            line("a", r#""status":200"#),
        ];
        let mut estimator = Estimator::default();
        let estimates = lines.each_ref().map(|text| {
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            estimator.unreported(&line)
        });
        assert_eq!(estimates, [None, None, None, None, None, Some(250)]);
    }

    #[test]
    fn without_counts_there_is_no_estimate() {
        let bare = r#""thread":"a","memory":"active","bytes_received":3000,"bytes_sent":1000"#;
        let no_bytes = r#""thread":"a","memory":"active","prompt_tokens":3,"bytes_received":3000,"bytes_sent":0"#;
        assert_eq!(estimates(&[bare, no_bytes]), [None, None]);
    }
}
