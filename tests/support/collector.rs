//! A collector for OTLP over HTTP: keeps what it is sent, and reads it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The name of a metric, and its attributes.
pub type Series = (String, BTreeMap<String, String>);

/// One export: the path, the head, the body.
#[derive(Clone, Debug)]
pub struct Export {
    pub path: String,
    pub head: String,
    pub body: Vec<u8>,
}

pub struct Collector {
    address: SocketAddr,
    exports: Arc<Mutex<Vec<Export>>>,
}

impl Collector {
    /// Answers every export with this status.
    #[expect(clippy::disallowed_methods, reason = "it ends with the test")]
    pub async fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let exports = Arc::<Mutex<Vec<Export>>>::default();
        let kept = Arc::clone(&exports);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&kept), status));
            }
        });
        Self { address, exports }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn exports(&self) -> Vec<Export> {
        self.exports.lock().unwrap().clone()
    }

    pub fn spans(&self) -> Vec<Span> {
        let exports = self.exports();
        let traces = exports.iter().filter(|export| export.path == "/v1/traces");
        traces.flat_map(|export| spans(&export.body)).collect()
    }

    /// The newest value of each metric: its name and attributes, and its sum.
    pub fn metrics(&self) -> BTreeMap<Series, f64> {
        let exports = self.exports();
        let all = exports.iter().filter(|export| export.path == "/v1/metrics");
        all.flat_map(|export| metrics(&export.body)).collect()
    }

    /// The attributes of the process that sent them.
    pub fn resource(&self) -> BTreeMap<String, String> {
        let body = self.exports()[0].body.clone();
        attributes(&all(&all(&body, 1)[0], 1)[0], 1)
    }
}

/// Reads requests from one connection until it ends.
async fn serve(mut stream: TcpStream, kept: Arc<Mutex<Vec<Export>>>, status: u16) {
    let mut received = Vec::new();
    loop {
        if let Some((export, length)) = whole(&received) {
            received.drain(..length);
            kept.lock().unwrap().push(export);
            let answer = format!("HTTP/1.1 {status} status\r\ncontent-length: 0\r\n\r\n");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        match stream.read_buf(&mut received).await {
            Ok(1..) => {}
            _ => return,
        }
    }
}

/// The first request, if all of it has come, and its length.
fn whole(received: &[u8]) -> Option<(Export, usize)> {
    let head = received.windows(4).position(|it| it == b"\r\n\r\n")?;
    let text = String::from_utf8(received[..head].to_vec()).unwrap();
    let head = head + 4;
    let mut lines = text.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().unwrap())
    })?;
    let body = received.get(head..head + length)?.to_vec();
    let export = Export {
        path,
        head: text,
        body,
    };
    Some((export, head + length))
}

/// A span, as far as tests look at it.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub name: String,
    /// 2: server, 3: client.
    pub kind: u64,
    pub nanos: u64,
    pub attributes: BTreeMap<String, String>,
    /// 2: an error.
    pub status: u64,
}

fn spans(body: &[u8]) -> Vec<Span> {
    let scopes = all(body, 1)
        .into_iter()
        .flat_map(|resource| all(&resource, 2));
    let found = scopes.flat_map(|scope| all(&scope, 2));
    found
        .map(|span| Span {
            trace: hex(&bytes(&span, 1)),
            id: hex(&bytes(&span, 2)),
            parent: hex(&bytes(&span, 4)),
            name: text(&span, 5),
            kind: number(&span, 6),
            nanos: number(&span, 8) - number(&span, 7),
            attributes: attributes(&span, 9),
            status: number(&bytes(&span, 15), 3),
        })
        .collect()
}

fn metrics(body: &[u8]) -> Vec<(Series, f64)> {
    let scopes = all(body, 1)
        .into_iter()
        .flat_map(|resource| all(&resource, 2));
    let mut found = Vec::new();
    for metric in scopes.flat_map(|scope| all(&scope, 2)) {
        let name = text(&metric, 1);
        // A sum has its points in numbers, a histogram its sums.
        for point in all(&bytes(&metric, 7), 1) {
            let value = number(&point, 6) as f64;
            found.push(((name.clone(), attributes(&point, 7)), value));
        }
        for point in all(&bytes(&metric, 9), 1) {
            let value = f64::from_bits(number(&point, 5));
            found.push(((name.clone(), attributes(&point, 9)), value));
        }
    }
    found
}

fn attributes(message: &[u8], field: u64) -> BTreeMap<String, String> {
    all(message, field)
        .into_iter()
        .map(|pair| (text(&pair, 1), value(&bytes(&pair, 2))))
        .collect()
}

fn value(any: &[u8]) -> String {
    match fields(any).first() {
        Some((1, Field::Bytes(text))) => String::from_utf8(text.clone()).unwrap(),
        Some((2, Field::Number(flag))) => (*flag == 1).to_string(),
        Some((3, Field::Number(number))) => number.to_string(),
        Some((4, Field::Number(bits))) => f64::from_bits(*bits).to_string(),
        other => panic!("a value of another kind: {other:?}"),
    }
}

#[derive(Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message of protobuf.
fn fields(mut message: &[u8]) -> Vec<(u64, Field)> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut message)),
            1 => Field::Number(u64::from_le_bytes(
                take(&mut message, 8).try_into().unwrap(),
            )),
            2 => {
                let length = usize::try_from(varint(&mut message)).unwrap();
                Field::Bytes(take(&mut message, length).to_vec())
            }
            5 => {
                Field::Number(u32::from_le_bytes(take(&mut message, 4).try_into().unwrap()).into())
            }
            kind => panic!("wire type {kind}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = take(message, 1)[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return number;
        }
    }
    unreachable!("a number without an end")
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = message.split_at(length);
    *message = rest;
    taken
}

fn all(message: &[u8], field: u64) -> Vec<Vec<u8>> {
    let of_field = |(number, value): (u64, Field)| match value {
        Field::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(of_field).collect()
}

fn bytes(message: &[u8], field: u64) -> Vec<u8> {
    all(message, field).pop().unwrap_or_default()
}

fn text(message: &[u8], field: u64) -> String {
    String::from_utf8(bytes(message, field)).unwrap()
}

fn number(message: &[u8], field: u64) -> u64 {
    let of_field = |(number, value): (u64, Field)| match value {
        Field::Number(value) if number == field => Some(value),
        _ => None,
    };
    let mut found = fields(message).into_iter().filter_map(of_field);
    found.next().unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
