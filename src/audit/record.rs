//! The audit line of a request. Made by `proxy`.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::history::Scope;
use crate::wire::usage::Usage;

/// One line. The order of the fields is the order in the line and does not change; new fields go to the end. An
/// unknown value is left out: a number that is 0 was reported as 0.
#[derive(Clone, Debug, Serialize)]
pub struct AuditRecord {
    /// When the request came, RFC 3339 in UTC with milliseconds.
    #[serde(serialize_with = "milliseconds")]
    pub time: Timestamp,
    pub request_id: String,
    /// A short hash; never the credential.
    pub tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The client asked for a stream.
    pub stream: bool,
    /// The status of the answer; absent if the client disconnected before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Messages in the client's body; absent if it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_received: Option<u32>,
    /// Messages in the forwarded body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_sent: Option<u32>,
    /// Bytes of the client's body.
    pub bytes_received: u64,
    /// Bytes of the forwarded body.
    pub bytes_sent: u64,
    /// The snapshot in the place of the oldest messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// How many of the client's messages the snapshot covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<u32>,
    /// The place of the message that is pinned behind the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<u32>,
    /// Why that snapshot was made: `threshold`, `reflection` or `overflow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cow<'static, str>>,
    /// The fallback that the request went out with: `whole` if nothing failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rung: Option<Cow<'static, str>>,
    pub memory: MemoryState,
    /// Why memory was off or bypassed, or the reason for the selection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// Tokens of the whole prompt as the provider counted them, cache reads included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens read from the provider's prompt cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Tokens written to the provider's prompt cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// From the request's head to the first byte of the answer's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttfb_ms: Option<u64>,
    /// From the request's head to the answer's end.
    pub total_ms: u64,
    pub ended: EndReason,
    /// Values of the request that could not be used, separated by spaces: `bad_timezone`, or a place with the name of a
    /// conversation and the reason why the name cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<Cow<'static, str>>,
    /// The mode of this request: `on`, `read` or `off`; absent if it was not decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Cow<'static, str>>,
    /// What decided the mode: `default`, `header`, `rule_1`, ... or `read_only`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_by: Option<Cow<'static, str>>,
    /// How many messages were left out without being observed, because the request did not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trimmed: Option<u32>,
    /// What named the conversation: a header, `body.` and a field, or `content` if nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_by: Option<Cow<'static, str>>,
    /// How many other conversations of the user the block describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<u32>,
    /// Tokens of the section about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_tokens: Option<u32>,
    /// The error in an answer of status 200: `too_long`, or `error` for any other one. Such a request counts as refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Cow<'static, str>>,
    /// Bytes of the prompt, as sent, that are the same as at the beginning of the conversation's previous one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_bytes: Option<u64>,
    /// The first part that differs from the previous prompt; absent if the prompt only grew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<Cow<'static, str>>,
    /// Who changed it: `client` or `memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<Cow<'static, str>>,
    /// From the end of the conversation's previous request to the beginning of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// What the provider's prompt cache did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Cow<'static, str>>,
    /// Why it gave back less than it could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict_cause: Option<Cow<'static, str>>,
    /// How many tokens it should give back, estimated from the common prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_cached_tokens: Option<u64>,
    /// The part of `completion_tokens` that is reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Whether the conversation goes without memory, for comparison. Absent if it is in neither group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holdout: Option<bool>,
    /// Bytes of the prompt as sent, by segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<SegmentSizes>,
    /// Since when memory's calls wait, if `reason` says that they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Until when they wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// What was added to the request besides the block, separated by spaces: `cache_mark`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<Cow<'static, str>>,
    /// How many tokens the provider of this model counts where Diarist counts one: a running figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ratio: Option<f64>,
    /// The usage report as the provider wrote it, without anything that is not a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Value>,
    /// The tokens of the prompt by segment: an estimate in proportion to bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment_tokens: Option<SegmentSizes>,
    /// The tokens of a prompt that nobody reported, by its bytes: an estimate. Absent if they were reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_prompt_tokens: Option<u64>,
    /// `true` if more was reported of the cache than the prompt has: then what came from it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impossible_usage: Option<bool>,
    /// Bytes of the data of attachments in `bytes_received`, beyond those of text that has as many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment_bytes_received: Option<u64>,
    /// The same in `bytes_sent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment_bytes_sent: Option<u64>,
    /// Whose it is, if that was decided: a database keeps it beside the line.
    #[serde(skip)]
    pub(crate) owner: Option<Scope>,
}

/// Bytes or tokens of each segment of a prompt as it was sent, and of what the observations replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentSizes {
    pub tools: u64,
    pub system: u64,
    pub observations: u64,
    pub messages: u64,
    pub replaced: u64,
    /// Diarist's own words around the observations.
    pub reminder: u64,
}

impl AuditRecord {
    /// A record of a request that was just received.
    #[must_use]
    pub fn new(time: Timestamp, request_id: String, tenant: String) -> Self {
        Self {
            time,
            request_id,
            tenant,
            thread: None,
            model: None,
            stream: false,
            status: None,
            messages_received: None,
            messages_sent: None,
            bytes_received: 0,
            bytes_sent: 0,
            snapshot: None,
            cut: None,
            pin: None,
            cause: None,
            rung: None,
            memory: MemoryState::Off,
            reason: None,
            prompt_tokens: None,
            cached_tokens: None,
            cache_write_tokens: None,
            completion_tokens: None,
            ttfb_ms: None,
            total_ms: 0,
            ended: EndReason::Complete,
            ignored: None,
            mode: None,
            mode_by: None,
            trimmed: None,
            thread_by: None,
            others: None,
            others_tokens: None,
            error: None,
            common_bytes: None,
            changed: None,
            changed_by: None,
            idle_ms: None,
            verdict: None,
            verdict_cause: None,
            expected_cached_tokens: None,
            reasoning_tokens: None,
            holdout: None,
            segments: None,
            attachment_bytes_received: None,
            attachment_bytes_sent: None,
            since: None,
            until: None,
            added: None,
            token_ratio: None,
            usage: None,
            segment_tokens: None,
            estimated_prompt_tokens: None,
            impossible_usage: None,
            owner: None,
        }
    }

    /// Copies what the provider reported; the rest stays absent.
    pub fn set_usage(&mut self, usage: Option<Usage>) {
        let usage = usage.unwrap_or_default();
        self.prompt_tokens = usage.prompt;
        self.cached_tokens = usage.cached;
        self.cache_write_tokens = usage.cache_write;
        self.completion_tokens = usage.completion;
        self.reasoning_tokens = usage.reasoning;
        self.impossible_usage = usage.impossible_cache.then_some(true);
    }
}

/// What memory did for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryState {
    /// Memory is turned off for the request.
    Off,
    /// The conversation is recorded, but no snapshot replaces anything yet.
    Watching,
    /// A snapshot replaced the oldest messages.
    Active,
    /// Memory was in doubt or failed; the client's own bytes went out.
    Bypass,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    Complete,
    /// The client disconnected before the end.
    HungUp,
    /// The upstream broke off, or did not answer.
    UpstreamError,
}

pub(super) fn milliseconds<S: Serializer>(
    time: &Timestamp,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
}
