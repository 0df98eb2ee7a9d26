//! The audit lines of requests that Diarist refuses before it reads them: too many, for another host, in a form that
//! it does not carry, or with a head that nobody can read.
//!
//! Whoever sends them decides how many there are, so only some of a second get a line, and the next line says how many
//! did not. Otherwise a flood would fill the disk, and take the places of other lines in the audit's queue. All are
//! counted in `diarist_errors_total`. Called by [`super::flow`] and by `server`, through [`super::Proxy::refuse`].

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderValue, Method, Response, Uri};

use super::body::ProxyBody;
use super::error::ProxyError;
use super::pass_entry::PassEntry;
use super::respond;
use crate::audit::Audit;

/// Lines of rejections in one second. A flood that never ends writes about 200 MB in a day.
const MAX_LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// A request that gets an answer of Diarist, and its audit line if it has none yet.
#[derive(Debug)]
pub(super) struct Rejection {
    error: ProxyError,
    /// Boxed: results would be large with it.
    entry: Option<Box<PassEntry>>,
    /// The id in its audit line. The client is told, because it has no other way to name the request.
    request_id: Option<Box<str>>,
}

/// The request has an audit line of its own already.
impl From<ProxyError> for Rejection {
    fn from(error: ProxyError) -> Self {
        Self {
            error,
            entry: None,
            request_id: None,
        }
    }
}

impl Rejection {
    /// The same for a request whose line has this id.
    pub(super) fn with_id(error: ProxyError, request_id: &str) -> Self {
        Self {
            request_id: Some(request_id.into()),
            ..error.into()
        }
    }

    pub(super) fn into_response(self) -> Response<ProxyBody> {
        let mut response = respond::error(&self.error, self.request_id.as_deref());
        let id = self.request_id.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(id)) = id {
            response.headers_mut().insert(respond::REQUEST_ID, id);
        }
        match self.entry {
            Some(entry) => entry.track(response),
            None => response,
        }
    }
}

/// Begins lines, at most [`MAX_LINES`] in a second.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    current: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    lines: u32,
    /// Rejections since the last line that have none.
    unlisted: u64,
}

impl Rejections {
    /// Refuses the request with this head.
    pub(super) fn begin(
        &self,
        audit: Option<&Audit>,
        head: &Parts,
        error: ProxyError,
    ) -> Rejection {
        self.refuse(audit, &head.method, &head.uri, error)
    }

    /// The same for a request that is not taken apart.
    pub(super) fn refuse(
        &self,
        audit: Option<&Audit>,
        method: &Method,
        uri: &Uri,
        error: ProxyError,
    ) -> Rejection {
        let entry = audit.and_then(|audit| {
            let unlisted = self.take_line(Instant::now())?;
            let code = respond::code(&error);
            let entry = PassEntry::refused(audit, method, uri, code, unlisted);
            Some(Box::new(entry))
        });
        Rejection {
            error,
            entry,
            request_id: None,
        }
    }

    /// The line of a request whose head could not be read. It was answered with so many bytes.
    pub(super) fn note_unreadable_head(&self, audit: &Audit, error: &ProxyError, bytes: usize) {
        if let Some(unlisted) = self.take_line(Instant::now()) {
            drop(PassEntry::unreadable(audit, error, bytes, unlisted));
        }
    }

    /// Whether a refusal gets a line now; if so, how many before it did not.
    fn take_line(&self, now: Instant) -> Option<u64> {
        let mut window = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |began| now.saturating_duration_since(began) >= SECOND;
        if window.began.is_none_or(is_over) {
            window.began = Some(now);
            window.lines = 0;
        }
        if window.lines >= MAX_LINES {
            window.unlisted += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.unlisted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_log_lines_are_limited_and_the_next_one_counts_the_rest() {
        let rejections = Rejections::default();
        let start = Instant::now();
        for _ in 0..MAX_LINES {
            assert_eq!(rejections.take_line(start), Some(0));
        }
        let nearly = start + Duration::from_millis(999);
        for _ in 0..1_000 {
            assert_eq!(rejections.take_line(nearly), None);
        }
        assert_eq!(rejections.take_line(start + SECOND), Some(1_000));
        assert_eq!(rejections.take_line(start + SECOND), Some(0));
    }
}
