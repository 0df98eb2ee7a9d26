//! One connection of a client, kept open, with a stopwatch.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::conversation::Outgoing;
use crate::upstream::ANSWER_HEADER;

/// When an answer came, in microseconds after the request was handed to the connection.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The last byte.
    pub whole: f64,
    /// The first byte of the body; of a stream the first token.
    pub first: f64,
}

/// An open connection. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    _driver: JoinSet<()>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address)
            .await
            .with_context(|| format!("nobody listens on {address}"))?;
        socket.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(socket)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            host: address.to_string(),
            _driver: driver,
        })
    }

    /// Sends a chat completion and reads the answer to its end. Any status but 200 is an error.
    pub async fn send(&mut self, outgoing: &Outgoing) -> anyhow::Result<Timing> {
        let request = Request::post("/v1/chat/completions")
            .header("host", &self.host)
            .header("authorization", format!("Bearer {}", outgoing.key))
            .header("content-type", "application/json")
            .header(ANSWER_HEADER, outgoing.answer.header())
            .body(Full::new(outgoing.body.clone()))?;
        self.sender.ready().await?;
        let begin = Instant::now();
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let mut body = response.into_body();
        let mut first = None;
        while let Some(frame) = body.frame().await {
            if frame?.data_ref().is_some_and(|data| !data.is_empty()) {
                first.get_or_insert_with(|| begin.elapsed());
            }
        }
        let whole = begin.elapsed();
        anyhow::ensure!(status == 200, "the answer has status {status}");
        Ok(Timing {
            whole: whole.as_secs_f64() * 1e6,
            first: first.context("an empty answer")?.as_secs_f64() * 1e6,
        })
    }

    /// Reads a page.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<String> {
        let request = Request::get(path).header("host", &self.host);
        self.sender.ready().await?;
        let response = self.sender.send_request(request.body(Full::default())?);
        let response = response.await?;
        let status = response.status();
        let page = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(status == 200, "{path} has status {status}");
        Ok(String::from_utf8_lossy(&page).into_owned())
    }
}
