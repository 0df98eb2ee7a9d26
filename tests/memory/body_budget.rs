//! Bodies together use no more memory than the operator allows.

use bytes::Bytes;
use diarist_provider::Options;
use http_body::Frame;
use http_body_util::StreamBody;

use crate::memory::rig::{PATIENCE, Rig};
use crate::memory::tools::SampleConversation;

#[tokio::test(flavor = "multi_thread")]
async fn a_body_beyond_max_buffered_bytes_is_forwarded_unread() {
    let room = [("SERVER__MAX_BUFFERED_BYTES", "8192")];
    let rig = Rig::with(Options::default(), &room).await;
    let conversation = SampleConversation::new("ada");
    let small = rig.send(&conversation.body(1)).await;
    assert_eq!(small.memory(), "watching");
    let body = conversation.body(8);
    assert!(body.to_string().len() > 8_192);
    let large = rig.send(&body).await;
    assert_eq!(large.status, 200);
    assert_eq!(large.memory(), "bypass; reason=busy");
    assert_eq!(rig.last().body, body.to_string());
    // Other tests of this process count too.
    let metrics = rig.metrics().await;
    let mut values = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("diarist_bodies_unread_total "));
    let unread: Option<u64> = values.next().and_then(|value| value.parse().ok());
    assert!(unread.is_some_and(|unread| unread > 0), "{metrics}");
    // The room of a body is free again when its exchange is over.
    for _ in 0..20 {
        assert_eq!(rig.send(&conversation.body(1)).await.memory(), "watching");
    }
}

/// A body that does not say its length is found to be too large only when some of it is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_too_large_body_of_unknown_length_is_answered_with_503() {
    let room = [("SERVER__MAX_BUFFERED_BYTES", "8192")];
    let rig = Rig::with(Options::default(), &room).await;
    let body = SampleConversation::new("ada").body(8).to_string();
    let pieces = body.as_bytes().chunks(1_000).map(<[u8]>::to_vec);
    let frames = pieces.map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::from(piece))));
    let frames: Vec<_> = frames.collect();
    let stream = StreamBody::new(futures_util::stream::iter(frames));
    let stream = reqwest::Body::wrap(stream);
    let answer = tokio::time::timeout(PATIENCE, rig.post(&[], stream))
        .await
        .unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    assert!(
        answer.text().contains("too_many_bytes"),
        "{}",
        answer.text()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unaccepted_credential_buffers_at_most_a_quarter() {
    let rig = Rig::with(
        Options::default(),
        &[("SERVER__MAX_BUFFERED_BYTES", "4194304")],
    )
    .await;
    let mut body = SampleConversation::new("ada").body(1);
    body["messages"][0]["content"] = "long ".repeat(300_000).into();
    // Nobody knows this key yet, and a quarter is less than this body.
    let strange = rig.send(&body).await;
    assert_eq!(
        (strange.status, strange.memory()),
        (200, "bypass; reason=busy")
    );
    assert_eq!(rig.last().body, body.to_string());
    assert_eq!(
        rig.send(&SampleConversation::new("ada").body(1))
            .await
            .memory(),
        "watching"
    );
    rig.quiet().await;
    assert_eq!(
        rig.send(&body).await.memory(),
        "watching",
        "it is known now"
    );
    let other = rig.send_as("Bearer sk-other", &[], &body).await;
    assert_eq!(other.memory(), "bypass; reason=busy");
}
