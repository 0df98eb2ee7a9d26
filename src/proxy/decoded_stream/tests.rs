use std::io::Write as _;

use bytes::BytesMut;
use futures_util::{StreamExt as _, stream};
use http_body_util::StreamBody;

use super::*;

const EVENTS: [&str; 3] = [
    "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"two\"}}]}\n\n",
    "data: [DONE]\n\n",
];

/// The events, each flushed, and the end of the coding.
fn gzip() -> Vec<Bytes> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut frames: Vec<Bytes> = EVENTS
        .iter()
        .map(|event| {
            encoder.write_all(event.as_bytes()).expect("in memory");
            encoder.flush().expect("in memory");
            std::mem::take(encoder.get_mut()).into()
        })
        .collect();
    frames.push(encoder.finish().expect("in memory").into());
    frames
}

fn response(frames: Vec<Bytes>, encoding: &str) -> Response<ProxyBody> {
    let frames = frames.into_iter().map(|data| Ok(Frame::data(data)));
    Response::builder()
        .header("content-type", "text/event-stream")
        .header("content-encoding", encoding)
        .header("content-length", "7")
        .body(StreamBody::new(stream::iter(frames)).boxed_unsync())
        .expect("a response")
}

/// All that comes of it, and whether it broke off.
async fn read(response: Response<ProxyBody>) -> (String, bool) {
    let mut body = http_body_util::BodyStream::new(response.into_body());
    let mut read = BytesMut::new();
    while let Some(frame) = body.next().await {
        match frame {
            Ok(frame) => read.extend_from_slice(frame.data_ref().expect("data")),
            Err(_) => return (String::from_utf8_lossy(&read).into_owned(), true),
        }
    }
    (String::from_utf8_lossy(&read).into_owned(), false)
}

#[tokio::test]
async fn each_frame_is_decoded_when_it_comes() {
    let plain = decode_stream(response(gzip(), "gzip"));
    assert!(was_compressed(plain.extensions()));
    for name in ENCODED_BODY_HEADERS {
        assert!(!plain.headers().contains_key(name));
    }
    let mut body = http_body_util::BodyStream::new(plain.into_body());
    for event in EVENTS {
        let frame = body.next().await.expect("a frame").expect("decoded");
        assert_eq!(frame.data_ref().expect("data"), event.as_bytes());
    }
    assert!(body.next().await.is_none());
}

#[tokio::test]
async fn the_decoded_bytes_do_not_depend_on_the_frame_sizes() {
    let whole: Vec<u8> = gzip().concat();
    for size in [1, 7, whole.len()] {
        let frames = whole.chunks(size).map(Bytes::copy_from_slice).collect();
        let (text, broken) = read(decode_stream(response(frames, "gzip"))).await;
        assert_eq!((text, broken), (EVENTS.concat(), false), "{size}");
    }
}

/// A frame that holds much more than it weighs.
#[tokio::test]
async fn a_long_answer_is_not_cut() {
    let event = format!("data: {}\n\n", "a".repeat(1 << 20));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    for _ in 0..70 {
        encoder.write_all(event.as_bytes()).expect("in memory");
    }
    let frame = encoder.finish().expect("in memory").into();
    let (text, broken) = read(decode_stream(response(vec![frame], "gzip"))).await;
    assert_eq!((text.len(), broken), (70 * event.len(), false));
}

#[tokio::test]
async fn an_undecodable_frame_ends_the_stream_after_the_decoded_events() {
    let mut frames = gzip();
    frames.truncate(2);
    frames.push(Bytes::from_static(
        b"\xff\xff\xff\xff\xff\xff no gzip at all",
    ));
    let (text, broken) = read(decode_stream(response(frames, "gzip"))).await;
    assert_eq!((text, broken), (EVENTS[..2].concat(), true));
}

#[tokio::test]
async fn a_gzip_stream_without_its_end_loses_no_event() {
    let mut frames = gzip();
    frames.pop();
    let (text, broken) = read(decode_stream(response(frames, "gzip"))).await;
    assert_eq!((text, broken), (EVENTS.concat(), false));
}

#[tokio::test]
async fn unknown_encodings_and_non_streams_pass_unchanged() {
    for (encoding, kind) in [
        ("gzip, br", "text/event-stream"),
        ("identity", "text/event-stream"),
        ("gzip", "application/json"),
    ] {
        let mut same = response(gzip(), encoding);
        let kind = http::HeaderValue::from_static(kind);
        same.headers_mut().insert("content-type", kind);
        let same = decode_stream(same);
        assert!(same.headers().contains_key(CONTENT_LENGTH));
        assert!(!was_compressed(same.extensions()));
        let frames = same.into_body().collect().await.expect("whole");
        assert_eq!(frames.to_bytes(), gzip().concat());
    }
}
