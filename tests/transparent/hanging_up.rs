//! A client's hang-up reaches the upstream at whatever stage it comes.
//!
//! The aim is 100 ms; the deadline here is generous, because the machine may be busy.

use std::time::Duration;

use tokio::time::timeout;

use crate::support::raw_upstream::Peer;
use crate::transparent::rig::Rig;

const DEADLINE: Duration = Duration::from_secs(2);
const GET: &str = "GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n";
const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

async fn assert_the_upstream_request_is_cut(mut peer: Peer) {
    let left = timeout(DEADLINE, peer.rest())
        .await
        .expect("the upstream was not told");
    assert!(
        !left.0.ends_with(b"0\r\n\r\n"),
        "a request cut short looked whole: {left:?}"
    );
}

#[tokio::test]
async fn a_hang_up_before_the_end_of_the_body_reaches_the_upstream() {
    for framing in ["content-length: 100", "transfer-encoding: chunked"] {
        let (upstream, _rig, mut client) = Rig::plain().await;
        client
            .send(format!(
                "POST /v1/x HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n3\r\nabc\r\n"
            ))
            .await;
        let mut peer = upstream.accept().await;
        peer.until("abc").await;
        drop(client);
        assert_the_upstream_request_is_cut(peer).await;
    }
}

#[tokio::test]
async fn a_hang_up_before_the_answer_head_reaches_the_upstream() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    drop(client);
    assert_the_upstream_request_is_cut(peer).await;
}

#[tokio::test]
async fn a_hang_up_at_each_stage_of_a_stream_reaches_the_upstream() {
    for (stage, sent, awaited) in [
        ("after the head", "", "\r\n\r\n"),
        ("first token", "8\r\ndata: a\n\r\n1\r\n\n\r\n", "\n\r\n"),
        (
            "mid-event",
            "8\r\ndata: a\n\r\n1\r\n\n\r\n6\r\ndata: \r\n",
            "6\r\ndata: \r\n",
        ),
        (
            "after the last event",
            "e\r\ndata: [DONE]\n\n\r\n",
            "[DONE]\n\n\r\n",
        ),
    ] {
        let (upstream, _rig, mut client) = Rig::plain().await;
        client.send(GET).await;
        let mut peer = upstream.accept().await;
        peer.head().await;
        peer.send(EVENTS).await;
        peer.send(sent).await;
        client.until(awaited).await;
        drop(client);
        let left = timeout(DEADLINE, peer.rest()).await;
        assert!(left.is_ok(), "the upstream was not told: {stage}");
    }
}

#[tokio::test]
async fn a_hang_up_of_a_non_reading_client_reaches_the_upstream() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(EVENTS).await;
    client.head().await;
    // Until every buffer on the way is full.
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    while timeout(Duration::from_millis(300), peer.send(&chunk))
        .await
        .is_ok()
    {}
    drop(client);
    assert!(timeout(DEADLINE, peer.rest()).await.is_ok());
}
