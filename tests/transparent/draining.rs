//! Stopping: answers in flight end, then everything does.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::support::raw_upstream::{Peer, RawUpstream, within_timeout};
use crate::transparent::rig::{Rig, first_line};

const GET: &str = "GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

async fn admin_page(rig: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut client = Peer::connect(rig).await;
    client
        .send(format!(
            "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        ))
        .await;
    let head = client.head().await;
    let body = String::from_utf8(client.rest().await.0).unwrap();
    (first_line(&head).to_owned(), body)
}

async fn begin_stream(upstream: &RawUpstream, client: &mut Peer) -> Peer {
    client.send(GET).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send(CHUNKED).await;
    peer.send("1\r\na\r\n").await;
    client.until("1\r\na\r\n").await;
    peer
}

#[tokio::test]
async fn an_open_stream_completes_while_new_connections_are_refused() {
    let (upstream, rig, mut client) = Rig::plain().await;
    let (data, admin) = (rig.data, rig.admin);
    let mut idle = rig.client().await;
    let mut peer = begin_stream(&upstream, &mut client).await;
    assert_eq!(admin_page(admin, "/readyz").await.0, "HTTP/1.1 200 OK");

    let drained = rig.stop();
    assert_eq!(
        idle.rest().await.0,
        b"",
        "a connection without a request ends at once"
    );
    within_timeout("the port to close", async {
        while TcpStream::connect(data).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (status, page) = admin_page(admin, "/readyz").await;
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(page.contains("\"status\":\"draining\""), "{page}");
    assert_eq!(admin_page(admin, "/healthz").await.0, "HTTP/1.1 200 OK");

    peer.send("1\r\nb\r\n0\r\n\r\n").await;
    assert_eq!(client.rest().await.0, b"1\r\nb\r\n0\r\n\r\n");
    let (drained, flushed) = drained.await.unwrap();
    assert_eq!(
        (drained.aborted_requests, drained.unfinished_tasks, flushed),
        (0, 0, true)
    );
}

#[tokio::test]
async fn open_requests_are_cut_on_both_sides_at_the_drain_deadline() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.drain_timeout = Duration::from_millis(50);
    });
    let mut client = rig.client().await;
    let mut peer = begin_stream(&upstream, &mut client).await;
    let drained = rig.stop();
    assert_eq!(client.rest().await.0, b"", "no clean end");
    peer.rest().await;
    let (drained, flushed) = drained.await.unwrap();
    assert_eq!(
        (drained.aborted_requests, drained.unfinished_tasks, flushed),
        (1, 0, true)
    );
}

#[tokio::test]
async fn the_admin_port_serves_metrics_and_the_data_port_does_not() {
    let (upstream, rig, mut client) = Rig::plain().await;
    let (status, page) = admin_page(rig.admin, "/metrics").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(page.contains("diarist_connections "), "{page}");
    assert_eq!(
        admin_page(rig.admin, "/v1/models").await.0,
        "HTTP/1.1 404 Not Found"
    );
    client
        .send("GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
        .await;
    assert!(
        upstream
            .accept()
            .await
            .head()
            .await
            .starts_with("GET /metrics ")
    );
}

#[cfg(unix)]
#[tokio::test]
async fn the_first_signal_starts_the_shutdown_and_the_second_is_also_received() {
    let shutdown = diarist::server::shutdown_signal().unwrap();
    let signal = || {
        let id = std::process::id().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status();
        assert!(sent.unwrap().success());
    };
    signal();
    let second_signal = within_timeout("the first signal", shutdown).await;
    signal();
    within_timeout("the second signal", second_signal).await;
}
