//! Limits that really bind, and what a client is told when they do.

use std::time::Duration;

use tokio::time::timeout;

use crate::support::raw_upstream::{PATIENCE, RawUpstream, within_timeout};
use crate::transparent::rig::{A_WHILE, Rig, first_line};

const GET: &str = "GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n";
const SHORT: Duration = Duration::from_millis(60);

/// The status line and the `code` of one of our own answers, whose shape is checked on the way.
async fn status_and_code(client: &mut crate::support::raw_upstream::Peer) -> (String, String) {
    let head = client.head().await;
    assert!(
        head.contains("content-type: application/json\r\n"),
        "{head}"
    );
    let length = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length: "))
        .unwrap()
        .parse()
        .unwrap();
    let body: serde_json::Value = serde_json::from_slice(&client.bytes(length).await).unwrap();
    let error = body["error"].as_object().unwrap();
    assert!(error["message"].is_string() && error["type"].is_string() && error["param"].is_null());
    let retry = head.contains("retry-after: ");
    let status = first_line(&head).to_owned();
    assert_eq!(
        retry,
        status.contains(" 429 ") || status.contains(" 503 "),
        "{head}"
    );
    (status, error["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let (upstream, rig, _) = Rig::plain().await;
    let long = format!(
        "GET /v1/x HTTP/1.1\r\nhost: a\r\nx-long: {}\r\n\r\n",
        "a".repeat(70_000)
    );
    let many = format!(
        "GET /v1/x HTTP/1.1\r\nhost: a\r\n{}\r\n",
        "x-many: 1\r\n".repeat(2000)
    );
    for request in [long, many] {
        let mut client = rig.client().await;
        client.send(request).await;
        let (status, code) = status_and_code(&mut client).await;
        assert_eq!(status, "HTTP/1.1 431 Request Header Fields Too Large");
        assert_eq!(code, "request_head_too_large");
        assert_eq!(client.rest().await.0, b"", "and it is over");
    }
    assert!(!upstream.is_called_within(A_WHILE).await);
}

/// Also on a connection that was of use before; and what an upstream says in no more words is its own.
#[tokio::test]
async fn only_a_malformed_request_gets_an_added_error_body() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\r\n";
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(bare).await;
    assert_eq!(client.head().await, bare);
    client
        .send("GET /v1/x HTTP/1.1\r\nhost: a\r\nx y: 1\r\n\r\n")
        .await;
    let (status, code) = status_and_code(&mut client).await;
    assert_eq!(status, "HTTP/1.1 400 Bad Request");
    assert_eq!(code, "malformed_request");
    assert_eq!(client.rest().await.0, b"");

    for bare in [
        bare,
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
    ] {
        let (upstream, _rig, mut client) = Rig::plain().await;
        client
            .send("GET /v1/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await;
        let mut peer = upstream.accept().await;
        peer.head().await;
        peer.send(bare).await;
        let (status, _) = bare.split_once("\r\n").unwrap();
        let head = client.head().await;
        assert_eq!(first_line(&head), status);
        assert!(head.contains("content-length: 0\r\n"), "{head}");
        assert_eq!(client.rest().await.0, b"", "not a word more");
    }
}

#[tokio::test]
async fn a_request_with_ambiguous_framing_is_refused() {
    for framing in [
        "content-length: 5\r\ncontent-length: 6",
        "content-length: +5",
        "content-length: 5,6",
        "content-length: 99999999999999999999",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked, identity",
        "x-a: b\r\n folded: 1",
        "x-nul: a\0b",
        "x y: 1",
    ] {
        let (upstream, _rig, mut client) = Rig::plain().await;
        client
            .send(format!(
                "POST /v1/x HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\nhello"
            ))
            .await;
        assert_eq!(
            first_line(&client.head().await),
            "HTTP/1.1 400 Bad Request",
            "{framing}"
        );
        assert!(
            !upstream.is_called_within(Duration::from_millis(20)).await,
            "{framing}"
        );
    }
}

/// RFC 9112 §6.1. The header ends here: the upstream would take the compressed bytes for the body itself.
#[tokio::test]
async fn an_unsupported_transfer_coding_is_refused() {
    for coding in ["gzip, chunked", "deflate\r\ntransfer-encoding: chunked"] {
        let (upstream, _rig, mut client) = Rig::plain().await;
        client
            .send(format!(
                "POST /v1/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: {coding}\r\n\r\n0\r\n\r\n"
            ))
            .await;
        let head = client.head().await;
        assert_eq!(
            first_line(&head),
            "HTTP/1.1 501 Not Implemented",
            "{coding}"
        );
        assert!(!upstream.is_called_within(Duration::from_millis(20)).await);
    }
}

/// RFC 9112 §6.3: the length is ignored, and nothing after the body is believed.
#[tokio::test]
async fn a_request_with_two_framings_is_forwarded_as_chunked_and_then_closed() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send(
            "POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n\
             0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
        )
        .await;
    let mut peer = upstream.accept().await;
    let head = peer.head().await;
    assert!(!head.contains("content-length"), "{head}");
    assert_eq!(peer.until("0\r\n\r\n").await, "0\r\n\r\n");
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await;
    client.head().await;
    assert_eq!(client.rest().await.0, b"");
    assert!(
        peer.is_silent_for(A_WHILE).await,
        "the second request was believed"
    );
    assert!(!upstream.is_called_within(A_WHILE).await);
}

#[tokio::test]
async fn a_connection_with_an_unfinished_head_is_closed_after_the_timeout() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.header_timeout = SHORT;
    });
    for begun in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "GET /v1/x HTTP/1.1\r\nhost: a\r\n",
    ] {
        let mut client = rig.client().await;
        client.send(begun).await;
        client.rest().await;
    }
}

#[tokio::test]
async fn an_idle_client_connection_is_closed() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.idle_timeout = SHORT;
    });
    let mut client = rig.client().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    // Waiting for an answer is not idling.
    assert!(client.is_silent_for(SHORT * 3).await);
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    peer.send(answer).await;
    assert_eq!(client.rest().await.0, answer.as_bytes());
}

#[tokio::test]
async fn a_stalled_request_body_is_aborted_on_both_sides() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.limits.request_idle = SHORT;
    });
    let mut client = rig.client().await;
    client
        .send("POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc")
        .await;
    let mut peer = upstream.accept().await;
    peer.until("abc").await;
    assert_eq!(
        status_and_code(&mut client).await,
        (
            "HTTP/1.1 408 Request Timeout".into(),
            "request_timeout".into()
        )
    );
    assert_eq!(peer.rest().await.0, b"");
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_causes_a_gateway_timeout() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| options.timeouts.head = SHORT);
    let mut client = rig.client().await;
    client.send(GET).await;
    // On a busy machine the time may be over before the head was written: it is not waited for.
    let mut peer = upstream.accept().await;
    assert_eq!(
        status_and_code(&mut client).await,
        (
            "HTTP/1.1 504 Gateway Timeout".into(),
            "upstream_timeout".into()
        )
    );
    peer.rest().await;
}

/// The time for an answer begins when the request is with the upstream.
#[tokio::test]
async fn an_upload_may_take_longer_than_the_upstream_has_for_its_answer() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.timeouts.head = Duration::from_secs(3);
    });
    let mut client = rig.client().await;
    client
        .send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
        .await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    client.send("ab").await;
    peer.until("ab").await;
    for piece in ["c", "de"] {
        tokio::time::sleep(Duration::from_secs(4)).await;
        client.send(piece).await;
        peer.until(piece).await;
    }
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await;
    client.until("\r\n\r\nok").await;
}

/// What is left of an upload must not be held for as long as such an upstream likes. A client that sends before it reads
/// would not see its answer.
#[tokio::test]
async fn an_upstream_that_reads_nothing_holds_no_upload() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| options.timeouts.head = SHORT);
    let mut client = rig.client().await;
    client
        .send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 30000000\r\n\r\n")
        .await;
    let body = "x".repeat(30_000_000);
    within_timeout("the whole body", client.send(body)).await;
    let (status, code) = status_and_code(&mut client).await;
    assert_eq!(status, "HTTP/1.1 504 Gateway Timeout");
    assert_eq!(code, "upstream_timeout");
    drop(upstream);
}

#[tokio::test]
async fn the_answer_is_cut_when_the_upstream_falls_silent() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.limits.response_idle = SHORT;
    });
    let mut client = rig.client().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        .await;
    client.head().await;
    assert_eq!(client.rest().await.0, b"1\r\na\r\n");
    peer.rest().await;
}

#[tokio::test]
async fn an_unreachable_upstream_has_its_own_error_code() {
    let refusing = RawUpstream::listen().await;
    let refused = refusing.url();
    drop(refusing);
    // Accepts, and never says a word of TLS.
    let silent = RawUpstream::listen().await;
    let no_handshake = format!("https://{}/v1", silent.addr());
    for (url, status, code) in [
        (
            refused.as_str(),
            "HTTP/1.1 502 Bad Gateway",
            "upstream_unreachable",
        ),
        (
            "http://nowhere.invalid/v1",
            "HTTP/1.1 502 Bad Gateway",
            "upstream_unreachable",
        ),
        (
            &no_handshake,
            "HTTP/1.1 504 Gateway Timeout",
            "upstream_connect_timeout",
        ),
    ] {
        let rig = Rig::start(url, |options| {
            if url.starts_with("https") {
                options.timeouts.connect = SHORT;
            }
        });
        let mut client = rig.client().await;
        client.send(GET).await;
        assert_eq!(
            status_and_code(&mut client).await,
            (status.into(), code.into()),
            "{url}"
        );
    }
}

#[tokio::test]
async fn a_request_above_the_limit_gets_429() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| options.limits.max_requests = 1);
    let (mut first, mut second) = (rig.client().await, rig.client().await);
    first.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    for answered in ["", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no"] {
        peer.send(answered).await;
        first.bytes(answered.len()).await;
        second.send(GET).await;
        let (status, code) = status_and_code(&mut second).await;
        assert_eq!(status, "HTTP/1.1 429 Too Many Requests");
        assert_eq!(code, "too_many_requests");
    }
    peer.send("k").await;
    first.until("k").await;
    second.send(GET).await;
    assert!(
        peer.head().await.starts_with("GET /v1/x"),
        "the place is free again"
    );
}

#[tokio::test]
async fn a_connection_above_the_limit_gets_503_and_is_closed() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.max_connections = 1;
    });
    let mut first = rig.client().await;
    first.send(GET).await;
    upstream.accept().await.head().await;
    let mut second = rig.client().await;
    second.send(GET).await;
    assert_eq!(
        status_and_code(&mut second).await,
        (
            "HTTP/1.1 503 Service Unavailable".into(),
            "too_many_connections".into()
        )
    );
    assert_eq!(second.rest().await.0, b"");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_after_the_timeout() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.write_timeout = SHORT;
    });
    let mut client = rig.client().await;
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let cut = timeout(PATIENCE, async {
        use tokio::io::AsyncWriteExt as _;
        while peer.stream.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    assert!(cut.await.is_ok(), "the upstream was held up for ever");
}
