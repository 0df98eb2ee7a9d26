//! HTTP/2 clients (prior knowledge) in front of an HTTP/1.1 upstream.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::raw_upstream::{RawUpstream, within_timeout};
use crate::transparent::rig::{Rig, first_line, lines};

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

const DEADLINE: Duration = Duration::from_secs(2);

async fn connect(rig: &Rig) -> SendRequest<Body> {
    speak(TcpStream::connect(rig.data).await.unwrap()).await
}

async fn speak<S>(stream: S) -> SendRequest<Body>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

/// A client's stream that notes every byte it is sent.
struct Noting {
    stream: TcpStream,
    bytes_read: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Noting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let mut bytes_read = self.bytes_read.lock().unwrap();
        bytes_read.extend_from_slice(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Noting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The frames that `bytes` are, by kind and payload. They must be that to the last byte.
fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(9).expect("a whole head of a frame");
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (payload, rest) = rest.split_at_checked(length).expect("a whole frame");
        frames.push((head[3], payload));
        bytes = rest;
    }
    frames
}

async fn rig() -> (RawUpstream, Rig, SendRequest<Body>) {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |_| {});
    let client = connect(&rig).await;
    (upstream, rig, client)
}

fn get() -> Request<Body> {
    let body = Empty::new().boxed_unsync();
    Request::builder()
        .uri("http://proxy/v1/x")
        .body(body)
        .unwrap()
}

#[tokio::test]
async fn an_http2_request_is_translated_to_http1() {
    let (upstream, _rig, mut client) = rig().await;
    let request = Request::post("http://proxy/v1/x?y")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("te", "trailers")
        .header("x-diarist-memory", "off")
        .body(Full::from("hello").boxed_unsync())
        .unwrap();
    let answer = tokio::spawn(client.send_request(request));
    let mut peer = upstream.accept().await;
    let head = peer.head().await;
    assert_eq!(first_line(&head), "POST /v1/x?y HTTP/1.1");
    let header_lines: Vec<_> = lines(&head)
        .into_iter()
        .filter(|line| !line.starts_with("host: 127.0.0.1:"))
        .collect();
    assert_eq!(
        header_lines,
        [
            "connection: te",
            "content-length: 5",
            "cookie: a=1; b=2",
            "te: trailers"
        ]
    );
    assert_eq!(peer.bytes(5).await, b"hello");
    peer.send("HTTP/1.1 207 Whatever\r\nconnection: x-gone\r\nx-gone: 1\r\nkeep-alive: 5\r\nset-cookie: a\r\nset-cookie: b\r\ncontent-length: 2\r\n\r\nok")
        .await;
    let answer = within_timeout("the answer", answer).await.unwrap().unwrap();
    assert_eq!(
        (answer.status(), answer.version()),
        (StatusCode::MULTI_STATUS, Version::HTTP_2)
    );
    let names: Vec<_> = answer
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    assert_eq!(
        names,
        [
            ("set-cookie", &b"a"[..]),
            ("set-cookie", b"b"),
            ("content-length", b"2")
        ]
    );
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
}

#[tokio::test]
async fn bodies_and_trailers_stream_in_both_directions() {
    let (upstream, _rig, mut client) = rig().await;
    let (feed, mut fed) = mpsc::channel(1);
    let frames = futures_util::stream::poll_fn(move |cx| fed.poll_recv(cx));
    let request = Request::post("http://proxy/v1/x")
        .header("trailer", "x-sum")
        .body(StreamBody::new(frames).boxed_unsync())
        .unwrap();
    let answer = tokio::spawn(client.send_request(request));
    let mut peer = upstream.accept().await;
    assert!(peer.head().await.contains("transfer-encoding: chunked\r\n"));
    for piece in ["one", "two"] {
        feed.send(Ok(Frame::data(Bytes::from(piece))))
            .await
            .unwrap();
        peer.until(&format!("3\r\n{piece}\r\n")).await;
    }
    let trailers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-sum"),
        HeaderValue::from_static("7"),
    )]);
    feed.send(Ok(Frame::trailers(trailers))).await.unwrap();
    drop(feed);
    peer.until("0\r\nx-sum: 7\r\n\r\n").await;
    peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        .await;
    let mut body = within_timeout("the answer", answer)
        .await
        .unwrap()
        .unwrap()
        .into_body();
    assert_eq!(
        within_timeout("a", body.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "a"
    );
    peer.send("1\r\nb\r\n").await;
    assert_eq!(
        within_timeout("b", body.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "b"
    );
    peer.send("0\r\nx-end: 8\r\n\r\n").await;
    let end = within_timeout("trailers", body.frame())
        .await
        .unwrap()
        .unwrap()
        .into_trailers()
        .unwrap();
    assert_eq!(end["x-end"], "8", "HTTP/2 needs no announcement");
}

#[tokio::test]
async fn a_hang_up_cancels_only_its_own_request() {
    let (upstream, _rig, mut client) = rig().await;
    let early = tokio::spawn(client.send_request(get()));
    let mut early_peer = upstream.accept().await;
    early_peer.head().await;
    let late = tokio::spawn(client.send_request(get()));
    let mut late_peer = upstream.accept().await;
    late_peer.head().await;
    let staying = tokio::spawn(client.send_request(get()));
    let mut staying_peer = upstream.accept().await;
    staying_peer.head().await;

    early.abort();
    assert!(
        timeout(DEADLINE, early_peer.rest()).await.is_ok(),
        "before the head"
    );

    late_peer
        .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n")
        .await;
    let mut body = within_timeout("the head", late)
        .await
        .unwrap()
        .unwrap()
        .into_body();
    within_timeout("half an event", body.frame())
        .await
        .unwrap()
        .unwrap();
    drop(body);
    assert!(
        timeout(DEADLINE, late_peer.rest()).await.is_ok(),
        "in the middle of an event"
    );

    staying_peer
        .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await;
    let body = within_timeout("the answer", staying)
        .await
        .unwrap()
        .unwrap()
        .into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "ok");
}

#[tokio::test]
async fn a_hang_up_before_the_body_has_ended_reaches_the_upstream() {
    let (upstream, _rig, mut client) = rig().await;
    let (feed, mut fed) = mpsc::channel(1);
    let frames = futures_util::stream::poll_fn(move |cx| fed.poll_recv(cx));
    let request = Request::post("http://proxy/v1/x")
        .body(StreamBody::new(frames).boxed_unsync())
        .unwrap();
    let answer = tokio::spawn(client.send_request(request));
    let mut peer = upstream.accept().await;
    feed.send(Ok(Frame::data(Bytes::from("half"))))
        .await
        .unwrap();
    peer.until("half").await;
    answer.abort();
    let (rest, _) = timeout(DEADLINE, peer.rest())
        .await
        .expect("the upstream was not told");
    assert!(
        !rest.ends_with(b"0\r\n\r\n"),
        "half a request looked whole: {rest:?}"
    );
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_stream_error() {
    let (upstream, _rig, mut client) = rig().await;
    let answer = tokio::spawn(client.send_request(get()));
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        .await;
    let body = within_timeout("the head", answer)
        .await
        .unwrap()
        .unwrap()
        .into_body();
    drop(peer);
    assert!(within_timeout("the end", body.collect()).await.is_err());
}

#[tokio::test]
async fn too_large_a_head_is_refused() {
    let (_upstream, _rig, mut client) = rig().await;
    let mut request = get();
    let large = HeaderValue::from_str(&"a".repeat(70_000)).unwrap();
    request.headers_mut().insert("x-long", large);
    let answer = within_timeout("the answer", client.send_request(request)).await;
    match answer {
        Ok(answer) => assert_eq!(answer.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
        Err(error) => panic!("{error:?}"),
    }
}

/// Over HTTP/1 a bare refusal is given words; here it is a frame, and every byte belongs to one. So does an
/// upstream's answer that looks like a refusal of HTTP/1.
#[tokio::test]
async fn every_byte_to_an_http2_client_belongs_to_a_frame() {
    const BARE: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const KINDS: std::ops::RangeInclusive<u8> = 0..=9;
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |_| {});
    let bytes_read = Arc::new(Mutex::new(Vec::new()));
    let mut client = speak(Noting {
        stream: TcpStream::connect(rig.data).await.unwrap(),
        bytes_read: Arc::clone(&bytes_read),
    })
    .await;
    let large = HeaderValue::from_str(&"a".repeat(70_000)).unwrap();
    for _ in 0..2 {
        let answer = tokio::spawn(client.send_request(get()));
        let mut peer = upstream.accept().await;
        peer.head().await;
        let length = BARE.len();
        peer.send(&format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{BARE}"
        ))
        .await;
        let answer = within_timeout("the answer", answer).await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let body = within_timeout("the body", answer.into_body().collect()).await;
        assert_eq!(body.unwrap().to_bytes(), BARE);

        let mut request = get();
        request.headers_mut().insert("x-long", large.clone());
        let answer = within_timeout("the refusal", client.send_request(request)).await;
        let answer = answer.unwrap();
        let too_large = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        assert_eq!((answer.status(), answer.headers().len()), (too_large, 0));
        let body = within_timeout("its body", answer.into_body().collect()).await;
        assert_eq!(body.unwrap().to_bytes(), "");
    }
    let bytes_read = bytes_read.lock().unwrap();
    let frames = frames(&bytes_read);
    assert!(frames.iter().all(|(kind, _)| KINDS.contains(kind)));
    let heads = frames.iter().filter(|(kind, _)| *kind == HEADERS);
    assert_eq!(heads.count(), 4, "one for each answer");
    let data = frames.iter().filter(|(kind, _)| *kind == DATA);
    let data: Vec<u8> = data
        .flat_map(|(_, payload)| payload.iter().copied())
        .collect();
    assert_eq!(data, BARE.repeat(2).as_bytes());
}

#[tokio::test]
async fn one_connection_cannot_use_all_request_places() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| options.limits.max_requests = 8);
    let mut greedy = connect(&rig).await;
    let mut waiting = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..4 {
        waiting.push(greedy.send_request(get()));
        let mut peer = upstream.accept().await;
        peer.head().await;
        peers.push(peer);
    }
    // It holds as many places as it leaves free.
    let refused = within_timeout("a refusal", greedy.send_request(get()))
        .await
        .unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let mut other = connect(&rig).await;
    let answered = other.send_request(get());
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(
        within_timeout("an answer", answered)
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
}
