use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use proptest::prelude::*;

use super::{MAX_HELD, ReportFilter, UsageFilter, is_usage_report};

const REPORT: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":7}}\n\n";
const BEFORE: &str = "\u{feff}: open\n\ndata: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"日本 \\\"usage\\\" \"}}],\"usage\":{\"prompt_tokens\":1}}\n\n";
const AFTER: &str = "data: [DONE]\n\n";

fn filtered<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut filter = ReportFilter::new();
    let mut out = VecDeque::new();
    for piece in pieces {
        filter.push(&Bytes::copy_from_slice(piece), &mut out);
    }
    filter.finish(&mut out);
    assert!(out.iter().all(|piece| !piece.is_empty()));
    out.into_iter().flatten().collect()
}

#[test]
fn the_filter_removes_exactly_the_usage_report_for_every_split() {
    for ending in ["\n", "\r\n", "\r"] {
        let [before, report, after] =
            [BEFORE, REPORT, AFTER].map(|part| part.replace('\n', ending));
        for (after, end) in [(after.as_str(), "with"), ("", "without")] {
            let stream = [before.as_str(), &report, after].concat();
            let expected = [before.as_str(), after].concat();
            let bytes = stream.as_bytes();
            for at in 0..=bytes.len() {
                let (head, tail) = bytes.split_at(at);
                let got = filtered([head, tail]);
                assert!(
                    got == expected.as_bytes(),
                    "{ending:?} at {at}, {end} an end"
                );
            }
            for size in 1..12 {
                let got = filtered(bytes.chunks(size));
                assert!(
                    got == expected.as_bytes(),
                    "{ending:?} by {size}, {end} an end"
                );
            }
        }
    }
}

#[test]
fn a_complete_event_is_never_held() {
    let stream = [BEFORE, AFTER].concat();
    for ending in ["\n", "\r\n", "\r"] {
        let stream = stream.replace('\n', ending);
        let mut filter = ReportFilter::new();
        let mut out = VecDeque::new();
        for (at, byte) in stream.bytes().enumerate() {
            filter.push(&Bytes::copy_from_slice(&[byte]), &mut out);
            let bytes_out: usize = out.iter().map(Bytes::len).sum();
            // All events that are complete in the bytes so far, by a definition of its own.
            let so_far = stream[..].as_bytes()[..=at].to_vec();
            let blank = format!("{ending}{ending}");
            let complete = so_far
                .windows(blank.len())
                .rposition(|window| window == blank.as_bytes())
                .map_or(0, |found| found + blank.len());
            assert!(
                bytes_out >= complete,
                "{ending:?}: {bytes_out} of {complete} at {at}"
            );
        }
    }
}

#[test]
fn a_usage_report_at_a_broken_stream_end_is_removed_too() {
    for missing in [1, 2] {
        let stream = [AFTER, &REPORT[..REPORT.len() - missing]].concat();
        for size in [1, 9, stream.len()] {
            assert_eq!(filtered(stream.as_bytes().chunks(size)), AFTER.as_bytes());
        }
    }
    // Half a report may be anything.
    let half = &REPORT[..REPORT.len() - 3];
    assert_eq!(filtered([half.as_bytes()]), half.as_bytes());
}

#[test]
fn whole_events_pass_without_a_copy() {
    let chunk = Bytes::from_static(BEFORE.as_bytes());
    let mut out = VecDeque::new();
    ReportFilter::new().push(&chunk, &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].as_ptr(), chunk.as_ptr());
}

#[test]
fn a_long_event_is_forwarded_as_it_arrives() {
    let long = format!(
        "data: {{\"choices\":[],\"usage\":{{}},\"x\":\"{}",
        "x".repeat(MAX_HELD)
    );
    let mut filter = ReportFilter::new();
    let mut out = VecDeque::new();
    for piece in long.as_bytes().chunks(1000) {
        filter.push(&Bytes::copy_from_slice(piece), &mut out);
    }
    let bytes_out: usize = out.iter().map(Bytes::len).sum();
    assert_eq!(bytes_out, long.len());
    let stream = format!("{long}\"}}\n\n{REPORT}{AFTER}");
    let expected = format!("{long}\"}}\n\n{AFTER}");
    for size in [1, 1000, stream.len()] {
        assert!(
            filtered(stream.as_bytes().chunks(size)) == expected.as_bytes(),
            "{size}"
        );
    }
}

#[test]
fn only_the_first_real_usage_report_is_removed() {
    let twice = [REPORT, REPORT].concat();
    assert_eq!(filtered([twice.as_bytes()]), REPORT.as_bytes());
    for kept in [
        "data: {\"choices\":[{}],\"usage\":{}}\n\n",
        "data: {\"choices\":[],\"usage\":null}\n\n",
        "data: {\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[],\"usage\":{},\"error\":{}}\n\n",
        "data: {\"choices\":[],\"usage\":{}\n\n",
        "event: x\n: {\"choices\":[],\"usage\":{}}\n\n",
    ] {
        assert!(!is_usage_report(kept.as_bytes()), "{kept}");
        assert_eq!(filtered([kept.as_bytes()]), kept.as_bytes());
    }
    for report in [
        "data: { \"choices\" : [ ] , \"x\":{\"choices\":[1]}, \"usage\" : { } }\n\n",
        "data:{\"choices\":[],\"usage\":{}}\n\n",
        "event: message\r\ndata: {\"choices\":[],\r\ndata: \"usage\":{}}\r\n\r\n",
    ] {
        assert!(is_usage_report(report.as_bytes()), "{report}");
    }
}

#[tokio::test]
async fn trailers_and_errors_follow_the_held_data() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-end", "1".parse().unwrap());
    let frames = [
        Ok(Frame::data(Bytes::from_static(b"data: half"))),
        Ok(Frame::trailers(trailers.clone())),
    ];
    let body = StreamBody::new(stream::iter(
        frames.map(|frame: Result<_, Infallible>| frame),
    ));
    let collected = UsageFilter::new(body, true).collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), "data: half");

    let frames = [
        Ok(Frame::data(Bytes::from_static(b"data: half"))),
        Err("cut"),
    ];
    let mut body = UsageFilter::new(StreamBody::new(stream::iter(frames)), true);
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "data: half");
    assert_eq!(body.frame().await.unwrap().unwrap_err(), "cut");
    assert!(body.frame().await.is_none());
    assert!(body.is_end_stream());
}

#[tokio::test]
async fn without_a_filter_frames_keep_their_borders() {
    let parts = [&REPORT.as_bytes()[..5], &REPORT.as_bytes()[5..]];
    let frames = parts.map(|part| Ok::<_, Infallible>(Frame::data(Bytes::from_static(part))));
    let mut body = UsageFilter::new(StreamBody::new(stream::iter(frames)), false);
    for part in parts {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), part);
    }
    assert!(body.frame().await.is_none());
}

fn block() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just(": comment".to_owned()),
        Just("data: {\"choices\":[{\"delta\":{}}]}".to_owned()),
        Just("data: {\"choices\":[],\"usage\":null}".to_owned()),
        "[a-z: ]{0,6}",
    ];
    let ending = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    (proptest::collection::vec(line, 0..3), ending).prop_map(|(lines, ending)| {
        lines
            .into_iter()
            .chain([String::new()])
            .fold(String::new(), |block, line| block + &line + ending)
    })
}

proptest! {
    #[test]
    fn the_filter_removes_the_usage_report_from_any_stream(
        before in proptest::collection::vec(block(), 0..4),
        report in prop_oneof![Just("\n"), Just("\r\n")],
        after in proptest::collection::vec(block(), 0..3),
        sizes in proptest::collection::vec(1usize..40, 1..8),
    ) {
        // A blank line of its own, so that a lone CR before the report cannot swallow its first LF.
        let report = REPORT.replace('\n', report);
        let before = before.concat() + "\n\n";
        let stream = [before.as_str(), &report, &after.concat()].concat();
        let expected = before + &after.concat();
        let mut rest = stream.as_bytes();
        let mut pieces = Vec::new();
        for size in sizes.iter().cycle() {
            let (piece, tail) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = tail;
            if rest.is_empty() { break; }
        }
        prop_assert_eq!(
            String::from_utf8(filtered(pieces)).unwrap(),
            expected
        );
    }
}
