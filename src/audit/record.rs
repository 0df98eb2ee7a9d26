//! The audit line.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::wire::usage::Usage;

/// One line of the audit. The order of the fields is the order in the line and does not change;
/// new fields go to the end. What is not known is left out: a number that is 0 was reported as 0.
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
    /// What the client was answered; absent if it hung up before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Messages in the client's body; absent where it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_received: Option<u32>,
    /// Messages in the forwarded body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_sent: Option<u32>,
    /// Bytes of the client's body.
    pub bytes_received: u64,
    /// Bytes of the forwarded body.
    pub bytes_sent: u64,
    /// The snapshot that stood in for the oldest messages.
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
    /// The rung of the ladder that the request went out on: `whole` where nothing went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rung: Option<Cow<'static, str>>,
    pub memory: MemoryState,
    /// Why memory was off or bypassed, or what decided the selection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// The whole prompt as the provider counted it, cache reads included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Read from the provider's prompt cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Written to the provider's prompt cache.
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
    /// What the request says of itself that could not be used, and was not, with a space between:
    /// `bad_timezone`, or a place where a conversation's name stood and why it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<Cow<'static, str>>,
    /// What memory may do for this request: `on`, `read` or `off`; absent where that was never asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Cow<'static, str>>,
    /// Who decided that: `default`, `header`, `rule_1`, ... or `read_only`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_by: Option<Cow<'static, str>>,
    /// How many messages were left out and are in no observation, because the request did not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trimmed: Option<u32>,
    /// What named the conversation: a header, `body.` and a field, or `content` where nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_by: Option<Cow<'static, str>>,
    /// Of how many other conversations of its user the block tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<u32>,
    /// Tokens of what it tells of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_tokens: Option<u32>,
    /// What an answer of status 200 says instead of an answer: `too_long`, or `error` for any other
    /// error. Such a request counts as refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Cow<'static, str>>,
}

impl AuditRecord {
    /// A record of a request that nothing is known of yet but that it came.
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
        }
    }

    /// Takes over what the provider reported; what it did not report stays absent.
    pub fn set_usage(&mut self, usage: Option<Usage>) {
        let usage = usage.unwrap_or_default();
        self.prompt_tokens = usage.prompt;
        self.cached_tokens = usage.cached;
        self.cache_write_tokens = usage.cache_write;
        self.completion_tokens = usage.completion;
    }
}

/// What memory did for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryState {
    /// Not wanted here.
    Off,
    /// The conversation is followed; nothing stands in for any of it yet.
    Watching,
    /// A snapshot stood in for the oldest messages.
    Active,
    /// Memory had doubts or failed; the client's own bytes went out.
    Bypass,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    Complete,
    /// The client went away before the end.
    HungUp,
    /// The upstream broke off, or never answered.
    UpstreamError,
}

pub(super) fn milliseconds<S: Serializer>(
    time: &Timestamp,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
}
