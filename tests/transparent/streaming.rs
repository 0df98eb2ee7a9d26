//! Bodies in motion: nothing is held back, nothing that breaks looks whole.

use crate::support::raw_upstream::Ended;
use crate::transparent::rig::{Rig, first_line};

const GET: &str = "GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn each_piece_of_an_answer_arrives_before_the_next_is_sent() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(CHUNKED).await;
    client.head().await;
    for piece in ["5\r\ndata:\r\n", "2\r\n 1\r\n", "2\r\n\n\n\r\n"] {
        peer.send(piece).await;
        assert_eq!(client.until(piece).await, piece);
    }
    peer.send("0\r\n\r\n").await;
    assert_eq!(client.until("0\r\n\r\n").await, "0\r\n\r\n");
}

#[tokio::test]
async fn each_piece_of_a_request_arrives_before_the_next_is_sent() {
    for method in ["POST", "GET"] {
        let (upstream, _rig, mut client) = Rig::plain().await;
        let head =
            format!("{method} /v1/files HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        client.send(head).await;
        let mut peer = upstream.accept().await;
        assert!(peer.head().await.contains("transfer-encoding: chunked\r\n"));
        for piece in ["3\r\nabc\r\n", "1\r\nd\r\n"] {
            client.send(piece).await;
            assert_eq!(peer.until(piece).await, piece);
        }
        // An answer may begin before the request has ended.
        peer.send(CHUNKED).await;
        assert_eq!(first_line(&client.head().await), "HTTP/1.1 200 OK");
        client.send("0\r\n\r\n").await;
        assert_eq!(peer.until("0\r\n\r\n").await, "0\r\n\r\n");
    }
}

#[tokio::test]
async fn announced_trailers_pass_in_both_directions() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send(
            "POST /v1/x HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te\r\ntrailer: x-sum\r\n\
             transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-sum: 7\r\n\r\n",
        )
        .await;
    let mut peer = upstream.accept().await;
    let head = peer.head().await;
    assert!(
        head.contains("te: trailers\r\n") && head.contains("trailer: x-sum\r\n"),
        "{head}"
    );
    assert_eq!(
        peer.until("\r\n\r\n").await,
        "1\r\na\r\n0\r\nx-sum: 7\r\n\r\n"
    );
    peer.send("HTTP/1.1 200 OK\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n1\r\nb\r\n0\r\nx-end: 8\r\n\r\n")
        .await;
    assert!(client.head().await.contains("trailer: x-end\r\n"));
    assert_eq!(
        client.until("\r\n\r\n").await,
        "1\r\nb\r\n0\r\nx-end: 8\r\n\r\n"
    );
}

#[tokio::test]
async fn interim_answers_do_not_disturb_the_final_one() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
        .await;
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await;
    assert_eq!(
        client.until("\r\n\r\nok").await,
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    );
}

#[tokio::test]
async fn an_answer_cut_at_any_byte_never_ends_cleanly() {
    let body = "6\r\ndata:1\r\n2\r\n\n\n\r\n0\r\n\r\n";
    for reset in [false, true] {
        for cut in 0..body.len() {
            let (upstream, _rig, mut client) = Rig::plain().await;
            client.send(GET).await;
            let mut peer = upstream.accept().await;
            peer.head().await;
            peer.send(CHUNKED).await;
            client.head().await;
            peer.send(&body[..cut]).await;
            if reset {
                peer.reset();
            } else {
                drop(peer);
            }
            let (rest, _) = client.rest().await;
            assert!(
                !rest.ends_with(b"0\r\n\r\n"),
                "cut at {cut} (reset: {reset}) looked whole: {rest:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_answer_shorter_than_announced_never_ends_cleanly() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc")
        .await;
    drop(peer);
    assert!(client.head().await.contains("content-length: 5\r\n"));
    assert_eq!(client.rest().await.0, b"abc");
}

#[tokio::test]
async fn a_cut_answer_is_a_reset_for_an_http_1_0_client() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send("GET /v1/x HTTP/1.0\r\n\r\n").await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(CHUNKED).await;
    peer.send("3\r\nabc\r\n").await;
    client.until("\r\n\r\nabc").await;
    drop(peer);
    assert_eq!(client.rest().await, (Vec::new(), Ended::Reset));
}

#[tokio::test]
async fn an_upstream_that_disconnects_without_an_answer_causes_a_bad_gateway() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send("POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi")
        .await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    drop(peer);
    assert_eq!(first_line(&client.head().await), "HTTP/1.1 502 Bad Gateway");
    client.until("\"code\":\"upstream_disconnected\"").await;
    assert!(
        !upstream
            .is_called_within(crate::transparent::rig::A_WHILE)
            .await,
        "a sent POST was repeated"
    );
}
