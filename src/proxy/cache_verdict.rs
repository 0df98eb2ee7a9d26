//! Why a request hit or missed the provider's prompt cache, for the audit and the metrics.
//!
//! Compares what was sent with what the conversation sent before, when the answer has ended. Nothing of it runs
//! before the request goes out. The decision is [`prompt_cache`]'s. Called by `chat_completions`.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use metrics::Counter;

use super::audit_entry::AuditEntry;
use super::fallback::Fallback;
use super::identify::Thread;
use super::outgoing_request::{MessageLayout, OutgoingRequest};
use super::sent_prompts::{ConversationKey, SentPrompts};
use super::tee::ObservedAnswer;
use crate::history::{History, Message};
use crate::memory::prompt_cache::{
    self, CacheRules, CacheRulesOverride, Judgement, Reported, SegmentBytes, SentBlock, SentLayout,
    SentPrompt, Verdict, VerdictCause,
};
use crate::memory::{PromptGrowth, Snapshot, Trim};
use crate::telemetry::{self, ModelSeries, kept};
use crate::wire::usage::{RawUsage, Usage};
use crate::wire::{self, Placement};

/// The label `kind` of tokens.
const TOKEN_KINDS: [&str; 5] = ["input", "cache_read", "cache_write", "output", "reasoning"];

static TOKENS: ModelSeries<[Counter; 5]> = ModelSeries::new();

/// The label `segment` of bytes.
const SEGMENTS: [&str; 6] = [
    "tools",
    "system",
    "observations",
    "reminder",
    "messages",
    "replaced",
];

static BYTES: LazyLock<[Counter; 6]> = LazyLock::new(|| {
    kept(|| {
        SEGMENTS.map(|segment| metrics::counter!(telemetry::PROMPT_BYTES, "segment" => segment))
    })
});

/// The counters of all verdicts, each with its cause.
static VERDICTS: LazyLock<Vec<(Verdict, &'static str, Counter)>> = LazyLock::new(|| {
    let causes = |verdict: Verdict| {
        if verdict.has_cause() {
            VerdictCause::ALL.map(VerdictCause::name).to_vec()
        } else {
            vec![NO_CAUSE]
        }
    };
    let with_causes = |verdict| {
        causes(verdict)
            .into_iter()
            .map(move |cause| (verdict, cause))
    };
    let all = Verdict::ALL.into_iter().flat_map(with_causes);
    let counted = |(verdict, cause)| (verdict, cause, verdict_counter(verdict, cause));
    kept(|| all.map(counted).collect())
});

/// What is compared of a request: its conversation and its messages.
#[derive(Debug)]
pub(super) struct PromptSource {
    /// `None` if nothing says which conversation it is: then only its size is known.
    key: Option<ConversationKey>,
    parsed: Arc<wire::Request>,
    has_memory: bool,
}

impl PromptSource {
    /// `is_side_task` says that the request shares the name of a conversation that it does not continue.
    pub(super) fn new(
        parsed: &Arc<wire::Request>,
        history: &History,
        thread: &Thread,
        is_side_task: bool,
        has_memory: bool,
    ) -> Self {
        let key = history.messages().first().map(|first| {
            let thread_key = thread.key.as_deref().map(Box::from);
            ConversationKey {
                link: match &thread_key {
                    Some(_) if !is_side_task => history.root(),
                    _ => first.link,
                },
                thread_key,
            }
        });
        Self {
            key,
            parsed: Arc::clone(parsed),
            has_memory,
        }
    }

    /// The prompt, sent as `form` says.
    fn prompt(&self, form: &SentForm) -> SentPrompt {
        let parsed = &self.parsed;
        let leading = parsed.leading_messages().messages();
        SentPrompt::new(
            parsed.model().unwrap_or_default(),
            parsed.prompt_fields(),
            leading,
            parsed.messages(),
            form.layout(parsed.messages(), parsed.body().len(), leading.is_empty()),
            self.has_memory && !form.bypassed,
        )
    }
}

/// How a request went out.
#[derive(Clone, Debug)]
pub(super) struct SentForm {
    snapshot: Option<Arc<Snapshot>>,
    trim: Option<Trim>,
    placement: Option<Placement>,
    layout: Option<MessageLayout>,
    bytes: usize,
    /// Whether the original was sent because memory could not be.
    bypassed: bool,
}

impl SentForm {
    pub(super) fn new(outgoing: &OutgoingRequest) -> Self {
        let block = outgoing.block.as_ref();
        Self {
            snapshot: outgoing.snapshot().cloned(),
            trim: block.and_then(|block| block.trim),
            placement: block.map(|block| block.placement),
            layout: outgoing.layout.clone(),
            // No part of the prompt.
            bytes: outgoing.bytes - outgoing.cache_key_bytes,
            bypassed: matches!(
                outgoing.fallback,
                Fallback::Original | Fallback::Refused | Fallback::Blocked
            ),
        }
    }

    /// The layout of a request with these messages, whose body had `received` bytes. `stands_alone`: there is no system
    /// message in which the block could stand.
    fn layout(&self, messages: &[Message], received: usize, stands_alone: bool) -> SentLayout {
        let Some((layout, placement)) = self.layout.as_ref().zip(self.placement) else {
            return SentLayout::default();
        };
        let is_raw = |index: &usize| layout.front.contains(index) || layout.pin == Some(*index);
        let replaced = (0..layout.cut.min(messages.len())).filter(|index| !is_raw(index));
        let replaced: usize = replaced.map(|index| messages[index].span.len()).sum();
        // What the body has more than its raw parts.
        let bytes = (self.bytes + replaced).saturating_sub(received);
        let note = self.trim.map(|trim| (trim.to_count, trim.pin));
        let inside_system = placement == Placement::AppendToSystem && !stands_alone;
        SentLayout {
            cut: layout.cut,
            front: layout.front.clone(),
            pin: layout.pin,
            block: Some(SentBlock::new(
                self.snapshot.as_deref(),
                note,
                bytes,
                inside_system,
            )),
        }
    }
}

/// Judges an answered request, notes the judgement in `entry`, and keeps the prompt for the next one. Returns how much
/// the prompt grew since the conversation's previous request, if it only grew.
pub(super) fn record(
    (prompts, overrides): (&SentPrompts, &[CacheRulesOverride]),
    source: PromptSource,
    form: &SentForm,
    observed: &ObservedAnswer,
    entry: &mut AuditEntry,
) -> Option<PromptGrowth> {
    let usage = observed.usage.unwrap_or_default();
    let mut prompt = source.prompt(form);
    entry.set_segments(&prompt, usage.prompt);
    count_bytes(prompt.segment_bytes());
    let key = source.key?;
    let previous = prompts.previous(&key, entry.started());
    let idle = previous.as_ref().map(|previous| previous.idle);
    let parsed = &source.parsed;
    let model = parsed.model().unwrap_or_default();
    let retention = parsed.cache_retention();
    // llama.cpp's older servers report a cache outside of their usage.
    let has_plain_usage = observed.raw_usage.as_ref().is_none_or(RawUsage::is_plain);
    let published = CacheRules::for_model(&prompts.host, model, retention.as_deref())
        .or_of_own_server(
            &prompts.host,
            model,
            has_plain_usage && is_own_host(&prompts.host),
        );
    let rules = CacheRulesOverride::apply(overrides, model, published);
    let reported = Reported {
        prompt_tokens: usage.prompt,
        cached_tokens: usage.cached,
        cache_write_tokens: usage.cache_write,
        idle: idle.unwrap_or(Duration::ZERO),
    };
    prompt.prompt_tokens = reported.prompt_tokens;
    prompt.stored_tokens = reported.stored_tokens();
    let previous = previous.as_ref().map(|previous| &*previous.prompt);
    let judgement = prompt_cache::judge(previous, &prompt, reported, &rules);
    let common_bytes = judgement.change.map_or(0, |change| change.common_bytes);
    let before = previous.map(|previous| (previous, common_bytes));
    prompt.set_stored_ends(rules.reads, before, parsed.marked_messages());
    count(&judgement);
    entry.set_judgement(&judgement, idle);
    prompts.record(key, prompt, Instant::now());
    judgement.growth
}

/// Whether `host` is no name of the public internet: a private address, or a name without a dot or of a private domain.
fn is_own_host(host: &str) -> bool {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_private(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
        Err(_) => {
            let name = name.to_ascii_lowercase();
            let private = [".local", ".internal", ".lan", ".localhost"];
            !name.contains('.') || private.iter().any(|domain| name.ends_with(domain))
        }
    }
}

fn count(judgement: &Judgement) {
    let cause = judgement.cause.map_or(NO_CAUSE, VerdictCause::name);
    count_verdict(judgement.verdict, cause);
}

/// The label `cause` of a verdict that has none.
const NO_CAUSE: &str = "none";

fn verdict_counter(verdict: Verdict, cause: &'static str) -> Counter {
    metrics::counter!(telemetry::CACHE_VERDICTS, "verdict" => verdict.name(), "cause" => cause)
}

fn count_verdict(verdict: Verdict, cause: &'static str) {
    let mut counters = VERDICTS.iter();
    let found =
        counters.find(|(of_verdict, of_cause, _)| (*of_verdict, *of_cause) == (verdict, cause));
    match found {
        Some((_, _, counter)) => counter.increment(1),
        None => verdict_counter(verdict, cause).increment(1),
    }
}

/// Counts the tokens that the provider reported for a request of `model`.
pub(super) fn count_tokens(model: Option<&str>, usage: Usage) {
    // A model that nobody answers for gets no series.
    let model = model.filter(|_| usage.prompt.is_some());
    let series = TOKENS.for_model(model.unwrap_or_default(), |model| {
        TOKEN_KINDS.map(|kind| {
            metrics::counter!(telemetry::PROMPT_TOKENS, "model" => model.to_owned(), "kind" => kind)
        })
    });
    let tokens = [
        usage.prompt,
        usage.cached,
        usage.cache_write,
        usage.completion,
        usage.reasoning,
    ];
    for (counter, tokens) in series.iter().zip(tokens) {
        counter.increment(tokens.unwrap_or(0));
    }
}

/// Counts what prompts consisted of, and what observations replaced.
fn count_bytes(segments: SegmentBytes) {
    let bytes = [
        segments.tools,
        segments.system,
        segments.observations,
        segments.reminder,
        segments.messages,
        segments.replaced,
    ];
    for (counter, bytes) in BYTES.iter().zip(bytes) {
        counter.increment(bytes);
    }
}

/// Makes every series appear before its first event: a rate over a series that begins at 1 misses that event.
pub(super) fn register_metrics() {
    count_tokens(None, Usage::default());
    count_bytes(SegmentBytes::default());
    Fallback::register_metrics();
    LazyLock::force(&VERDICTS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_hosts_are_distinguished_from_internet_hosts() {
        for (host, is_own) in [
            ("127.0.0.1", true),
            ("[::1]", true),
            ("192.168.7.3", true),
            ("fd00::7", true),
            ("vllm", true),
            ("GPU.internal", true),
            ("api.mistral.ai", false),
            ("8.8.8.8", false),
            ("2606:4700::1", false),
        ] {
            assert_eq!(is_own_host(host), is_own, "{host}");
        }
    }
}
