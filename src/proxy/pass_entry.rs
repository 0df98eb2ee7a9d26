//! The audit line of a request that passes through unread. It is written when it is dropped: when the answer has
//! ended, or the client has left. Reads no body; it counts the bytes of the answer. Called by [`super::flow`],
//! [`super::rejections`] and [`super::upgrade`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::body::ProxyBody;
use super::error::{ProxyError, Side};
use super::memory::Memory;
use super::respond;
use crate::audit::{Audit, EndReason, PassRecord, RequestKind, RequestSpan};
use crate::upstream::BoxError;

/// The line, not yet written. Without an audit it does nothing.
#[derive(Debug)]
pub(super) struct PassEntry {
    line: Option<(Audit, PassRecord)>,
    span: RequestSpan,
    started: Instant,
}

impl PassEntry {
    /// The headers of `parts` may get the span as their parent.
    pub(super) fn new(
        memory: Option<&Memory>,
        parts: &mut Parts,
        bytes_received: Option<u64>,
    ) -> Self {
        let audit = memory.and_then(|memory| memory.audit.as_ref());
        // Hashed only for a database, which keeps it beside the line.
        let is_stored = audit.is_some_and(Audit::is_stored);
        let owner = memory.filter(|_| is_stored);
        let owner = owner.and_then(|memory| memory.owner(parts));
        let span = Audit::begin_span(audit, &mut parts.headers, RequestKind::Pass);
        let line = audit.map(|audit| {
            let record = PassRecord {
                owner,
                ..record(&parts.method, &parts.uri, bytes_received)
            };
            (audit.clone(), record)
        });
        Self {
            line,
            span,
            started: Instant::now(),
        }
    }

    /// The entry of a request that Diarist refuses, with the code of its answer; see [`super::rejections`].
    pub(super) fn refused(
        audit: &Audit,
        method: &Method,
        uri: &Uri,
        code: &'static str,
        unlisted: u64,
    ) -> Self {
        let record = PassRecord {
            refused: Some(code),
            unlisted: (unlisted > 0).then_some(unlisted),
            ..record(method, uri, None)
        };
        Self {
            line: Some((audit.clone(), record)),
            span: RequestSpan::default(),
            started: Instant::now(),
        }
    }

    /// The entry of a request whose head could not be read, which was answered with so many bytes.
    pub(super) fn unreadable(
        audit: &Audit,
        error: &ProxyError,
        bytes: usize,
        unlisted: u64,
    ) -> Self {
        let code = respond::code(error);
        let mut entry = Self::refused(audit, &Method::GET, &Uri::default(), code, unlisted);
        if let Some((_, record)) = &mut entry.line {
            // Nobody knows them.
            record.method.clear();
            record.path.clear();
            record.status = Some(respond::status(error).as_u16());
            record.bytes_answered = bytes as u64;
            record.ended = EndReason::Complete;
        }
        entry
    }

    pub(super) fn set_failed(&mut self, error: &ProxyError) {
        if let Some((_, record)) = &mut self.line {
            record.status = Some(respond::status(error).as_u16());
            record.refused = (error.side() != Side::Upstream).then(|| respond::code(error));
            record.ended = match error.side() {
                Side::Upstream => EndReason::UpstreamError,
                Side::Internal => EndReason::Complete,
                Side::Downstream => EndReason::HungUp,
            };
        }
    }

    /// Continues until the answer's body has ended.
    pub(super) fn track(mut self, response: Response<ProxyBody>) -> Response<ProxyBody> {
        let Some((_, record)) = &mut self.line else {
            return response;
        };
        record.status = Some(response.status().as_u16());
        response.map(|body| CountedBody { body, entry: self }.boxed_unsync())
    }

    /// Continues until a tunnel has ended, whose bytes are counted by whoever carries them.
    pub(super) fn begin_tunnel(&mut self) {
        let elapsed = self.elapsed_ms();
        if let Some((_, record)) = &mut self.line {
            record.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
            record.ttfb_ms = Some(elapsed);
        }
    }

    /// The tunnel has ended. `is_whole`: both sides have ended it.
    pub(super) fn end_tunnel(&mut self, received: u64, answered: u64, is_whole: bool) {
        if let Some((_, record)) = &mut self.line {
            record.bytes_received = Some(received);
            record.bytes_answered = answered;
            if is_whole {
                record.ended = EndReason::Complete;
            }
        }
    }

    fn count(&mut self, bytes: usize) {
        let elapsed = self.elapsed_ms();
        if let Some((_, record)) = &mut self.line {
            record.ttfb_ms.get_or_insert(elapsed);
            record.bytes_answered += bytes as u64;
        }
    }

    fn end(&mut self, ended: EndReason) {
        if let Some((_, record)) = &mut self.line {
            record.ended = ended;
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for PassEntry {
    fn drop(&mut self) {
        let elapsed = self.elapsed_ms();
        if let Some((audit, mut record)) = self.line.take() {
            record.total_ms = elapsed;
            audit.pass(record, std::mem::take(&mut self.span));
        }
    }
}

/// A line of which no more is known than the request's head.
fn record(method: &Method, uri: &Uri, bytes_received: Option<u64>) -> PassRecord {
    PassRecord {
        time: jiff::Timestamp::now(),
        method: method.as_str().chars().take(MAX_PART_BYTES).collect(),
        path: shown_path(uri.path()),
        status: None,
        bytes_received,
        bytes_answered: 0,
        ttfb_ms: None,
        total_ms: 0,
        // Replaced as soon as something else is known.
        ended: EndReason::HungUp,
        refused: None,
        unlisted: None,
        model: path_model(uri.path()),
        owner: None,
    }
}

/// A longer part of a path may be an id or a secret.
const MAX_PART_BYTES: usize = 24;

/// The most parts of a path that are shown.
const MAX_PARTS: usize = 12;

/// The path as the audit shows it.
fn shown_path(path: &str) -> String {
    let is_word = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        part.len() <= MAX_PART_BYTES && part.bytes().all(plain)
    };
    let parts = path.split('/').take(MAX_PARTS);
    let shown: Vec<&str> = parts
        .map(|part| if is_word(part) { part } else { "*" })
        .collect();
    shown.join("/")
}

/// What stands in front of a model in a path: `/openai/deployments/NAME/…`, `/v1beta/models/NAME:generateContent`.
const BEFORE_MODEL: [&str; 3] = ["deployments", "models", "engines"];

/// A longer part of a path is no name of a model.
const MAX_MODEL_BYTES: usize = 64;

/// The model that a path names.
fn path_model(path: &str) -> Option<String> {
    let mut parts = path.split('/').take(MAX_PARTS);
    parts.find(|part| BEFORE_MODEL.contains(part))?;
    let name = parts.next()?.split(':').next()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=MAX_MODEL_BYTES).contains(&name.len()) && name.bytes().all(plain);
    is_name.then(|| name.to_owned())
}

struct CountedBody {
    body: ProxyBody,
    entry: PassEntry,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => self.entry.end(EndReason::Complete),
            Poll::Ready(Some(Err(_))) => self.entry.end(EndReason::UpstreamError),
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                Some(data) => self.entry.count(data.len()),
                // Nothing follows trailers, and a server does not ask.
                None => self.entry.end(EndReason::Complete),
            },
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        let is_open = |(_, record): &(Audit, PassRecord)| record.ended == EndReason::HungUp;
        // If the length is known, nobody polls for a frame after the last.
        if self.body.is_end_stream() && self.entry.line.as_ref().is_some_and(is_open) {
            self.entry.end(EndReason::Complete);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{path_model, shown_path};

    #[test]
    fn a_model_is_read_where_the_path_names_it() {
        for (path, model) in [
            ("/openai/deployments/gpt-5/chat/completions", Some("gpt-5")),
            (
                "/v1beta/models/gemini-3-pro:generateContent",
                Some("gemini-3-pro"),
            ),
            ("/v1/models/", None),
            ("/v1/models/a%20b", None),
            ("/v1/embeddings", None),
            ("/v1/files/models", None),
        ] {
            assert_eq!(path_model(path).as_deref(), model, "{path}");
        }
        let long = format!("/v1/models/{}", "a".repeat(65));
        assert_eq!(path_model(&long), None);
    }

    #[test]
    fn a_logged_path_hides_ids_and_secrets() {
        for (path, shown) in [
            ("/v1/embeddings", "/v1/embeddings"),
            (
                "/v1/models/text-embedding-3-large",
                "/v1/models/text-embedding-3-large",
            ),
            ("/v1/files/file-0123456789abcdef0123456789", "/v1/files/*"),
            ("/hook/sk%2Dsecret/x", "/hook/*/x"),
            ("/", "/"),
        ] {
            assert_eq!(shown_path(path), shown);
        }
        assert_eq!(shown_path(&"/a".repeat(99)).len(), 22);
    }
}
