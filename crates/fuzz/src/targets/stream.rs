//! The readers of streams: two bytes choose where the stream is split, the rest is the stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use diarist::proxy::sse::EventReader;
use diarist::proxy::usage_filter::UsageFilter;
use futures_util::FutureExt as _;
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;

use super::choices;

pub(crate) fn check(data: &[u8]) {
    let ([at, step], stream) = choices(data);
    let whole = [Bytes::copy_from_slice(stream)];
    let bytes: Vec<Bytes> = stream.chunks(1).map(Bytes::copy_from_slice).collect();
    let (first, rest) = stream.split_at(usize::from(at).min(stream.len()));
    let mut pieces = vec![Bytes::copy_from_slice(first)];
    pieces.extend(
        rest.chunks(usize::from(step).max(1))
            .map(Bytes::copy_from_slice),
    );
    let expected = (events(&whole), filtered(&whole));
    for split in [&bytes, &pieces] {
        assert_eq!(
            events(split),
            expected.0,
            "the events depend on where the stream is split"
        );
        assert_eq!(
            filtered(split),
            expected.1,
            "what passes depends on where the stream is split"
        );
    }
    one_report_at_most_is_missing(stream, &expected.1);
}

/// The data of all events, and whether all could be read.
fn events(pieces: &[Bytes]) -> (Vec<String>, bool) {
    let (mut reader, mut events) = (EventReader::default(), Vec::new());
    let mut add = |data: &str| events.push(data.to_owned());
    for piece in pieces {
        reader.push(piece, &mut add);
    }
    reader.finish(&mut add);
    (events, reader.is_complete())
}

fn filtered(pieces: &[Bytes]) -> Bytes {
    let body = Pieces(pieces.iter().cloned().collect());
    let collected = UsageFilter::new(body, true).collect().now_or_never();
    let collected = collected.expect("a body that is at hand never waits");
    collected.expect("no piece is an error").to_bytes()
}

/// The client gets every byte in order, except one block that says `"choices"` and `"usage"`.
fn one_report_at_most_is_missing(stream: &[u8], passed: &[u8]) {
    let missing = stream
        .len()
        .checked_sub(passed.len())
        .expect("nothing is added");
    if missing == 0 {
        assert_eq!(stream, passed);
        return;
    }
    // Equal bytes around the block leave its exact place open; one place must explain what is missing.
    let is_report = |block: &[u8]| {
        let holds = |word: &str| String::from_utf8_lossy(block).contains(word);
        holds("\"choices\"") && holds("\"usage\"")
    };
    let mut places = 0..=passed.len();
    let found = places.any(|at| {
        stream[..at] == passed[..at]
            && stream[at + missing..] == passed[at..]
            && is_report(&stream[at..at + missing])
    });
    assert!(found, "more than one report is missing");
}

/// A body of pieces that are at hand.
#[derive(Debug)]
struct Pieces(VecDeque<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}
