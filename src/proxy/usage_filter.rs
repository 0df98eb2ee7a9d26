//! Takes the usage report out of a stream whose client has not asked for it.
//!
//! Used only if Diarist asked for usage. Removes exactly one event, the one whose JSON has empty `choices` and a
//! usage object; every other byte passes as it came. An event is held only until it is complete, and not at all if
//! it is longer than [`MAX_HELD`]. This works on the client's bytes, so it trusts no parser: if in doubt, the event
//! passes. Called by the tee, behind the copy: the copy still holds the event.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use serde_json::Value;

use super::sse::BlockEnds;

/// A usage report is 200 to 600 bytes. A longer event is not one, and is not held.
pub const MAX_HELD: usize = 64 * 1024;

/// Copies bytes, without the one event.
#[derive(Debug)]
struct ReportFilter {
    ends: BlockEnds,
    /// The beginning of the event that is not complete yet.
    held: BytesMut,
    /// The current event is too long to be held: it passes as it comes.
    passing: bool,
    /// The report has been taken out; everything else passes.
    report_found: bool,
    /// The report ended in CR: an LF that follows at once still belongs to it.
    drop_lf: bool,
}

impl ReportFilter {
    fn new() -> Self {
        Self {
            ends: BlockEnds::new(),
            held: BytesMut::new(),
            passing: false,
            report_found: false,
            drop_lf: false,
        }
    }

    /// Reads `chunk`, and appends to `out` the bytes that may pass now.
    fn push(&mut self, chunk: &Bytes, out: &mut VecDeque<Bytes>) {
        if chunk.is_empty() {
            return;
        }
        // Offsets into `chunk`: everything before `forwarded` has passed or was removed; everything before `complete`
        // belongs to complete events.
        let (mut forwarded, mut complete) = (0, 0);
        if self.held.is_empty() && self.ends.begins_with_stray_lf(chunk) {
            complete = 1;
            forwarded = usize::from(self.drop_lf);
        }
        self.drop_lf = false;
        while !self.report_found
            && let Some(length) = self
                .ends
                .next_end(chunk.get(complete..).unwrap_or_default())
        {
            let end = complete + length;
            if std::mem::take(&mut self.passing) {
                complete = end;
                continue;
            }
            if self.is_report(chunk.get(complete..end).unwrap_or_default()) {
                self.report_found = true;
                self.held.clear();
                push_non_empty(out, chunk.slice(forwarded..complete));
                forwarded = end;
                self.drop_lf = end == chunk.len() && chunk.ends_with(b"\r");
            } else {
                push_non_empty(out, self.held.split().freeze());
            }
            complete = end;
        }
        if self.report_found {
            push_non_empty(out, chunk.slice(forwarded..));
        } else if self.passing || self.held.len() + chunk.len() - complete > MAX_HELD {
            self.passing = true;
            push_non_empty(out, self.held.split().freeze());
            push_non_empty(out, chunk.slice(forwarded..));
        } else {
            push_non_empty(out, chunk.slice(forwarded..complete));
            self.held
                .extend_from_slice(chunk.get(complete..).unwrap_or_default());
        }
    }

    /// Whether the event that ends with `rest` is the report.
    fn is_report(&self, rest: &[u8]) -> bool {
        if self.held.is_empty() {
            is_usage_report(rest)
        } else {
            is_usage_report(&[self.held.as_ref(), rest].concat())
        }
    }

    /// Everything passes from now on.
    fn pass(&mut self, out: &mut VecDeque<Bytes>) {
        push_non_empty(out, self.held.split().freeze());
        self.report_found = true;
    }

    /// What is still held when the stream ends.
    fn finish(&mut self, out: &mut VecDeque<Bytes>) {
        let held = self.held.split().freeze();
        if !self.report_found && is_usage_report(&held) {
            self.report_found = true;
        } else {
            push_non_empty(out, held);
        }
    }
}

fn push_non_empty(out: &mut VecDeque<Bytes>, bytes: Bytes) {
    if !bytes.is_empty() {
        out.push_back(bytes);
    }
}

/// Whether this is the event that OpenAI sends last if `include_usage` is set. Azure's first event has empty
/// `choices` too, but no usage object.
fn is_usage_report(block: &[u8]) -> bool {
    // Nearly every event fails this test, so hardly any is parsed on the client's path.
    if block.len() > MAX_HELD || !names_no_choices(block) {
        return false;
    }
    let block = block.strip_prefix(b"\xef\xbb\xbf").unwrap_or(block);
    let mut data = Vec::with_capacity(block.len());
    for line in block.split(|&byte| byte == b'\n' || byte == b'\r') {
        if let Some(value) = line.strip_prefix(b"data:") {
            data.extend_from_slice(value);
            data.push(b'\n');
        }
    }
    let Ok(Value::Object(event)) = serde_json::from_slice::<Value>(&data) else {
        return false;
    };
    let no_choices =
        matches!(event.get("choices"), Some(Value::Array(choices)) if choices.is_empty());
    no_choices && event.get("usage").is_some_and(Value::is_object) && event.get("error").is_none()
}

/// Whether `"choices"` is followed by an empty array anywhere. Inside a string, its quotes would be escaped, so only
/// keys are found.
fn names_no_choices(block: &[u8]) -> bool {
    const KEY: &[u8] = b"\"choices\"";
    memchr::memmem::find_iter(block, KEY).any(|at| {
        let mut rest = block.get(at + KEY.len()..).unwrap_or_default();
        [b":", b"[", b"]"].into_iter().all(|token| {
            let next = rest.trim_ascii_start().strip_prefix(token);
            rest = next.unwrap_or_default();
            next.is_some()
        })
    })
}

/// A response body with an optional filter; without one, every frame passes untouched.
///
/// With a filter, the length is not known: the caller must not forward `content-length`.
#[derive(Debug)]
pub struct UsageFilter<B: Body> {
    body: B,
    filter: Option<ReportFilter>,
    /// Set if the rest of the stream answers a request that did not ask for usage.
    stop_flag: Option<Arc<AtomicBool>>,
    ready: VecDeque<Bytes>,
    /// Trailers or an error, which follow what is still held.
    last_frame: Option<Result<Frame<Bytes>, B::Error>>,
    ended: bool,
}

impl<B: Body> UsageFilter<B> {
    /// With `filter`, the usage report is taken out.
    #[must_use]
    pub fn new(body: B, filter: bool) -> Self {
        Self {
            body,
            filter: filter.then(ReportFilter::new),
            stop_flag: None,
            ready: VecDeque::new(),
            last_frame: None,
            ended: false,
        }
    }

    /// The same body, which takes out nothing more once the flag is set.
    #[must_use]
    pub fn stop_when(self, stop_flag: Arc<AtomicBool>) -> Self {
        Self {
            stop_flag: Some(stop_flag),
            ..self
        }
    }
}

impl<B> Body for UsageFilter<B>
where
    B: Body<Data = Bytes, Error: Unpin> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(filter) = &mut this.filter else {
            return Pin::new(&mut this.body).poll_frame(cx);
        };
        loop {
            if let Some(bytes) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(last) = this.last_frame.take() {
                return Poll::Ready(Some(last));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
            // Read after the frame has come: the frame may be the first one of another answer.
            let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
            if this.stop_flag.take_if(|flag| is_set(flag)).is_some() {
                filter.pass(&mut this.ready);
            }
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => filter.push(&data, &mut this.ready),
                    Err(trailers) => {
                        filter.finish(&mut this.ready);
                        this.last_frame = Some(Ok(trailers));
                    }
                },
                Some(Err(error)) => {
                    filter.finish(&mut this.ready);
                    this.last_frame = Some(Err(error));
                    this.ended = true;
                }
                None => {
                    filter.finish(&mut this.ready);
                    this.ended = true;
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let held = self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.held.is_empty());
        let nothing_left = !held && self.ready.is_empty() && self.last_frame.is_none();
        nothing_left && (self.ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.filter.is_some() {
            SizeHint::default()
        } else {
            self.body.size_hint()
        }
    }
}

#[cfg(test)]
mod tests;
