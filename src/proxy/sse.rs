//! Reads server-sent events from a copy of a response.
//!
//! A guard around `eventsource-stream`, which panics on a leading byte-order mark and takes time that is
//! quadratic in the chunks of one line and in the lines of one buffer. The guard hands it one whole block (up to
//! the blank line) at a time, one whole line at a time, and never more than [`MAX_BLOCK`]. A longer block is
//! skipped and reported. Never sees the client's bytes, only their copy. Called by the tee; `usage_filter` and
//! `retry` use parts of it.

use std::convert::Infallible;

use bytes::BytesMut;
use eventsource_stream::EventStream;
use futures_util::{FutureExt as _, StreamExt as _, stream};

/// The longest block that is parsed. A usage report is 500 bytes; the longest useful block seen in practice is
/// the argument of a tool call, sent whole.
pub const MAX_BLOCK: usize = 1024 * 1024;

/// Whether these headers announce a stream of server-sent events.
pub(super) fn is_event_stream(headers: &http::HeaderMap) -> bool {
    headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| {
            value
                .trim_start()
                .to_ascii_lowercase()
                .starts_with("text/event-stream")
        })
}

/// Finds the ends of blocks in bytes that arrive in pieces of any size. Lines end in LF, CR LF or CR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockEnds {
    line_is_empty: bool,
    after_cr: bool,
}

impl BlockEnds {
    pub(crate) fn new() -> Self {
        Self {
            line_is_empty: true,
            after_cr: false,
        }
    }

    /// True once, if `chunk` begins with the LF of a CR LF whose CR was already counted as the end of a line: that
    /// byte belongs to what came before.
    pub(crate) fn begins_with_stray_lf(&mut self, chunk: &[u8]) -> bool {
        if chunk.is_empty() {
            return false;
        }
        std::mem::take(&mut self.after_cr) && chunk.starts_with(b"\n")
    }

    /// The offset just behind the first blank line of `chunk`, which continues what was seen so far.
    /// Everything before that offset, or all of `chunk`, counts as seen.
    pub(crate) fn next_end(&mut self, chunk: &[u8]) -> Option<usize> {
        let mut at = usize::from(self.begins_with_stray_lf(chunk));
        loop {
            let rest = chunk.get(at..).filter(|rest| !rest.is_empty())?;
            let Some(line_end) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.line_is_empty = false;
                return None;
            };
            let blank = self.line_is_empty && line_end == 0;
            let is_cr = rest.get(line_end) == Some(&b'\r');
            at += line_end + 1;
            self.line_is_empty = true;
            self.after_cr = is_cr;
            if is_cr && at < chunk.len() {
                at += usize::from(self.begins_with_stray_lf(chunk.get(at..).unwrap_or_default()));
            }
            if blank {
                return Some(at);
            }
        }
    }
}

/// Turns pieces of a stream into the data of its events, in order.
#[derive(Debug)]
pub struct EventReader {
    ends: BlockEnds,
    pending: BytesMut,
    too_long: bool,
    at_start: bool,
    complete: bool,
    /// Bytes handed to the parser and bytes copied, for the test that both stay linear.
    work: u64,
}

impl Default for EventReader {
    fn default() -> Self {
        Self {
            ends: BlockEnds::new(),
            pending: BytesMut::new(),
            too_long: false,
            at_start: true,
            complete: true,
            work: 0,
        }
    }
}

impl EventReader {
    /// Reads the next piece, and hands the data of every event that it completes to `on_data`.
    pub fn push(&mut self, mut chunk: &[u8], on_data: &mut impl FnMut(&str)) {
        while let Some(end) = self.ends.next_end(chunk) {
            let (block, rest) = chunk.split_at(end);
            chunk = rest;
            if self.pending.is_empty() && !self.too_long && block.len() <= MAX_BLOCK {
                self.parse(block, on_data);
            } else {
                self.hold(block);
                self.close_block(on_data);
            }
        }
        self.hold(chunk);
    }

    /// The stream has ended. A last block without its blank line counts too. The specification drops it, but some
    /// upstreams forget the blank line.
    pub fn finish(&mut self, on_data: &mut impl FnMut(&str)) {
        self.close_block(on_data);
    }

    /// False once a block was too long to read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    fn hold(&mut self, piece: &[u8]) {
        if self.too_long || self.pending.len() + piece.len() > MAX_BLOCK {
            self.too_long = true;
            self.complete = false;
            self.pending = BytesMut::new();
        } else {
            self.work += piece.len() as u64;
            self.pending.extend_from_slice(piece);
        }
    }

    fn close_block(&mut self, on_data: &mut impl FnMut(&str)) {
        let block = self.pending.split();
        if !std::mem::take(&mut self.too_long) && !block.is_empty() {
            self.parse(&block, on_data);
        }
    }

    fn parse(&mut self, mut block: &[u8], on_data: &mut impl FnMut(&str)) {
        if std::mem::take(&mut self.at_start) {
            block = block.strip_prefix(b"\xef\xbb\xbf").unwrap_or(block);
        }
        self.work += block.len() as u64;
        if let Some(data) = only_data_line(block) {
            on_data(data);
        } else {
            self.parse_lines(block, on_data);
        }
    }

    fn parse_lines(&mut self, block: &[u8], on_data: &mut impl FnMut(&str)) {
        // Broken UTF-8 is replaced, as the specification asks; the parser would give up instead.
        let block = String::from_utf8_lossy(block);
        // A comment first, so that a byte-order mark is never the first thing the parser sees.
        // Lines end in LF, whatever they ended in before: the parser loses a last lone CR.
        let lines = std::iter::once(":\n")
            .chain(lines(&block).flat_map(|line| [line, "\n"]))
            .chain(std::iter::once("\n"))
            .map(Ok::<_, Infallible>);
        let mut events = EventStream::new(stream::iter(lines));
        match events.next().now_or_never().flatten() {
            Some(Ok(event)) => on_data(&event.data),
            Some(Err(_)) => self.complete = false,
            None => {}
        }
    }
}

/// The data of a block that is one line of data, as nearly every event of a model is. The parser takes ten times as
/// long for it as all the rest takes for an event.
fn only_data_line(block: &[u8]) -> Option<&str> {
    let block = block.strip_prefix(b"data:")?;
    let line = block
        .strip_suffix(b"\n\n")
        .or_else(|| block.strip_suffix(b"\r\n\r\n"))?;
    let line = line.strip_prefix(b" ").unwrap_or(line);
    if line.is_empty() || memchr::memchr2(b'\n', b'\r', line).is_some() {
        return None;
    }
    std::str::from_utf8(line).ok()
}

/// The lines of a block without their ends.
fn lines(block: &str) -> impl Iterator<Item = &str> {
    let mut rest = block;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr2(b'\n', b'\r', rest.as_bytes()).unwrap_or(rest.len());
        let (line, tail) = rest.split_at(end);
        rest = tail
            .strip_prefix("\r\n")
            .or_else(|| tail.strip_prefix(['\n', '\r']))
            .unwrap_or(tail);
        Some(line)
    })
}

#[cfg(test)]
mod tests;
