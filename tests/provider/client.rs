//! A client for the tests of the provider: a real one, and one written by hand that can leave.

use std::sync::LazyLock;
use std::time::Duration;

use diarist_provider::{Options, Provider};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(crate) async fn provider() -> Provider {
    Provider::start(Options::default()).await.unwrap()
}

pub(crate) fn ask(text: &str) -> Value {
    json!({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]})
}

pub(crate) fn streamed(mut request: Value) -> Value {
    request["stream"] = json!(true);
    request
}

/// One for all tests, since making one reads the machine's certificates. It pools nothing: a pooled
/// connection would outlive the runtime of the test that opened it.
pub(crate) fn client() -> &'static reqwest::Client {
    static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(|| {
        let client = reqwest::Client::builder().pool_max_idle_per_host(0);
        client.build().unwrap()
    });
    &CLIENT
}

pub(crate) async fn post(provider: &Provider, request: &Value) -> reqwest::Response {
    client()
        .post(format!("{}/chat/completions", provider.base_url()))
        .bearer_auth("sk-test")
        .json(request)
        .send()
        .await
        .unwrap()
}

/// The data of every event, by the letter of the standard: any line end, comments dropped, several
/// data lines joined.
pub(crate) fn events(stream: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(stream).unwrap();
    let text = text
        .trim_start_matches('\u{feff}')
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    text.split("\n\n")
        .map(|event| {
            let lines = event.lines().filter_map(|line| line.strip_prefix("data: "));
            lines.collect::<Vec<_>>().join("\n")
        })
        .filter(|data| !data.is_empty())
        .collect()
}

pub(crate) fn chunks(stream: &[u8]) -> Vec<Value> {
    let mut datas = events(stream);
    assert_eq!(datas.pop().as_deref(), Some("[DONE]"));
    datas
        .iter()
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

pub(crate) fn streamed_text(stream: &[u8]) -> String {
    chunks(stream)
        .iter()
        .filter_map(|chunk| {
            chunk["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect()
}

/// A request written by hand on a socket of its own, for clients that leave.
pub(crate) async fn raw(provider: &Provider, body: &str, announced: usize) -> TcpStream {
    let mut socket = TcpStream::connect(provider.address()).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {announced}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(body.as_bytes()).await.unwrap();
    socket
}

/// Reads until `wanted` has come.
pub(crate) async fn read_until(socket: &mut TcpStream, wanted: &str) -> String {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&received).contains(wanted) {
        let read = tokio::time::timeout(Duration::from_secs(30), socket.read(&mut buffer));
        let read = read.await.expect("the answer comes").unwrap();
        assert!(read > 0, "closed before {wanted:?}");
        received.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(received).unwrap()
}
