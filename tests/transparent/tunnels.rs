//! WebSocket connections pass as bytes, once the upstream has agreed.

use std::time::Duration;

use crate::support::raw_upstream::RawUpstream;
use crate::transparent::rig::{A_WHILE, Rig, first_line};

const ASK: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\n\
                   upgrade: websocket\r\nsec-websocket-key: k\r\nsec-websocket-version: 13\r\n\r\n";
const AGREE: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-accept: x\r\n\r\n";

#[tokio::test]
async fn a_websocket_passes_both_directions_only_after_the_switch() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(format!("{ASK}early")).await;
    let mut peer = upstream.accept().await;
    let head = peer.head().await;
    assert_eq!(first_line(&head), "GET /v1/realtime?model=m HTTP/1.1");
    for line in [
        "connection: Upgrade\r\n",
        "upgrade: websocket\r\n",
        "sec-websocket-key: k\r\n",
    ] {
        assert!(head.contains(line), "{head}");
    }
    assert!(!head.contains("content-length"), "{head}");
    assert!(
        peer.is_silent_for(A_WHILE).await,
        "bytes went before the switch"
    );
    peer.send(format!("{AGREE}\x01first")).await;
    let answer = client.head().await;
    assert_eq!(first_line(&answer), "HTTP/1.1 101 Switching Protocols");
    assert!(
        answer.contains("sec-websocket-accept: x\r\n") && answer.contains("upgrade: websocket\r\n")
    );
    assert_eq!(client.until("\x01first").await, "\x01first");
    assert_eq!(peer.until("early").await, "early");
    client.send("ping").await;
    assert_eq!(peer.until("ping").await, "ping");
    drop(client);
    peer.rest().await;
}

#[tokio::test]
async fn after_a_refused_upgrade_the_next_request_is_answered_normally() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send(format!("{ASK}GET /v1/second HTTP/1.1\r\nhost: a\r\n\r\n"))
        .await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    assert!(peer.is_silent_for(A_WHILE).await);
    let refusal = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno";
    peer.send(refusal).await;
    assert_eq!(client.until("\r\n\r\nno").await, refusal);
    let (mut peer, mut again) = (peer, None);
    let head = tokio::select! {
        head = peer.head() => head,
        mut other = upstream.accept() => { let head = other.head().await; again = Some(other); head }
    };
    assert_eq!(first_line(&head), "GET /v1/second HTTP/1.1");
    let answering = again.as_mut().unwrap_or(&mut peer);
    answering
        .send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(first_line(&client.head().await), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn an_upgrade_to_another_protocol_is_neither_offered_nor_accepted() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send("GET /v1/x HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n")
        .await;
    let mut peer = upstream.accept().await;
    let head = peer.head().await;
    assert!(
        !head.contains("upgrade") && !head.contains("http2-settings"),
        "{head}"
    );
    peer.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        .await;
    assert_eq!(first_line(&client.head().await), "HTTP/1.1 502 Bad Gateway");
}

#[tokio::test]
async fn an_idle_tunnel_is_closed_on_both_sides() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.limits.tunnel_idle = Duration::from_millis(60);
    });
    let mut client = rig.client().await;
    client.send(ASK).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(AGREE).await;
    client.head().await;
    assert_eq!(client.rest().await.0, b"");
    assert_eq!(peer.rest().await.0, b"");
}
