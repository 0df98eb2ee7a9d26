//! Bodies that come slowly, or that nobody wants: they hold up nobody, and who sends them is told.

use std::time::Duration;

use diarist_provider::Options;

use crate::memory::rig::{PATIENCE, Rig};
use crate::memory::tools::{Caller, SampleConversation, head};

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_blocks_no_other_request_and_ends_with_408() {
    let settings = [
        ("SERVER__MAX_REQUESTS", "1"),
        ("SERVER__BODY_TIMEOUT", "2s"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    let mut drips = Caller::connect(&rig.address()).await;
    // The one place must still be free when its head comes: the word to go on says that it is read.
    let asking = head(1_000_000).replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    drips.send(asking.as_bytes()).await;
    drips.until("HTTP/1.1 100 Continue\r\n\r\n").await;
    drips.send(b"{").await;
    for _ in 0..3 {
        assert_eq!(rig.send(&conversation.body(1)).await.status, 200);
        rig.quiet().await;
    }
    // The idle timeout of five minutes begins again with each byte; the time for the body does not.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        // On a busy machine its time may be over already.
        if !drips.try_send(b" ").await {
            break;
        }
    }
    let answer = drips.until("request_timeout").await;
    assert!(answer.contains("\r\n\r\nHTTP/1.1 408 "), "{answer}");
}

/// They are streamed to the upstream, so they hold places before they are in.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_never_end_leave_places_for_chat_completions() {
    let rig = Rig::with(Options::default(), &[("SERVER__MAX_REQUESTS", "4")]).await;
    let conversation = SampleConversation::new("ada");
    let upload = head(3).replace("/v1/chat/completions", "/v1/files");
    let expecting = upload.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let mut upload_caller = Caller::connect(&rig.address()).await;
        upload_caller.send(expecting.as_bytes()).await;
        // It has its place before the next one comes.
        upload_caller.until("HTTP/1.1 100 Continue\r\n\r\n").await;
        upload_caller.send(b"{").await;
        uploads.push(upload_caller);
    }
    let refused = async {
        loop {
            let mut third = Caller::connect(&rig.address()).await;
            third.send(upload.as_bytes()).await;
            let answer = tokio::time::timeout(Duration::from_millis(200), third.until("\r\n\r\n"));
            if let Ok(answer) = answer.await {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    for _ in 0..3 {
        assert_eq!(rig.send(&conversation.body(1)).await.status, 200);
        rig.quiet().await;
    }
    // A body that is in gives its place to the next one.
    let mut first = uploads.remove(0);
    first.send(b" }").await;
    let answer = first.until("content-length").await;
    assert!(!answer.contains("HTTP/1.1 429 "), "{answer}");
    let mut next = Caller::connect(&rig.address()).await;
    next.send(upload.as_bytes()).await;
    next.send(b"{ }").await;
    let answer = next.until("\r\n\r\n").await;
    assert!(!answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

/// A client that sends all of its body before it reads, as most do.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_still_sends_a_too_large_body_gets_413() {
    const MEBIBYTE: usize = 1 << 20;
    let rig = Rig::with(Options::default(), &[("SERVER__MAX_BODY_BYTES", "65536")]).await;
    let piece = vec![b' '; MEBIBYTE];
    let announced = head(32 * MEBIBYTE);
    let chunked = announced.replace(
        &format!("content-length: {}", 32 * MEBIBYTE),
        "transfer-encoding: chunked",
    );
    for (head, framed) in [(announced, false), (chunked, true)] {
        let mut client = Caller::connect(&rig.address()).await;
        client.send(head.as_bytes()).await;
        for _ in 0..32 {
            if framed {
                client.send(format!("{MEBIBYTE:x}\r\n").as_bytes()).await;
            }
            client.send(&piece).await;
            if framed {
                client.send(b"\r\n").await;
            }
        }
        if framed {
            client.send(b"0\r\n\r\n").await;
        }
        let answer = client.until("request_too_large").await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
}
