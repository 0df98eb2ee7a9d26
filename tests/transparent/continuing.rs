//! `Expect: 100-continue`: the upstream's word decides, not ours.

use std::time::Duration;

use crate::support::raw_upstream::{Peer, RawUpstream};
use crate::transparent::rig::{A_WHILE, Rig, first_line};

const ASK: &str =
    "POST /v1/files HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
/// A proxy that never loses its patience, so that only the upstream's word counts.
async fn patient() -> (RawUpstream, Rig, Peer) {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.timeouts.expect_continue = Duration::from_hours(1);
    });
    let client = rig.client().await;
    (upstream, rig, client)
}

const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";

#[tokio::test]
async fn the_client_gets_100_continue_when_the_upstream_sends_it() {
    let (upstream, _rig, mut client) = patient().await;
    client.send(ASK).await;
    let mut peer = upstream.accept().await;
    assert!(peer.head().await.contains("expect: 100-continue\r\n"));
    assert!(
        client.is_silent_for(A_WHILE).await,
        "told to go on before the upstream agreed"
    );
    peer.send(GO_ON).await;
    assert_eq!(client.head().await, GO_ON);
    client.send("body").await;
    assert_eq!(peer.bytes(4).await, b"body");
    peer.send("HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(first_line(&client.head().await), "HTTP/1.1 201 Created");
}

#[tokio::test]
async fn a_refusal_of_the_upstream_replaces_100_continue() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(ASK).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    let refusal = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno";
    peer.send(refusal).await;
    assert_eq!(client.until("\r\n\r\nno").await, refusal);
    // A client may send its body after all, so both connections stay until it leaves.
    drop(client);
    assert_eq!(peer.rest().await.0, b"");
}

#[tokio::test]
async fn an_upstream_without_100_continue_gets_the_body_after_a_timeout() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.timeouts.expect_continue = A_WHILE;
    });
    let mut client = rig.client().await;
    client.send(ASK).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    assert_eq!(client.head().await, GO_ON);
    client.send("body").await;
    assert_eq!(peer.bytes(4).await, b"body");
}
