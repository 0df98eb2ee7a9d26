//! Sends the body of an answer: events to bytes, bytes to frames, frames at their time, and the faults
//! between them.
//!
//! Knows nothing about chat. Called by [`super::request_handler`]. The [`RequestWatch`] in the body
//! notices whether the client is still there.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::behaviour::{Behaviour, Cut};
use super::record::{RequestWatch, Stage};

/// The body of every answer.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is complete from the start.
pub(super) fn full_body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// The events of a stream with its terminator, each encoded as `behaviour` says.
pub(super) fn encode(chunks: &[Value], behaviour: &Behaviour) -> Vec<Bytes> {
    let done = (!behaviour.omit_done).then(|| "[DONE]".to_owned());
    let payloads = chunks.iter().map(Value::to_string).chain(done);
    payloads
        .enumerate()
        .map(|(number, data)| {
            let mut event = String::new();
            if number == 0 && behaviour.byte_order_mark {
                event.push('\u{feff}');
            }
            push_event(&mut event, &data, behaviour);
            Bytes::from(event)
        })
        .collect()
}

fn push_event(event: &mut String, data: &str, behaviour: &Behaviour) {
    let end = behaviour.line_end.as_str();
    if behaviour.comments {
        event.push_str(": keep-alive");
        event.push_str(end);
        event.push_str(end);
    }
    for line in lines(data, behaviour.multi_line) {
        event.push_str("data: ");
        event.push_str(line);
        event.push_str(end);
    }
    event.push_str(end);
}

/// Cuts JSON where white space is allowed, because a reader joins `data:` lines with a newline.
fn lines(data: &str, several: bool) -> Vec<&str> {
    match data.find(",\"").filter(|_| several) {
        Some(comma) => vec![&data[..=comma], &data[comma + 1..]],
        None => vec![data],
    }
}

/// Compresses events one after the other, and flushes each so that it can be read alone.
///
/// # Errors
/// Never in practice: it writes to memory.
pub(super) fn gzip(events: &[Bytes]) -> io::Result<Vec<Bytes>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut compressed = Vec::with_capacity(events.len() + 1);
    for event in events {
        encoder.write_all(event)?;
        encoder.flush()?;
        compressed.push(Bytes::from(std::mem::take(encoder.get_mut())));
    }
    let trailer = encoder.finish()?;
    if let Some(last) = compressed.last_mut() {
        *last = [last.as_ref(), &trailer].concat().into();
    }
    Ok(compressed)
}

/// The rest of a body that is being sent, with its watch.
struct OutgoingBody {
    bytes: Bytes,
    /// Offsets at which events end.
    ends: Vec<usize>,
    sent: usize,
    frame_bytes: Option<usize>,
    before_event: Duration,
    gate: Option<Arc<Semaphore>>,
    pace_frames: bool,
    /// Whether the head gave the length.
    has_length: bool,
    hold_open: bool,
    stop_at: Option<usize>,
    reset: Option<Arc<AtomicBool>>,
    watch: RequestWatch,
}

/// The body that sends `events` as `behaviour` says. If `reset` is set, the connection ends with a TCP
/// reset; `has_length` says that the head gives the body's length.
pub(super) fn body(
    events: &[Bytes],
    behaviour: &Behaviour,
    has_length: bool,
    reset: &Arc<AtomicBool>,
    mut watch: RequestWatch,
) -> Body {
    watch.set_stage(Stage::BeforeFirstEvent);
    let ends: Vec<usize> = events
        .iter()
        .scan(0, |end, event| {
            *end += event.len();
            Some(*end)
        })
        .collect();
    let after_events = |count: usize| match count {
        0 => 0,
        count => ends.get(count - 1).or(ends.last()).copied().unwrap_or(0),
    };
    let stop_at = match behaviour.cut {
        Some(Cut::AfterBytes(bytes)) => Some(bytes),
        Some(Cut::AfterEvents(events) | Cut::ResetAfterEvents(events)) => {
            Some(after_events(events))
        }
        Some(Cut::BeforeHead) | None => None,
    };
    let resets = matches!(behaviour.cut, Some(Cut::ResetAfterEvents(_)));
    let outgoing = OutgoingBody {
        bytes: events.concat().into(),
        sent: 0,
        frame_bytes: behaviour.frame_bytes,
        before_event: behaviour.before_event,
        gate: behaviour.gate.clone(),
        pace_frames: behaviour.pace_frames,
        has_length,
        hold_open: behaviour.hold_open,
        stop_at,
        reset: resets.then(|| Arc::clone(reset)),
        ends,
        watch,
    };
    StreamBody::new(stream::unfold(Some(outgoing), step)).boxed_unsync()
}

async fn step(
    outgoing: Option<OutgoingBody>,
) -> Option<(io::Result<Frame<Bytes>>, Option<OutgoingBody>)> {
    let mut outgoing = outgoing?;
    // Pending once before each frame, so the head and every frame reach the socket separately.
    tokio::task::yield_now().await;
    if outgoing.stop_at.is_some_and(|stop| outgoing.sent >= stop) {
        if let Some(reset) = &outgoing.reset {
            reset.store(true, Ordering::Relaxed);
        }
        outgoing.watch.cut();
        let cut = io::Error::new(io::ErrorKind::ConnectionAborted, "cut as scripted");
        return Some((Err(cut), None));
    }
    if outgoing.sent == outgoing.bytes.len() {
        if outgoing.hold_open {
            std::future::pending::<()>().await;
        }
        outgoing.watch.complete();
        return None;
    }
    outgoing.wait_before_event().await;
    let frame = outgoing.next_frame();
    Some((Ok(Frame::data(frame)), Some(outgoing)))
}

impl OutgoingBody {
    fn is_paced(&self) -> bool {
        self.gate.is_some() || !self.before_event.is_zero()
    }

    /// Waits before an event (or before every frame) for its time and its permit.
    async fn wait_before_event(&self) {
        let starts = self.sent == 0 || self.ends.binary_search(&self.sent).is_ok();
        if !starts && !self.pace_frames {
            return;
        }
        if !self.before_event.is_zero() {
            tokio::time::sleep(self.before_event).await;
        }
        if let Some(gate) = &self.gate
            && let Ok(permit) = gate.acquire().await
        {
            permit.forget();
        }
    }

    /// How many events end at or before this offset.
    fn events_until(&self, offset: usize) -> usize {
        self.ends.partition_point(|end| *end <= offset)
    }

    fn next_frame(&mut self) -> Bytes {
        let event_end = self
            .ends
            .get(self.events_until(self.sent))
            .copied()
            .unwrap_or(self.bytes.len());
        let mut end = match self.frame_bytes {
            Some(size) => (self.sent + size.max(1)).min(self.bytes.len()),
            None => event_end,
        };
        if self.is_paced() {
            end = end.min(event_end);
        }
        if let Some(stop) = self.stop_at {
            end = end.min(stop);
        }
        let frame = self.bytes.slice(self.sent..end);
        self.sent = end;
        let last = end == self.bytes.len();
        if last && self.has_length {
            // hyper does not ask again once the announced length is sent.
            self.watch.complete();
        }
        self.watch.set_stage(if last {
            Stage::AfterLastEvent
        } else {
            Stage::Streaming {
                events: self.events_until(end),
                bytes: end,
            }
        });
        frame
    }
}
