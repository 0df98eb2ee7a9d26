//! Connections to the upstream are used again, and nothing that was sent is sent twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;

use crate::support::raw_upstream::RawUpstream;
use crate::transparent::rig::{A_WHILE, Rig, first_line};

const GET: &str = "GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn an_upstream_connection_is_reused() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    for _ in 0..3 {
        peer.head().await;
        peer.send(OK).await;
        client.until("\r\n\r\nok").await;
        client.send(GET).await;
    }
    peer.head().await;
    assert!(!upstream.is_called_within(A_WHILE).await);
}

#[tokio::test]
async fn an_idle_upstream_connection_is_closed_by_the_proxy() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.timeouts.pool_idle = Duration::from_millis(50);
    });
    let mut client = rig.client().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(OK).await;
    client.until("\r\n\r\nok").await;
    assert_eq!(peer.rest().await.0, b"", "closed by the proxy");
    client.send(GET).await;
    upstream.accept().await.head().await;
}

#[tokio::test]
async fn an_answer_before_the_request_has_ended_reaches_the_client() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nbegin")
        .await;
    let mut peer = upstream.accept().await;
    peer.until("begin").await;
    peer.send("HTTP/1.1 413 Payload Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno")
        .await;
    let head = client.head().await;
    assert_eq!(first_line(&head), "HTTP/1.1 413 Payload Too Large");
    assert_eq!(client.bytes(2).await, b"no");
    drop(peer);
    // Clients that send before they read send the rest all the same. It is not taken for a request.
    client.send("x".repeat(999_995)).await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    assert!(peer.head().await.starts_with("GET /v1/x "));
    peer.send(OK).await;
    client.until("\r\n\r\nok").await;
}

/// A client that waits instead: the rest of its body must not be taken for a request, so the connection ends.
#[tokio::test]
async fn a_client_that_stops_sending_after_an_early_answer_is_disconnected() {
    let refusing = RawUpstream::listen().await;
    let url = refusing.url();
    drop(refusing);
    let rig = Rig::start(&url, |_| {});
    let mut client = rig.client().await;
    client
        .send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nbegin")
        .await;
    let head = client.head().await;
    assert_eq!(first_line(&head), "HTTP/1.1 502 Bad Gateway");
    client.rest().await;
}

/// An upstream that closes each connection some time after its answer, racing the next request: the
/// client may be told that the upstream disconnected, but no request may be seen twice, and none may wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_repeated_when_a_reused_connection_closes() {
    const REQUESTS: usize = 400;
    /// Even the first request of a connection takes a moment to arrive.
    const FIRST: Duration = Duration::from_micros(200);
    let upstream = RawUpstream::listen().await;
    let (url, request_counts) = (upstream.url(), Arc::new(Mutex::new(HashMap::new())));
    let record: Arc<Mutex<HashMap<String, usize>>> = Arc::clone(&request_counts);
    let serving = tokio::spawn(async move {
        for turn in 0.. {
            let mut peer = upstream.accept().await;
            let record = Arc::clone(&record);
            tokio::spawn(async move {
                let stays = Duration::from_micros(turn % 20 * 40);
                while let Ok(head) = timeout(stays.max(FIRST), peer.head()).await {
                    *record
                        .lock()
                        .unwrap()
                        .entry(first_line(&head).to_owned())
                        .or_default() += 1;
                    peer.bytes(2).await;
                    peer.send(OK).await;
                }
            });
        }
    });
    let rig = Rig::start(&url, |_| {});
    let mut client = rig.client().await;
    let mut answered = 0;
    for id in 0..REQUESTS {
        client
            .send(format!(
                "POST /v1/{id} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi"
            ))
            .await;
        let head = client.head().await;
        if first_line(&head) == "HTTP/1.1 200 OK" {
            client.bytes(2).await;
            answered += 1;
        } else {
            assert_eq!(first_line(&head), "HTTP/1.1 502 Bad Gateway");
            client.until("}}").await;
        }
    }
    serving.abort();
    let request_counts = request_counts.lock().unwrap();
    assert!(
        request_counts.values().all(|&times| times == 1),
        "a sent request was repeated"
    );
    // On a busy machine most connections close before the next request arrives.
    assert!(answered > REQUESTS / 20, "only {answered} were answered");
}
