//! The audit entry of one request. It is filled in along the request's path and written when it is dropped, so
//! that a client which disconnects anywhere has its entry too.
//!
//! Decides the response headers `x-diarist-*`, since they say the same. Never holds text of a conversation.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::error::{ProxyError, Side};
use super::fallback::Fallback;
use super::identify::{Identity, OffReason, Thread};
use super::mode::{Mode, ModeDecision};
use super::outgoing_request::OutgoingRequest;
use super::rejections::Rejection;
use super::respond;
use super::tee::{self, ObservedAnswer};
use crate::audit::{Audit, AuditRecord, EndReason, MemoryState, RequestSpan, SegmentSizes};
use crate::history::{History, Scope};
use crate::jobs::{Notice, Rest};
use crate::memory::prompt_cache::{Judgement, SegmentBytes, SentPrompt};
use crate::wire::usage::RawUsage;
use crate::wire::{self, Outline};

/// The entry, not yet written.
#[derive(Debug)]
pub(super) struct AuditEntry {
    audit: Option<Audit>,
    record: AuditRecord,
    span: RequestSpan,
    started: Instant,
    observations: Option<u32>,
    fallback: Option<Fallback>,
    reads_only: bool,
    ignored: Vec<String>,
    /// Why the conversation may get no memory for now.
    notice: Option<Notice>,
}

impl AuditEntry {
    pub(super) fn new(audit: Option<&Audit>, span: RequestSpan) -> Self {
        let id = uuid::Uuid::now_v7().to_string();
        let mut record = AuditRecord::new(jiff::Timestamp::now(), id, String::new());
        // Replaced as soon as something else is known.
        record.ended = EndReason::HungUp;
        Self {
            audit: audit.cloned(),
            record,
            span,
            started: Instant::now(),
            observations: None,
            fallback: None,
            reads_only: false,
            ignored: Vec::new(),
            notice: None,
        }
    }

    /// When the request was received, in milliseconds since 1970.
    pub(super) fn received_ms(&self) -> i64 {
        self.record.time.as_millisecond()
    }

    pub(super) fn set_received(&mut self, body: &Bytes) {
        self.record.bytes_received = body.len() as u64;
    }

    pub(super) fn set_tenant(&mut self, scope: &Scope) {
        self.record.tenant = scope.tenant_label();
        self.record.owner = Some(scope.clone());
    }

    /// The model of a request without memory, as far as its body can be read.
    pub(super) fn set_model(&mut self, parsed: &wire::Request) {
        self.record.model = parsed.model().map(str::to_owned);
        self.record.stream = parsed.stream();
        self.record.messages_received = count(parsed.message_count());
    }

    /// The same of a request that is only audited.
    pub(super) fn set_outline(&mut self, outline: Outline) {
        self.record.model = outline.model;
        self.record.stream = outline.stream.unwrap_or(false);
        self.record.messages_received = outline.message_count.and_then(count);
    }

    /// The requested model, if it is known.
    pub(super) fn model(&self) -> Option<&str> {
        self.record.model.as_deref()
    }

    /// Memory's own model calls do not work, or rest. Said where the request goes out with its whole history.
    pub(super) fn set_notice(&mut self, notice: Option<Notice>) {
        self.notice = notice;
    }

    /// Whether the conversation goes without memory, for comparison; `None` if it is in neither group.
    pub(super) fn set_holdout(&mut self, held_out: Option<bool>) {
        self.record.holdout = held_out;
    }

    pub(super) fn set_parsed(
        &mut self,
        identity: &Identity,
        parsed: &wire::Request,
        history: &History,
    ) {
        self.set_model(parsed);
        self.record.memory = MemoryState::Watching;
        self.set_thread(&identity.thread, history);
    }

    /// The conversation, also of a request without memory.
    pub(super) fn set_thread(&mut self, thread: &Thread, history: &History) {
        let label = || {
            history
                .messages()
                .first()
                .map(|chained| chained.link.label())
        };
        self.record.thread = thread.key.clone().or_else(label);
        let by = thread
            .source
            .clone()
            .unwrap_or_else(|| "content".to_owned());
        self.record.thread_by = self.record.thread.is_some().then(|| by.into());
        self.ignored.clone_from(&thread.ignored);
    }

    /// Notes a time zone that is not known.
    pub(super) fn check_time_zone(&mut self, identity: &Identity) {
        if identity.zone_name.is_some() && identity.time_zone().is_none() {
            self.ignored.push("bad_timezone".to_owned());
        }
    }

    /// Memory does not apply.
    pub(super) fn set_off(&mut self, off: OffReason) {
        self.record.memory = if off.is_bypass() {
            MemoryState::Bypass
        } else {
            MemoryState::Off
        };
        self.record.reason = Some(off.name().into());
    }

    /// The mode, and its source.
    pub(super) fn set_mode(&mut self, decided: ModeDecision) {
        self.record.mode = Some(decided.mode.name().into());
        self.record.mode_by = Some(decided.by.to_string().into());
        self.reads_only = decided.mode == Mode::Read;
    }

    pub(super) fn set_bypass(&mut self, reason: String) {
        self.record.memory = MemoryState::Bypass;
        self.record.reason = Some(reason.into());
    }

    /// The request that goes out now. Called again for each one that goes out after a refusal.
    pub(super) fn set_outgoing(&mut self, outgoing: &OutgoingRequest) {
        let record = &mut self.record;
        record.bytes_sent = outgoing.bytes as u64;
        record.messages_sent = outgoing
            .messages
            .and_then(count)
            .or(record.messages_received);
        let block = outgoing.block.as_ref();
        let meta = outgoing.snapshot().map(|snapshot| &snapshot.meta);
        // A snapshot made for a request that may leave no trace is not stored and has no number.
        let stored = meta.filter(|meta| meta.id.0 > 0);
        record.snapshot = stored.map(|meta| meta.id.0.to_string());
        let layout = outgoing.layout.as_ref();
        record.cut = layout.and_then(|shape| count(shape.cut - shape.front.len()));
        record.pin = layout.and_then(|shape| shape.pin).and_then(count);
        record.cause = meta.map(|meta| meta.cause.name().into());
        let peers = meta.and_then(|meta| meta.peer_memory.as_ref());
        record.others = peers.and_then(|others| count(others.lineages.len()));
        record.added = Some(outgoing.added())
            .filter(|added| !added.is_empty())
            .map(Into::into);
        record.others_tokens = peers.map(|others| others.tokens);
        self.observations = meta.map(|meta| meta.tokens);
        if outgoing.messages.is_none() {
            return;
        }
        record.rung = Some(outgoing.fallback.name().into());
        record.reason = Some(outgoing.why.into());
        record.trimmed = layout.and_then(|shape| shape.trimmed).and_then(count);
        record.memory = match (block, outgoing.fallback) {
            (_, Fallback::Original | Fallback::Refused | Fallback::Blocked) => MemoryState::Bypass,
            // There are observations, and no place where the upstream takes them.
            (None, _) if outgoing.why == "no_placement" => MemoryState::Bypass,
            (Some(_), _) => MemoryState::Active,
            (None, _) => MemoryState::Watching,
        };
        match outgoing.fallback {
            Fallback::Original => record.reason = Some("store".into()),
            Fallback::Refused => record.reason = Some("refused".into()),
            Fallback::NotNeeded
            | Fallback::ProcessCache
            | Fallback::Blocked
            | Fallback::Observed
            | Fallback::LowerPlacement
            | Fallback::OverflowObserved
            | Fallback::Trimmed => {}
        }
        if let Some(notice) = self.notice
            && record.memory == MemoryState::Watching
        {
            record.reason = Some(notice_name(notice).into());
            if let Some(rest) = rest_of(notice) {
                record.since = Some(format!("{:.3}", rest.since));
                record.until = Some(format!("{:.3}", rest.until));
            }
        }
        self.fallback = Some(outgoing.fallback);
    }

    pub(super) fn set_status(&mut self, status: StatusCode) {
        self.record.status = Some(status.as_u16());
    }

    /// The error in an answer whose status is a success.
    pub(super) fn set_error(&mut self, error: Option<&'static str>) {
        self.record.error = error.map(Into::into);
    }

    /// The client gets an answer of Diarist because of `error`.
    pub(super) fn refuse(&mut self, error: ProxyError) -> Rejection {
        self.record.status = Some(respond::status(&error).as_u16());
        self.record.ended = match error.side() {
            Side::Upstream => EndReason::UpstreamError,
            Side::Internal => EndReason::Complete,
            Side::Downstream => EndReason::HungUp,
        };
        Rejection::with_id(error, &self.record.request_id)
    }

    /// When the request was received.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// What the provider's prompt cache did, and why. `idle` is the time since the conversation's previous request.
    pub(super) fn set_judgement(&mut self, judgement: &Judgement, idle: Option<Duration>) {
        let record = &mut self.record;
        record.common_bytes = judgement.change.map(|change| change.common_bytes);
        let first = judgement.change.and_then(|change| change.first);
        record.changed = first.map(|(part, _)| part.to_string().into());
        record.changed_by = first.map(|(_, author)| author.name().into());
        record.idle_ms = idle.map(millis);
        record.verdict = Some(judgement.verdict.name().into());
        record.verdict_cause = judgement.cause.map(|cause| cause.name().into());
        record.expected_cached_tokens = judgement.expected_cached_tokens;
    }

    /// How many tokens the provider of this model counts where Diarist counts one.
    pub(super) fn set_token_ratio(&mut self, ratio: Option<f64>) {
        self.record.token_ratio = ratio;
    }

    /// What the prompt consisted of, which had `tokens` if the provider reported them.
    pub(super) fn set_segments(&mut self, prompt: &SentPrompt, tokens: Option<u64>) {
        let (bytes, attachments) = (prompt.segment_bytes(), prompt.attachment_bytes());
        let sizes = |sizes: SegmentBytes| SegmentSizes {
            tools: sizes.tools,
            system: sizes.system,
            observations: sizes.observations,
            messages: sizes.messages,
            replaced: sizes.replaced,
            reminder: sizes.reminder,
        };
        self.record.segments = Some(sizes(bytes));
        let unless_zero = |bytes: u64| (bytes > 0).then_some(bytes);
        self.record.attachment_bytes_received = unless_zero(attachments.received);
        self.record.attachment_bytes_sent = unless_zero(attachments.sent);
        self.record.segment_tokens = tokens.map(|tokens| sizes(bytes.share_of(tokens)));
    }

    /// The usage as the provider wrote it.
    pub(super) fn set_raw_usage(&mut self, usage: Option<RawUsage>) {
        self.record.usage = usage.and_then(RawUsage::into_json);
    }

    /// The answer has ended. What is known of it is written when the entry is dropped.
    pub(super) fn finish(&mut self, observed: &ObservedAnswer) {
        self.record.set_usage(observed.usage);
        self.record.ttfb_ms = observed
            .first_byte
            .map(|at| millis(at.saturating_duration_since(self.started)));
        self.record.ended = match observed.ended {
            tee::EndReason::Complete => EndReason::Complete,
            tee::EndReason::HungUp => EndReason::HungUp,
            tee::EndReason::UpstreamError => EndReason::UpstreamError,
        };
    }

    /// Sets the response headers: request id, conversation, what memory did.
    pub(super) fn write_headers(&self, headers: &mut HeaderMap) {
        let mut set = |name: HeaderName, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        };
        set(respond::REQUEST_ID, self.record.request_id.clone());
        if let Some(thread) = &self.record.thread {
            set(HeaderName::from_static("x-diarist-thread"), thread.clone());
        }
        let state = match self.record.memory {
            MemoryState::Off => "off",
            MemoryState::Watching => "watching",
            MemoryState::Active => "active",
            MemoryState::Bypass => "bypass",
        };
        let watching = self.record.memory == MemoryState::Watching;
        let notice = self.notice.filter(|_| watching && self.fallback.is_some());
        let explain = !watching && self.record.memory != MemoryState::Active || notice.is_some();
        let mut header = state.to_owned();
        if let Some(reason) = self.record.reason.as_deref().filter(|_| explain) {
            header.push_str("; reason=");
            header.push_str(reason);
        }
        if let Some(rest) = notice.and_then(rest_of) {
            header.push_str(&format!("; until={:.0}", rest.until));
        }
        if let Some(fallback) = self.fallback.filter(|rung| *rung != Fallback::NotNeeded) {
            header.push_str("; rung=");
            header.push_str(fallback.name());
        }
        if self.reads_only {
            header.push_str("; mode=read");
        }
        set(HeaderName::from_static("x-diarist-memory"), header);
        if let Some(tokens) = self.observations {
            set(
                HeaderName::from_static("x-diarist-tokens"),
                format!("observations={tokens}"),
            );
        }
    }
}

impl Drop for AuditEntry {
    fn drop(&mut self) {
        self.record.total_ms = millis(self.started.elapsed());
        // Counted here, because a request that was sent twice is one request, with its last fallback.
        if let Some(fallback) = self.fallback {
            fallback.count();
        }
        if !self.ignored.is_empty() {
            self.record.ignored = Some(self.ignored.join(" ").into());
        }
        if let Some(audit) = &self.audit {
            let empty = AuditRecord::new(self.record.time, String::new(), String::new());
            let record = std::mem::replace(&mut self.record, empty);
            audit.record(record, std::mem::take(&mut self.span));
        }
    }
}

fn notice_name(notice: Notice) -> &'static str {
    match notice {
        Notice::ObserverFailing(_) => "observer_failing",
        Notice::ObserverResting(_) => "observer_resting",
        Notice::BudgetSpent(_) => "budget_spent",
    }
}

/// When the calls began to wait, and until when they do, if they wait for a time.
fn rest_of(notice: Notice) -> Option<Rest> {
    match notice {
        Notice::ObserverFailing(rest) => rest,
        Notice::ObserverResting(rest) | Notice::BudgetSpent(rest) => Some(rest),
    }
}

fn count(number: usize) -> Option<u32> {
    u32::try_from(number).ok()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
