//! Clients of HTTP/2 that keep the windows of their streams shut: they answer pings, and take nothing.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::raw_upstream::{RawUpstream, within_timeout};
use crate::transparent::rig::{Rig, first_line};

type Client = SendRequest<Empty<Bytes>>;

const SHORT: Duration = Duration::from_millis(100);

/// A client that gives each stream a window of this many bytes, once. The handle ends with the connection.
async fn connect(rig: &Rig, window: u32) -> (Client, JoinHandle<()>) {
    let stream = TcpStream::connect(rig.data).await.unwrap();
    let (client, connection) = Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(async move {
        let _ = connection.await;
    });
    (client, connection)
}

/// The answer to a request, of which the client takes the head.
async fn answered(client: &mut Client, upstream: &RawUpstream, answer: &str) -> Response<Incoming> {
    let request = Request::get("http://proxy/v1/x")
        .body(Empty::new())
        .unwrap();
    let answered = tokio::spawn(client.send_request(request));
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(answer).await;
    within_timeout("the head", answered).await.unwrap().unwrap()
}

async fn assert_reset(answer: Response<Incoming>) {
    let body = within_timeout("the end", answer.into_body().collect()).await;
    let error = body.expect_err("a stream that was reset").to_string();
    assert!(!error.is_empty());
}

const REFUSAL: &str =
    "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 7\r\n\r\nbad key";

#[tokio::test]
#[ignore = "slow"]
async fn an_unread_answer_makes_room_for_a_new_request() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| options.limits.max_requests = 3);
    let mut unread = Vec::new();
    for _ in 0..3 {
        let (mut client, connection) = connect(&rig, 0).await;
        let answer = answered(&mut client, &upstream, REFUSAL).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        unread.push((client, connection, answer));
    }
    let mut client = rig.client().await;
    let request = "GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let tries = async {
        loop {
            client.send(request).await;
            let tried = tokio::select! {
                mut peer = upstream.accept() => {
                    peer.head().await;
                    peer.send("HTTP/1.1 204 No Content\r\n\r\n").await;
                    client.head().await
                }
                refused = client.head() => refused,
            };
            if first_line(&tried).contains(" 204 ") {
                return;
            }
            assert!(first_line(&tried).contains(" 429 "), "{tried}");
            let length = tried.split("content-length: ").nth(1).unwrap();
            let length = length.split("\r\n").next().unwrap().parse().unwrap();
            client.bytes(length).await;
            tokio::time::sleep(SHORT).await;
        }
    };
    // An answer makes room when nothing was read of it for 15 seconds.
    let waited = tokio::time::timeout(Duration::from_mins(1), tries).await;
    waited.expect("a place");
    // The one that waited longest made room, and the others are left alone.
    let (_first, _connection, answer) = unread.remove(0);
    assert_reset(answer).await;
    for (mut client, ..) in unread {
        within_timeout("the connection", client.ready())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn an_unread_answer_is_reset_but_its_connection_stays_open() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.write_timeout = SHORT;
    });
    let (mut client, _connection) = connect(&rig, 0).await;
    // One that the upstream takes long for, and one that it answers with more than the client takes.
    let request = Request::get("http://proxy/v1/x")
        .body(Empty::new())
        .unwrap();
    let slow = tokio::spawn(client.send_request(request));
    let mut peer = upstream.accept().await;
    peer.head().await;
    let answer = answered(&mut client, &upstream, REFUSAL).await;
    assert_reset(answer).await;
    peer.send("HTTP/1.1 204 No Content\r\n\r\n").await;
    let slow = within_timeout("the other answer", slow).await.unwrap();
    assert_eq!(slow.unwrap().status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_connection_with_unread_last_bytes_is_closed() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.idle_timeout = SHORT;
        options.settings.write_timeout = SHORT;
    });
    let (mut client, connection) = connect(&rig, 1).await;
    let _answer = answered(&mut client, &upstream, REFUSAL).await;
    within_timeout("the end of the connection", connection)
        .await
        .unwrap();
}
