//! The audit line of one request, filled in as the request goes and written when it is dropped:
//! a client that hangs up anywhere leaves its line all the same.

use std::time::Instant;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::choice::{Choice, Rung};
use super::identify::{Identity, Off};
use super::mode::{Decided, Mode};
use super::tee::{self, Observed};
use super::{ProxyError, Side, respond};
use crate::audit::{Audit, AuditRecord, Ended, MemoryState};
use crate::history::History;
use crate::telemetry;
use crate::wire::chat::Parsed;

/// The line under way.
#[derive(Debug)]
pub(super) struct Line {
    audit: Option<Audit>,
    record: AuditRecord,
    began: Instant,
    observations: Option<u32>,
    rung: Option<Rung>,
    reads_only: bool,
    ignored: Vec<String>,
}

impl Line {
    pub(super) fn begin(audit: Option<&Audit>) -> Self {
        let id = uuid::Uuid::now_v7().to_string();
        let mut record = AuditRecord::new(jiff::Timestamp::now(), id, String::new());
        // Until something better is known: the client went away.
        record.ended = Ended::HungUp;
        Self {
            audit: audit.cloned(),
            record,
            began: Instant::now(),
            observations: None,
            rung: None,
            reads_only: false,
            ignored: Vec::new(),
        }
    }

    /// When the request came, in milliseconds since 1970.
    pub(super) fn came_ms(&self) -> i64 {
        self.record.time.as_millisecond()
    }

    pub(super) fn received(&mut self, body: &Bytes) {
        self.record.bytes_received = body.len() as u64;
    }

    pub(super) fn tenant(&mut self, identity: &Identity) {
        self.record.tenant = identity.scope.tenant_label();
    }

    pub(super) fn parsed(&mut self, identity: &Identity, parsed: &Parsed, history: &History) {
        self.record.model = parsed.model().map(str::to_owned);
        self.record.stream = parsed.stream();
        self.record.messages_received = count(parsed.message_count());
        self.record.memory = MemoryState::Watching;
        let label = || history.turns().first().map(|turn| turn.link.label());
        let thread = &identity.thread;
        self.record.thread = thread.key.clone().or_else(label);
        let by = thread.by.clone().unwrap_or_else(|| "content".to_owned());
        self.record.thread_by = Some(by.into());
        self.ignored.clone_from(&thread.ignored);
    }

    /// What the client said of its zone, if that could not be used.
    pub(super) fn zone(&mut self, identity: &Identity) {
        if identity.zone_name.is_some() && identity.zone().is_none() {
            self.ignored.push("bad_timezone".to_owned());
        }
    }

    /// Memory stays out.
    pub(super) fn without(&mut self, off: Off) {
        self.record.memory = if off.is_doubt() {
            MemoryState::Bypass
        } else {
            MemoryState::Off
        };
        self.record.reason = Some(off.name().into());
    }

    /// What memory may do, and who said so.
    pub(super) fn mode(&mut self, decided: Decided) {
        self.record.mode = Some(decided.mode.name().into());
        self.record.mode_by = Some(decided.by.to_string().into());
        self.reads_only = decided.mode == Mode::Read;
    }

    pub(super) fn bypass(&mut self, reason: String) {
        self.record.memory = MemoryState::Bypass;
        self.record.reason = Some(reason.into());
    }

    /// What goes out now; called again where something else goes out after a refusal.
    pub(super) fn chosen(&mut self, choice: &Choice) {
        let record = &mut self.record;
        record.bytes_sent = choice.bytes as u64;
        record.messages_sent = choice.messages.and_then(count).or(record.messages_received);
        let block = choice.block.as_ref();
        let meta = choice.snapshot().map(|snapshot| &snapshot.meta);
        // One that was made for a request that may leave no trace has no number.
        let stored = meta.filter(|meta| meta.id.0 > 0);
        record.snapshot = stored.map(|meta| meta.id.0.to_string());
        let shape = choice.shape.as_ref();
        record.cut = shape.and_then(|shape| count(shape.cut - shape.front.len()));
        record.pin = shape.and_then(|shape| shape.pin).and_then(count);
        record.cause = meta.map(|meta| meta.cause.name().into());
        let others = meta.and_then(|meta| meta.others.as_ref());
        record.others = others.and_then(|others| count(others.lineages.len()));
        record.others_tokens = others.map(|others| others.tokens);
        self.observations = meta.map(|meta| meta.tokens);
        if choice.messages.is_none() {
            return;
        }
        record.rung = Some(choice.rung.name().into());
        record.reason = Some(choice.why.into());
        record.trimmed = shape.and_then(|shape| shape.trimmed).and_then(count);
        record.memory = match (block, choice.rung) {
            (_, Rung::Original | Rung::Refused | Rung::PassedOver) => MemoryState::Bypass,
            (Some(_), _) => MemoryState::Active,
            (None, _) => MemoryState::Watching,
        };
        match choice.rung {
            Rung::Original => record.reason = Some("store".into()),
            Rung::Refused => record.reason = Some("refused".into()),
            Rung::Whole
            | Rung::Process
            | Rung::PassedOver
            | Rung::Observed
            | Rung::Lowered
            | Rung::Awaited
            | Rung::Trimmed => {}
        }
        self.rung = Some(choice.rung);
    }

    pub(super) fn answered(&mut self, status: StatusCode) {
        self.record.status = Some(status.as_u16());
    }

    /// What the answer says in spite of its status.
    pub(super) fn error(&mut self, error: Option<&'static str>) {
        self.record.error = error.map(Into::into);
    }

    pub(super) fn failed(&mut self, error: &ProxyError) {
        self.record.status = Some(respond::status(error).as_u16());
        self.record.ended = match error.side() {
            Side::Upstream => Ended::UpstreamError,
            Side::Internal => Ended::Complete,
            Side::Downstream => Ended::HungUp,
        };
    }

    /// The answer has ended.
    pub(super) fn ended(mut self, observed: &Observed) {
        self.record.set_usage(observed.usage);
        self.record.ttfb_ms = observed
            .first_byte
            .map(|at| millis(at.saturating_duration_since(self.began)));
        self.record.ended = match observed.ended {
            tee::Ended::Complete => Ended::Complete,
            tee::Ended::HungUp => Ended::HungUp,
            tee::Ended::UpstreamError => Ended::UpstreamError,
        };
    }

    /// What the client is told: who, which conversation, what memory did.
    pub(super) fn write_headers(&self, headers: &mut HeaderMap) {
        let mut set = |name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        set("x-diarist-request-id", self.record.request_id.clone());
        if let Some(thread) = &self.record.thread {
            set("x-diarist-thread", thread.clone());
        }
        let state = match self.record.memory {
            MemoryState::Off => "off",
            MemoryState::Watching => "watching",
            MemoryState::Active => "active",
            MemoryState::Bypass => "bypass",
        };
        let explain = matches!(self.record.memory, MemoryState::Off | MemoryState::Bypass);
        let mut said = state.to_owned();
        if let Some(reason) = self.record.reason.as_deref().filter(|_| explain) {
            said.push_str("; reason=");
            said.push_str(reason);
        }
        if let Some(rung) = self.rung.filter(|rung| *rung != Rung::Whole) {
            said.push_str("; rung=");
            said.push_str(rung.name());
        }
        if self.reads_only {
            said.push_str("; mode=read");
        }
        set("x-diarist-memory", said);
        if let Some(tokens) = self.observations {
            set("x-diarist-tokens", format!("observations={tokens}"));
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.record.total_ms = millis(self.began.elapsed());
        // Here, because a request that goes out twice is one request, on the rung it ended on.
        if let Some(rung) = self.rung {
            metrics::counter!(telemetry::MEMORY_REQUESTS, "rung" => rung.name()).increment(1);
        }
        if !self.ignored.is_empty() {
            self.record.ignored = Some(self.ignored.join(" ").into());
        }
        if let Some(audit) = &self.audit {
            audit.record(self.record.clone());
        }
    }
}

fn count(number: usize) -> Option<u32> {
    u32::try_from(number).ok()
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
