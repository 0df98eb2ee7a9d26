//! What a request would have cost without Diarist: an estimate, and its assumptions.
//!
//! 1. A request that went out as it came, in a conversation in which nothing was replaced before, costs the same.
//! 2. Otherwise the client's whole history is sent. Its tokens are `prompt_tokens` × `bytes_received` / `bytes_sent`, both
//!    without the data of attachments.
//! 3. That prompt only grows: what the conversation's request before sent to the same model comes from the cache, and
//!    the cache never forgets. If no line before is known, all but the last two messages come from the cache. Side tasks
//!    of a client bear the name of its conversation, so the request before is the one whose size is nearest. On demand
//!    ([`Estimator::repeats_forgetting`]) the cache gives no more than the real one where that was seen to forget.
//! 4. Where the provider reported no cache hit for the conversation so far, none is assumed.
//! 5. Where the provider reported cache writes, what is new counts as written.
//!
//! Assumption 3 makes the estimate low, so the net is rather too small than too large. The truth lies between two ends:
//!
//! - The cheapest: the replaced messages have fewer tokens, by the spread of the tokens of a byte ([`Density::spread`]), and
//!   the cache gives back all of the request before, from the model's first hit on.
//! - The dearest: they have more by as much. Hits end at a whole step, and there are none of short prompts. Where the real
//!   cache gave less than expected, or for a reason that is not memory's, the other one gives no more. Where memory changed
//!   the prompt, nobody sees whether the cache forgot: it does so as often as elsewhere ([`CacheSeen::forgets`]), and
//!   after a pause in which it may have.
//!
//! The prompt of a request without usage is estimated too: its bytes, by the tokens of a byte in the requests of the same
//! model before it, or of all models if none of its own had usage.

use super::branches::{Branch, Conversation};
use super::cache_seen::CacheSeen;
use super::density::Density;
use super::line::{Line, Text};
use super::recent::RecentMap;
use super::token_range::Range;
use crate::model_prices::BilledTokens;

/// Most providers give back hits in such steps, and none of shorter prompts: see the rules of the caches in
/// `docs/audit.md`.
const STEP: u64 = 128;
const SMALLEST_HIT: u64 = 1_024;

/// Causes of a miss that lie in what memory did: without it they do not exist.
const CAUSES_OF_MEMORY: [&str; 3] = ["activation", "reflection", "memory_switched"];

/// The tokens of a request without Diarist: as they are likely, and at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Without {
    pub likely: BilledTokens,
    pub cheapest: BilledTokens,
    pub dearest: BilledTokens,
}

/// Remembers the conversations of the lines so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Estimator {
    /// Whether the cache forgets where the real one did: after a pause, or for a reason that only the provider knows.
    pub(super) repeats_forgetting: bool,
    conversations: RecentMap<Conversation>,
    /// The requests with usage, by model.
    models: RecentMap<Model>,
    /// The same of all models together.
    all_models: Density,
}

/// What the lines tell about one model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Model {
    density: Density,
    cache: CacheSeen,
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
        hour_write: line.usage.hour_writes().min(write),
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

    /// The tokens of a prompt that nobody reported: the stream was cut before, or the provider reports none. Asked for
    /// every request line, in order.
    pub(super) fn unreported(&self, line: &Line<'_>) -> Option<u64> {
        if line.prompt_tokens.is_some() || line.is_refused() {
            return None;
        }
        let by_bytes = || {
            let sent = line.text_bytes_sent().filter(|sent| *sent > 0)?;
            let own = self.models.get(line.model_name());
            let own = own.and_then(|model| model.density.tokens_of(sent));
            own.or_else(|| self.all_models.tokens_of(sent))
        };
        // What the line says was estimated from all that came before, not only from what is read now.
        line.estimated_prompt_tokens.or_else(by_bytes)
    }

    /// The tokens of this request without Diarist. Takes every request line, in order.
    pub(super) fn without(&mut self, line: &Line<'_>) -> Option<Without> {
        let key = [line.tenant.as_str(), line.thread_name(), line.model_name()].join("\0");
        let mut conversation = self.conversations.get(&key).copied().unwrap_or_default();
        conversation.hit |= line.cached_tokens.is_some_and(|cached| cached > 0);
        let bytes = line.bytes_received.unwrap_or(0);
        let messages = line.messages_received.unwrap_or(0);
        let before = conversation.branch_before(bytes, messages);
        let model = self.with_prompt(line);
        let billed = billed(line);
        let prompt = billed.and_then(|billed| whole_prompt(line, &billed, model.density.spread()));
        let prompt_before = before.and_then(|before| before.prompt);
        let replaced = line.is_active() || before.is_some_and(|before| before.replaced);
        let branch = Branch {
            bytes,
            messages,
            prompt: prompt.or(prompt_before),
            replaced,
        };
        conversation.set_branch(before, branch);
        if line.thread.is_some() {
            self.conversations.set(key, conversation);
        }
        let billed = billed?;
        if !replaced {
            return Some(Without {
                likely: billed,
                cheapest: billed,
                dearest: billed,
            });
        }
        let prompt = prompt?;
        let cached = self.cached(
            line,
            prompt,
            prompt_before,
            (conversation.hit, &model.cache),
        )?;
        let written = line.cache_write_tokens.is_some_and(|tokens| tokens > 0);
        let billed_with = |prompt: u64, cached: u64| {
            let new = prompt - cached;
            let (input, write) = if written { (0, new) } else { (new, 0) };
            BilledTokens {
                input,
                cached,
                write,
                // For as long as the real ones.
                hour_write: part_of(write, billed.hour_write, billed.write),
                output: billed.output,
            }
        };
        Some(Without {
            likely: billed_with(prompt.likely, cached.likely),
            cheapest: billed_with(prompt.fewest, cached.fewest),
            dearest: billed_with(prompt.most, cached.most),
        })
    }

    /// What is known of the line's model, the line included.
    fn with_prompt(&mut self, line: &Line<'_>) -> Model {
        let known = self.models.get(line.model_name()).copied();
        let mut model = known.unwrap_or_default();
        if let Some(tokens) = line.prompt_tokens
            && !line.is_refused()
        {
            let bytes = line.text_bytes_sent().unwrap_or(0);
            model.density.add(tokens, bytes);
            self.all_models.add(tokens, bytes);
            model.cache.add(line);
            self.models.set(line.model_name().to_owned(), model);
        }
        model
    }

    /// What the cache would have given back of `prompt`: likely, in the cheapest case, in the dearest. `before` is the
    /// request before, as it would have been.
    fn cached(
        &self,
        line: &Line<'_>,
        prompt: Range,
        before: Option<Range>,
        (hit, cache): (bool, &CacheSeen),
    ) -> Option<Range> {
        let real = line.cached_tokens.unwrap_or(0);
        let of_first = |prompt: u64| Some(without_last_two(prompt, line.messages_received?));
        let give = |prompt: u64, before: Option<u64>| match before {
            Some(before) => Some(before.min(prompt)),
            None => of_first(prompt),
        };
        let full = give(prompt.likely, before.map(|before| before.likely))?;
        let fewest = give(prompt.fewest, before.map(|before| before.fewest))?;
        let cause = line.verdict_cause.as_ref().map(Text::as_str);
        let forgot = self.repeats_forgetting && matches!(cause, Some("idle" | "provider"));
        // Whether the cache of a first line held anything is not known.
        let most = before.map_or(0, |before| before.most.min(prompt.most));
        Some(Range {
            likely: match (hit, forgot) {
                (false, _) => 0,
                (true, false) => full,
                (true, true) => full.min(real),
            },
            fewest: if cache.hit { fewest } else { 0 },
            most: if hit {
                least_cached(line, most, cache)
            } else {
                0
            },
        })
    }
}

/// The least that the cache would have given back of `most` tokens that it could have.
fn least_cached(line: &Line<'_>, most: u64, cache: &CacheSeen) -> u64 {
    if most < SMALLEST_HIT {
        return 0;
    }
    let steps = most - most % STEP;
    let real = line.cached_tokens.unwrap_or(0);
    let expected = line.expected_cached_tokens.unwrap_or(0);
    let cause = line.verdict_cause.as_ref().map(Text::as_str);
    let is_memorys = cause.is_some_and(|cause| CAUSES_OF_MEMORY.contains(&cause));
    let has_other_cause = cause.is_some() && !is_memorys;
    let may_be_late = is_memorys && cache.may_drop_after(line.idle_ms.unwrap_or(0));
    if has_other_cause || may_be_late || real.saturating_add(STEP) < expected {
        steps.min(real)
    } else if is_memorys {
        steps - share_of(steps, cache.forgets())
    } else {
        steps
    }
}

/// The tokens of the prompt that the client sent. `spread` says how far those of the replaced messages may be from the
/// mean.
fn whole_prompt(line: &Line<'_>, billed: &BilledTokens, spread: f64) -> Option<Range> {
    let prompt = billed.prompt();
    if !line.is_active() {
        return Some(Range {
            likely: prompt,
            fewest: prompt,
            most: prompt,
        });
    }
    let (received, sent) = (line.text_bytes_received()?, line.text_bytes_sent()?);
    if sent == 0 {
        return None;
    }
    let scaled = |bytes: u64| {
        let tokens = u128::from(prompt) * u128::from(bytes) / u128::from(sent);
        u64::try_from(tokens).unwrap_or(u64::MAX)
    };
    let likely = scaled(received);
    // Older lines do not say how much was replaced.
    let replaced = line.segments.map_or(0, |segments| segments.replaced);
    let uncounted = scaled(replaced.max(received.saturating_sub(sent)));
    let apart = share_of(uncounted, spread);
    Some(Range {
        likely,
        fewest: likely.saturating_sub(apart),
        most: likely.saturating_add(apart),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a number of tokens is a number of tokens"
)]
fn share_of(tokens: u64, share: f64) -> u64 {
    (tokens as f64 * share) as u64
}

/// The part of `whole` that `part` is of `all`.
fn part_of(whole: u64, part: u64, all: u64) -> u64 {
    let product = u128::from(whole) * u128::from(part);
    let part = product.checked_div(u128::from(all)).unwrap_or(0);
    u64::try_from(part).unwrap_or(whole)
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
            let tokens = estimator.without(&line)?.likely;
            Some((tokens.input, tokens.cached, tokens.write))
        };
        lines.iter().map(estimate).collect()
    }

    const ACTIVE: &str = r#""thread":"a","memory":"active","bytes_received":3000,"bytes_sent":1000,"messages_received":10,"prompt_tokens":400"#;

    #[test]
    fn an_unchanged_request_costs_the_same_without_memory() {
        let watching = r#""thread":"a","memory":"watching","bytes_received":900,"bytes_sent":999,"prompt_tokens":1000,"cached_tokens":300"#;
        assert_eq!(estimates(&[watching, watching]), [Some((700, 300, 0)); 2]);
    }

    #[test]
    fn the_estimated_whole_history_grows_and_its_beginning_is_cached() {
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
    fn a_side_task_under_the_name_of_a_conversation_changes_no_estimate_of_it() {
        let main = |state: &str, received: u64, sent: u64, prompt: u64| {
            format!(
                r#""thread":"a","memory":"{state}","bytes_received":{received},"bytes_sent":{sent},"messages_received":10,"prompt_tokens":{prompt},"cached_tokens":100"#
            )
        };
        let title = |bytes: u64| {
            format!(
                r#""thread":"a","memory":"watching","bytes_received":{bytes},"bytes_sent":{bytes},"messages_received":1,"prompt_tokens":70,"cached_tokens":0"#
            )
        };
        let lines = [
            main("watching", 4_000, 4_000, 1_000),
            title(300),
            main("active", 5_000, 1_000, 250),
            title(290),
            main("active", 6_000, 1_000, 250),
            title(310),
            // The client went back: what is left was sent before.
            main("active", 5_500, 1_100, 250),
            main("active", 5_600, 1_120, 250),
        ];
        let found = estimates(&lines.each_ref().map(String::as_str));
        assert_eq!(found[0], Some((900, 100, 0)));
        assert_eq!(found[2], Some((250, 1_000, 0)));
        assert_eq!(found[4], Some((250, 1_250, 0)));
        assert_eq!([found[1], found[3], found[5]], [Some((70, 0, 0)); 3]);
        assert_eq!(found[6], Some((0, 1_250, 0)));
        assert_eq!(found[7], Some((0, 1_250, 0)));
    }

    #[test]
    fn a_pasted_file_continues_the_conversation() {
        let turn = |received: u64, messages: u64| {
            format!(
                r#""thread":"a","memory":"active","bytes_received":{received},"bytes_sent":{received},"messages_received":{messages},"prompt_tokens":{},"cached_tokens":100"#,
                received / 4
            )
        };
        let lines = [turn(4_000, 12), turn(64_000, 14)];
        let found = estimates(&lines.each_ref().map(String::as_str));
        assert_eq!(found[1], Some((15_000, 1_000, 0)));
    }

    #[test]
    fn shrinking_side_tasks_do_not_push_out_the_conversation() {
        let main = |received: u64| {
            format!(
                r#""thread":"a","memory":"active","bytes_received":{received},"bytes_sent":1000,"messages_received":10,"prompt_tokens":250,"cached_tokens":100"#
            )
        };
        let side = |bytes: u64| {
            format!(
                r#""thread":"a","memory":"watching","bytes_received":{bytes},"bytes_sent":{bytes},"messages_received":1,"prompt_tokens":70,"cached_tokens":0"#
            )
        };
        let lines = [
            side(460),
            main(5_000),
            side(700),
            side(540),
            side(420),
            side(330),
            side(250),
            main(6_000),
        ];
        let found = estimates(&lines.each_ref().map(String::as_str));
        // As without a title before it, and then as if nothing had been between.
        assert_eq!(found[1], Some((250, 1_000, 0)));
        assert_eq!(found[7], Some((250, 1_250, 0)));
    }

    #[test]
    fn the_data_of_attachments_counts_as_no_text() {
        let active = r#""thread":"a","memory":"active","bytes_received":803000,"attachment_bytes_received":800000,"bytes_sent":201000,"attachment_bytes_sent":200000,"messages_received":10,"prompt_tokens":400,"cached_tokens":10"#;
        assert_eq!(estimates(&[active]), [Some((240, 960, 0))]);
    }

    #[test]
    fn a_request_without_an_earlier_line_has_all_but_two_messages_cached() {
        let active = format!(r#"{ACTIVE},"cached_tokens":10"#);
        assert_eq!(estimates(&[&active]), [Some((240, 960, 0))]);
    }

    #[test]
    fn no_cache_is_assumed_without_a_reported_cache_hit() {
        let active = format!(r#"{ACTIVE},"cached_tokens":0"#);
        assert_eq!(estimates(&[&active, ACTIVE]), [Some((1_200, 0, 0)); 2]);
    }

    #[test]
    fn the_estimated_cache_can_repeat_the_losses_of_the_real_cache() {
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
                estimator.without(&line).unwrap().likely.cached
            });
            assert_eq!(cached, expected);
        }
    }

    #[test]
    fn the_estimate_has_a_likely_a_cheapest_and_a_dearest_case() {
        let watching = r#""thread":"a","memory":"watching","bytes_received":8000,"bytes_sent":8000,"prompt_tokens":2000,"cached_tokens":1920"#;
        let active = |cause: &str| {
            format!(
                r#""thread":"a","memory":"active","bytes_received":9000,"bytes_sent":3000,"messages_received":10,"prompt_tokens":1000,"cached_tokens":256,"verdict_cause":"{cause}","segments":{{"replaced":8000}}"#
            )
        };
        let lines = [
            watching.to_owned(),
            active("activation"),
            active("provider"),
        ];
        let lines = lines.map(|fields| {
            format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a","completion_tokens":5,{fields}}}"#
            )
        });
        let mut estimator = Estimator::default();
        let [exact, activated, forgotten] = lines.each_ref().map(|text| {
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            let without = estimator.without(&line).unwrap();
            [without.likely, without.cheapest, without.dearest].map(|it| (it.input, it.cached))
        });
        assert_eq!(exact, [(80, 1_920); 3]);
        // The replaced 8,000 bytes are 2,666 tokens, a quarter more or less.
        // Whether the cache forgot at the activation is as likely as not.
        assert_eq!(activated, [(1_000, 2_000), (334, 2_000), (2_706, 960)]);
        assert_eq!(forgotten, [(0, 3_000), (0, 2_334), (3_410, 256)]);
    }

    #[test]
    fn new_tokens_count_as_cache_writes_where_writes_are_reported() {
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
            // Of the requests of all models, since none of its own has usage.
            line("b", r#""status":200"#),
            line("a", r#""status":429"#),
            line("a", r#""status":200"#),
            line("a", r#""status":200,"estimated_prompt_tokens":9"#),
        ];
        let mut estimator = Estimator::default();
        let estimates = lines.each_ref().map(|text| {
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            estimator.without(&line);
            estimator.unreported(&line)
        });
        assert_eq!(
            estimates,
            [None, None, None, Some(250), None, Some(250), Some(9)]
        );
    }

    #[test]
    fn a_line_without_tokens_or_bytes_gets_no_estimate() {
        let bare = r#""thread":"a","memory":"active","bytes_received":3000,"bytes_sent":1000"#;
        let no_bytes = r#""thread":"a","memory":"active","prompt_tokens":3,"bytes_received":3000,"bytes_sent":0"#;
        assert_eq!(estimates(&[bare, no_bytes]), [None, None]);
    }
}
