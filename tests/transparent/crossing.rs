//! Heads: what crosses, what ends here, where it goes.

use crate::transparent::rig::{A_WHILE, Rig, exchange, first_line, lines};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn request_headers_are_forwarded_with_their_original_spelling() {
    let request = "GET /v1/models?limit=%32&x HTTP/1.1\r\nHost: localhost\r\nX-Odd_Name: 1\r\n\
                   AuthorizatioN: Bearer k\r\nx-dup: b\r\nX-Dup: a\r\naccept-encoding: zstd;q=0.1\r\n\r\n";
    let (head, _) = exchange(request, OK).await;
    assert_eq!(first_line(&head), "GET /v1/models?limit=%32&x HTTP/1.1");
    let host = lines(&head)
        .into_iter()
        .find(|line| line.starts_with("Host: 127.0.0.1:"))
        .expect("the upstream's own authority");
    let mut expected = vec![
        host,
        "X-Odd_Name: 1",
        "AuthorizatioN: Bearer k",
        "x-dup: b",
        "X-Dup: a",
        "accept-encoding: zstd;q=0.1",
    ];
    expected.sort_unstable();
    assert_eq!(lines(&head), expected, "nothing added, nothing lost");
    let dups: Vec<_> = head
        .match_indices("-dup: ")
        .chain(head.match_indices("-Dup: "))
        .collect();
    assert!(
        dups.len() == 2 && dups[0].0 < dups[1].0,
        "duplicates keep their order"
    );
}

#[tokio::test]
async fn a_response_passes_with_its_status_reason_and_headers() {
    let response = "HTTP/1.1 529 Site Is Overloaded\r\nRetry-After: 7\r\nSet-Cookie: a=1\r\n\
                    Set-Cookie: b=2\r\nX-Request-ID: r\r\nServer: them\r\ncontent-length: 0\r\n\r\n";
    let (_, answer) = exchange("GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n", response).await;
    assert_eq!(answer, response, "no date, no server, no via");
}

#[tokio::test]
async fn hop_by_hop_and_control_headers_are_removed_in_both_directions() {
    let request = "GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, x-mine, authorization\r\n\
                   keep-alive: 5\r\nx-mine: 1\r\nauthorization: k\r\nproxy-authorization: p\r\nte: gzip\r\n\
                   x-diarist-thread: t\r\nX_Diarist_Memory: off\r\nx-thread-id: mine\r\n\r\n";
    let response = "HTTP/1.1 200 OK\r\nconnection: x-theirs\r\nx-theirs: 1\r\nkeep-alive: timeout=5\r\n\
                    proxy-authenticate: Basic\r\nx-kept: 1\r\ncontent-length: 0\r\n\r\n";
    let (head, answer) = exchange(request, response).await;
    let header_lines = lines(&head);
    assert!(
        header_lines.contains(&"authorization: k"),
        "a protected header was stripped: {header_lines:?}"
    );
    assert!(header_lines.contains(&"x-thread-id: mine"));
    assert_eq!(header_lines.len(), 3, "{header_lines:?}");
    assert_eq!(lines(&answer), ["content-length: 0", "x-kept: 1"]);
}

#[tokio::test]
async fn every_path_goes_to_the_host_of_the_base_url() {
    for (target, sent) in [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1", "/v1"),
        ("/v1beta/x", "/v1beta/x"),
        ("/", "/"),
        ("//evil.example/x", "//evil.example/x"),
        ("/v1/../secret", "/v1/../secret"),
        ("/v1%2Fmodels", "/v1%2Fmodels"),
        ("http://evil.example/v1/models", "/v1/models"),
        ("http://evil.example", "/"),
    ] {
        let (head, _) = exchange(
            &format!("GET {target} HTTP/1.1\r\nhost: evil.example\r\n\r\n"),
            OK,
        )
        .await;
        assert_eq!(
            first_line(&head),
            format!("GET {sent} HTTP/1.1"),
            "{target}"
        );
        assert!(head.contains("host: 127.0.0.1:"), "{head}");
    }
}

#[tokio::test]
async fn methods_are_forwarded_unchanged() {
    for method in ["OPTIONS", "DELETE", "PATCH", "PURGE", "TRACE"] {
        let (head, answer) = exchange(
            &format!("{method} /v1/files HTTP/1.1\r\nhost: a\r\n\r\n"),
            OK,
        )
        .await;
        assert_eq!(first_line(&head), format!("{method} /v1/files HTTP/1.1"));
        assert_eq!(first_line(&answer), "HTTP/1.1 200 OK");
    }
    let (head, _) = exchange("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", OK).await;
    assert_eq!(first_line(&head), "OPTIONS * HTTP/1.1");
}

#[tokio::test]
async fn a_request_without_a_body_gets_no_added_framing_header() {
    for (framing, kept) in [("", 0), ("content-length: 0\r\n", 1)] {
        for method in ["POST", "DELETE", "GET"] {
            let request = format!("{method} /v1/x HTTP/1.1\r\nhost: a\r\n{framing}\r\n");
            let (head, _) = exchange(&request, OK).await;
            assert_eq!(lines(&head).len(), 1 + kept, "{head}");
        }
    }
}

#[tokio::test]
async fn the_connect_method_is_refused() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send("CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example:443\r\n\r\n")
        .await;
    assert_eq!(
        first_line(&client.head().await),
        "HTTP/1.1 405 Method Not Allowed"
    );
    assert!(!upstream.is_called_within(A_WHILE).await);
}

#[tokio::test]
async fn an_answer_to_head_keeps_its_content_length() {
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 1234\r\ncontent-type: text/plain\r\n\r\n";
    let (upstream, _rig, mut client) = Rig::plain().await;
    client
        .send("HEAD /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        .await;
    let mut peer = upstream.accept().await;
    assert!(peer.head().await.starts_with("HEAD /v1/models HTTP/1.1"));
    peer.send(response).await;
    assert_eq!(client.head().await, response);
    // The connection is still in step.
    client
        .send("GET /v1/next HTTP/1.1\r\nhost: a\r\n\r\n")
        .await;
    assert!(peer.head().await.starts_with("GET /v1/next"));
    peer.send(OK).await;
    assert_eq!(client.head().await, OK);
}

#[tokio::test]
async fn answers_without_a_body_pass_unchanged() {
    for head in [
        "HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n",
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://elsewhere.example/v1\r\ncontent-length: 0\r\n\r\n",
    ] {
        let (_, answer) = exchange("GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n", head).await;
        assert_eq!(answer, head, "a redirect is the client's to follow");
    }
}

#[tokio::test]
async fn binary_bodies_pass_byte_for_byte_in_both_directions() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    let body: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-type: multipart/form-data; boundary=x\r\n\
         content-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (mut peer, ()) = tokio::join!(upstream.accept(), async {
        client.send(head).await;
        client.send(&body).await;
    });
    let received_head = peer.head().await;
    assert!(
        received_head.contains("content-length: 300000\r\n")
            && received_head.contains("content-encoding: gzip\r\n")
    );
    assert!(!received_head.contains("transfer-encoding"));
    assert_eq!(peer.bytes(body.len()).await, body);
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    tokio::join!(
        async {
            peer.send(&answer).await;
            peer.send(&body).await;
        },
        async {
            assert_eq!(client.head().await, answer);
            assert_eq!(client.bytes(body.len()).await, body);
        }
    );
}

#[tokio::test]
async fn an_http_1_0_client_gets_an_http_1_0_answer() {
    let (upstream, _rig, mut client) = Rig::plain().await;
    client.send("GET /v1/models HTTP/1.0\r\n\r\n").await;
    let mut peer = upstream.accept().await;
    assert_eq!(first_line(&peer.head().await), "GET /v1/models HTTP/1.1");
    peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
        .await;
    let (answer, ended) = client.rest().await;
    assert_eq!(
        String::from_utf8(answer).unwrap(),
        "HTTP/1.0 200 OK\r\n\r\nhi"
    );
    assert_eq!(ended, crate::support::raw_upstream::Ended::Closed);
}
