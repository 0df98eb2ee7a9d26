//! What a page in a browser must not reach: a listener that is for programs on this machine.

use diarist::admin::Access;

use crate::support::raw_upstream::{Peer, RawUpstream};
use crate::transparent::rig::{A_WHILE, Rig, first_line};

async fn status_and_body(client: &mut Peer) -> (String, serde_json::Value) {
    let head = client.head().await;
    let length = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length: "))
        .unwrap();
    let body = client.bytes(length.parse().unwrap()).await;
    (
        first_line(&head).to_owned(),
        serde_json::from_slice(&body).unwrap(),
    )
}

/// A page can let its own name point to 127.0.0.1. Its requests carry that name.
#[tokio::test]
async fn an_unknown_host_name_is_refused_on_both_ports() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |options| {
        options.settings.hosts = Vec::new();
    });
    for (address, path) in [(rig.data, "/v1/models"), (rig.admin, "/metrics")] {
        let mut client = Peer::connect(address).await;
        client
            .send(format!(
                "GET {path} HTTP/1.1\r\nhost: rebind.example:8484\r\n\r\n"
            ))
            .await;
        let (status, body) = status_and_body(&mut client).await;
        assert_eq!(status, "HTTP/1.1 421 Misdirected Request");
        assert_eq!(body["error"]["code"], "unknown_host");
    }
    assert!(!upstream.is_called_within(A_WHILE).await);
    let mut client = Peer::connect(rig.admin).await;
    client
        .send("GET /healthz HTTP/1.1\r\nhost: localhost:8485\r\n\r\n")
        .await;
    assert_eq!(status_and_body(&mut client).await.0, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn an_unauthorised_client_gets_only_the_status_of_the_admin_port() {
    let upstream = RawUpstream::listen().await;
    let token = "a-token-of-the-operator";
    let others = "10.0.0.7:8485".parse().unwrap();
    for (access, refusal) in [
        (Access::new(others, None), "HTTP/1.1 403 Forbidden"),
        (
            Access::new(others, Some(token)),
            "HTTP/1.1 401 Unauthorized",
        ),
    ] {
        let has_token = matches!(access, Access::Token(_));
        let rig = Rig::start(&upstream.url(), |options| options.access = access);
        let mut client = Peer::connect(rig.admin).await;
        let mut get = async |path: &str, header: &str| {
            client
                .send(format!(
                    "GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n"
                ))
                .await;
            let head = client.head().await;
            let length = head
                .split("\r\n")
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            let body = client.bytes(length).await;
            let body = String::from_utf8(body).unwrap();
            (first_line(&head).to_owned(), body)
        };
        let ok = "HTTP/1.1 200 OK";
        assert_eq!(get("/healthz", "").await.0, ok);
        let ready = get("/readyz", "").await;
        assert_eq!(
            ready,
            (
                ok.to_owned(),
                r#"{"ready":true,"status":"ready"}"#.to_owned()
            )
        );
        assert_eq!(get("/metrics", "").await.0, refusal);
        let header = format!("authorization: Bearer {token}\r\n");
        let wanted = if has_token { ok } else { refusal };
        assert_eq!(get("/metrics", &header).await.0, wanted);
        assert_eq!(get("/readyz", &header).await.1.contains("parts"), has_token);
    }
}

/// Connections of the admin port take file descriptors that clients need. Those that are only held open do not keep a
/// health check out.
#[tokio::test]
async fn the_admin_port_closes_its_oldest_connection_for_a_new_one() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |_| {});
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut client = Peer::connect(rig.admin).await;
        client.send("GET /healthz HTTP/1.1\r\n").await;
        open.push(client);
    }
    let mut checks = Vec::new();
    for oldest in &mut open[..3] {
        let mut check = Peer::connect(rig.admin).await;
        check.send("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert_eq!(status_and_body(&mut check).await.0, "HTTP/1.1 200 OK");
        assert_eq!(oldest.rest().await.0, b"", "the oldest one is closed");
        checks.push(check);
    }
    let last = &mut open[63];
    last.send("host: a\r\n\r\n").await;
    assert_eq!(
        status_and_body(last).await.0,
        "HTTP/1.1 200 OK",
        "the others go on"
    );
}

/// A probe that takes its time between connect and request is not closed by another address, however fast that one
/// connects.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn admin_connections_of_one_address_do_not_close_those_of_another() {
    let upstream = RawUpstream::listen().await;
    let rig = Rig::start(&upstream.url(), |_| {});
    let mut probe = Peer::connect(rig.admin).await;
    probe.send("GET /healthz HTTP/1.1\r\n").await;
    // All of 127.0.0.0/8 is this machine, so the flood has an address of its own.
    let mut flood = Vec::new();
    for _ in 0..200 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut client = Peer::new(socket.connect(rig.admin).await.unwrap());
        client.send("GET /healthz HTTP/1.1\r\n").await;
        flood.push(client);
    }
    // Connections are accepted in order: when the last one is answered, all have been accepted.
    let last = flood.last_mut().unwrap();
    last.send("host: a\r\n\r\n").await;
    assert_eq!(status_and_body(last).await.0, "HTTP/1.1 200 OK");
    assert_eq!(flood[0].rest().await.0, b"", "the flood is over the bound");
    probe.send("host: a\r\n\r\n").await;
    assert_eq!(status_and_body(&mut probe).await.0, "HTTP/1.1 200 OK");
}
