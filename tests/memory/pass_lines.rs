//! The short lines of what is not read: WebSockets, and requests that Diarist refuses.

use diarist_provider::Options;
use serde_json::{Value, json};

use crate::memory::rig::{Rig, SMALL};
use crate::memory::tools::{Caller, eventually};
use crate::support::raw_upstream::RawUpstream;

async fn line(rig: &Rig) -> Value {
    eventually("the line", || !rig.audit("path").is_empty()).await;
    rig.audit("path").pop().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_has_an_audit_line_with_the_reason() {
    for (head, status, code) in [
        (
            "GET /v1/models HTTP/1.1\r\nhost: rebind.example\r\n",
            421,
            "unknown_host",
        ),
        (
            "POST /v1/models HTTP/1.1\r\nhost: a.localhost\r\ntransfer-encoding: gzip, chunked\r\n",
            501,
            "transfer_coding_not_supported",
        ),
    ] {
        let rig = Rig::small().await;
        let mut caller = Caller::connect(&rig.address()).await;
        caller.send(format!("{head}\r\n").as_bytes()).await;
        caller.until("\"code\"").await;
        let line = line(&rig).await;
        assert_eq!(line["path"], "/v1/models");
        assert_eq!(
            (&line["status"], &line["refused"]),
            (&json!(status), &json!(code))
        );
        assert_eq!(line["unlisted"], Value::Null);
        assert!(line["bytes_answered"].as_u64().unwrap() > 0, "{line}");
        assert_eq!(line["ended"], "complete", "{line}");
    }
}

/// Nobody knows method and path then.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_request_head_has_an_audit_line_with_its_status() {
    let rig = Rig::small().await;
    let long = "a".repeat(70_000);
    for (at, (head, status)) in [
        (
            format!("GET /v1/models HTTP/1.1\r\nhost: {long}\r\n\r\n"),
            431,
        ),
        ("GET /v1/models\r\nsk-secret\r\n\r\n".to_owned(), 400),
    ]
    .into_iter()
    .enumerate()
    {
        let mut caller = Caller::connect(&rig.address()).await;
        caller.send(head.as_bytes()).await;
        let answer = caller.until("}}").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        eventually("the line", || rig.audit("path").len() > at).await;
        let line = &rig.audit("path")[at];
        assert_eq!((&line["method"], &line["path"]), (&json!(""), &json!("")));
        assert_eq!(line["status"], status, "{line}");
        let code = line["refused"].as_str().unwrap();
        assert!(answer.contains(code), "{code} {answer}");
        assert!(line["bytes_answered"].as_u64().unwrap() > 0, "{line}");
        assert_eq!(line["ended"], "complete", "{line}");
    }
    let audit = std::fs::read_to_string(rig.folder.path().join("audit.jsonl")).unwrap();
    assert!(!audit.contains("secret"), "{audit}");

    // The report takes them as what they are.
    let report = std::process::Command::new(env!("CARGO_BIN_EXE_diarist"))
        .arg("audit")
        .arg(rig.folder.path().join("audit.jsonl"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&report.stderr);
    assert!(report.status.success(), "{stderr}");
    assert!(!stderr.contains("left out"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_above_max_requests_is_refused_with_an_audit_line() {
    let upstream = RawUpstream::listen().await;
    let url = format!("{}/v1", upstream.url());
    let settings = [
        SMALL[0],
        ("UPSTREAM__BASE_URL", url.as_str()),
        ("SERVER__MAX_REQUESTS", "1"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let mut first = Caller::connect(&rig.address()).await;
    first
        .send(b"GET /v1/first HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    for path in ["/v1/models/text-x", "/v1/chat/completions"] {
        let mut second = Caller::connect(&rig.address()).await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
        second.send(head.as_bytes()).await;
        second.until("\"code\"").await;
    }
    eventually("the lines", || rig.audit("path").len() == 2).await;
    let lines = rig.audit("path");
    assert_eq!(lines[0]["model"], "text-x");
    for line in lines {
        assert_eq!(line["refused"], "too_many_requests", "{line}");
        assert_eq!(line["status"], 429, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_has_an_audit_line_when_it_ends() {
    let upstream = RawUpstream::listen().await;
    let url = format!("{}/v1", upstream.url());
    let settings = [SMALL[0], ("UPSTREAM__BASE_URL", url.as_str())];
    let rig = Rig::with(Options::default(), &settings).await;
    let mut client = Caller::connect(&rig.address()).await;
    client
        .send(
            b"GET /v1/realtime?model=sk-secret HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n\
              upgrade: websocket\r\nsec-websocket-key: k\r\nsec-websocket-version: 13\r\n\r\n",
        )
        .await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello",
    )
    .await;
    client.until("hello").await;
    client.send(b"ping").await;
    peer.until("ping").await;
    assert_eq!(rig.audit("path"), [Value::Null; 0]);
    drop(client);
    peer.rest().await;
    drop(peer);
    let line = line(&rig).await;
    assert_eq!(
        (&line["path"], &line["status"]),
        (&json!("/v1/realtime"), &json!(101))
    );
    assert_eq!(
        (&line["bytes_received"], &line["bytes_answered"]),
        (&json!(4), &json!(5))
    );
    assert_eq!(line["ended"], "complete", "{line}");
}
