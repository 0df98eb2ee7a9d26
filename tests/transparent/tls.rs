//! Upstreams behind TLS. They are spoken to in HTTP/1.1, whatever else they offer.
//!
//! The certificates beside `tests/support` are made for these tests: a root nobody else trusts, and
//! an upstream's certificate for 127.0.0.1, both good for a century.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body_util::channel::{Channel, Sender};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::support::raw_upstream::within_timeout;
use crate::transparent::rig::{Options, Rig, first_line};

const ROOT: &[u8] = include_bytes!("../support/tls/root.pem");
const LEAF: &[u8] = include_bytes!("../support/tls/leaf.pem");
const KEY: &[u8] = include_bytes!("../support/tls/leaf.key");

type Answer = Response<Channel<Bytes, std::io::Error>>;

/// A request the upstream got, and the means to answer it.
struct ReceivedRequest {
    request: Request<Incoming>,
    connection: usize,
    answer: tokio::sync::oneshot::Sender<Answer>,
}

impl ReceivedRequest {
    /// Begins an answer; its body is what is sent into the channel.
    fn begin(self, head: http::response::Builder) -> Sender<Bytes, std::io::Error> {
        let (sender, body) = Channel::new(1);
        assert!(
            self.answer.send(head.body(body).unwrap()).is_ok(),
            "nobody waits any more"
        );
        sender
    }
}

/// An upstream that offers these protocols and hands every request to the test.
async fn serve(protocols: &[&[u8]]) -> (SocketAddr, mpsc::Receiver<ReceivedRequest>) {
    let certificate = CertificateDer::from_pem_slice(LEAF).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel(8);
    tokio::spawn(async move {
        for connection in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = service_fn(|request| {
                    let (answer, answered) = tokio::sync::oneshot::channel();
                    let sender = sender.clone();
                    async move {
                        let received = ReceivedRequest {
                            request,
                            connection,
                            answer,
                        };
                        sender.send(received).await.unwrap();
                        Ok::<_, Infallible>(answered.await.unwrap())
                    }
                });
                let http = auto::Builder::new(TokioExecutor::new());
                let _ = http
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    (addr, requests)
}

fn trusting_the_test_root(options: &mut Options) {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ROOT).unwrap())
        .unwrap();
    options.roots = Some(roots);
}

async fn rig(protocols: &[&[u8]]) -> (Rig, mpsc::Receiver<ReceivedRequest>) {
    let (addr, requests) = serve(protocols).await;
    (
        Rig::start(&format!("https://{addr}/v1"), trusting_the_test_root),
        requests,
    )
}

type Adjust = fn(&mut Options);

const GET: &str = "GET /v1/x?y HTTP/1.1\r\nhost: a\r\nx-a: 1\r\nx-diarist-thread: t\r\n\r\n";

/// Over HTTP/2, all clients would share one connection.
#[tokio::test]
async fn an_upstream_is_spoken_to_in_http1_whatever_it_offers() {
    for offered in [&[&b"h2"[..], b"http/1.1"][..], &[b"http/1.1"], &[]] {
        let (rig, mut upstream) = rig(offered).await;
        let mut client = rig.client().await;
        client.send(GET).await;
        let received = within_timeout("the request", upstream.recv())
            .await
            .unwrap();
        assert_eq!(received.request.version(), Version::HTTP_11);
        assert_eq!(received.request.uri().path_and_query().unwrap(), "/v1/x?y");
        let mut names: Vec<_> = received
            .request
            .headers()
            .keys()
            .map(http::HeaderName::as_str)
            .collect();
        names.retain(|name| *name != "host");
        assert_eq!(names, ["x-a"]);
        let mut body = received.begin(Response::builder().status(418).header("x-b", "2"));
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 418 I'm a teapot\r\n"), "{head}");
        assert!(head.contains("x-b: 2\r\n"), "{head}");
        for piece in ["one", "two"] {
            body.send_data(Bytes::from(piece)).await.unwrap();
            client.until(&format!("3\r\n{piece}\r\n")).await;
        }
        drop(body);
        client.until("0\r\n\r\n").await;
    }
}

/// Requests at the same time have connections of their own: neither a limit for streams nor a client that does not read
/// its answer holds up another one, and a hang-up ends one connection.
#[tokio::test]
async fn each_request_in_progress_has_a_connection_of_its_own() {
    let (rig, mut upstream) = rig(&[b"h2", b"http/1.1"]).await;
    let (mut first, mut second) = (rig.client().await, rig.client().await);
    first.send(GET).await;
    let one = within_timeout("the first request", upstream.recv())
        .await
        .unwrap();
    second.send(GET).await;
    let other = within_timeout("the second request", upstream.recv())
        .await
        .unwrap();
    assert_ne!(one.connection, other.connection);
    let mut cut = one.begin(Response::builder());
    let mut whole = other.begin(Response::builder().header("content-length", "2"));
    cut.send_data(Bytes::from("data: ")).await.unwrap();
    first.until("data: \r\n").await;
    drop(first);
    let ended = timeout(Duration::from_mins(1), async {
        while cut.send_data(Bytes::from("x")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(ended.await.is_ok(), "the upstream was not told");
    whole.send_data(Bytes::from("ok")).await.unwrap();
    second.until("\r\n\r\nok").await;
}

#[tokio::test]
async fn an_answer_that_the_upstream_breaks_off_never_ends_cleanly() {
    let (rig, mut upstream) = rig(&[b"http/1.1"]).await;
    let mut client = rig.client().await;
    client.send(GET).await;
    let received = within_timeout("the request", upstream.recv())
        .await
        .unwrap();
    let mut body = received.begin(Response::builder());
    body.send_data(Bytes::from("abc")).await.unwrap();
    client.until("3\r\nabc\r\n").await;
    body.abort(std::io::Error::other("on purpose"));
    assert_eq!(client.rest().await.0, b"");
}

#[tokio::test]
async fn a_websocket_is_tunnelled_through_tls() {
    let (rig, mut upstream) = rig(&[b"h2", b"http/1.1"]).await;
    let mut client = rig.client().await;
    client
        .send("GET /v1/realtime HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    let mut received = within_timeout("the request", upstream.recv())
        .await
        .unwrap();
    assert_eq!(received.request.version(), Version::HTTP_11);
    let upgraded = hyper::upgrade::on(&mut received.request);
    drop(
        received.begin(
            Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "upgrade")
                .header("upgrade", "websocket"),
        ),
    );
    assert_eq!(
        first_line(&client.head().await),
        "HTTP/1.1 101 Switching Protocols"
    );
    let mut side = TokioIo::new(within_timeout("the switch", upgraded).await.unwrap());
    client.send("ping").await;
    let mut echo = [0; 4];
    within_timeout("ping", side.read_exact(&mut echo))
        .await
        .unwrap();
    side.write_all(b"pong").await.unwrap();
    side.flush().await.unwrap();
    client.until("pong").await;
}

#[tokio::test]
async fn an_invalid_certificate_makes_the_upstream_unreachable() {
    let (addr, _upstream) = serve(&[b"http/1.1"]).await;
    let wrong_name = format!("https://localhost:{}/v1", addr.port());
    let right_name = format!("https://{addr}/v1");
    let untrusting: Adjust = |options| options.roots = Some(RootCertStore::empty());
    for (url, adjust) in [
        (wrong_name, trusting_the_test_root as Adjust),
        (right_name, untrusting),
    ] {
        let rig = Rig::start(&url, adjust);
        let mut client = rig.client().await;
        client.send(GET).await;
        assert_eq!(
            first_line(&client.head().await),
            "HTTP/1.1 502 Bad Gateway",
            "{url}"
        );
        client.until("upstream_unreachable").await;
    }
}
