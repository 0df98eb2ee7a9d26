//! Both ends of a connection as bytes: an upstream whose every move a test makes itself, and a
//! client that sends exactly what it is told. Nothing here knows HTTP beyond the empty line.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longer than anything takes on a busy machine; a test that waits for this has failed.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Fails the test instead of hanging it.
pub async fn within_timeout<F: Future>(what: &str, future: F) -> F::Output {
    timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A listening upstream.
pub struct RawUpstream {
    listener: TcpListener,
}

impl RawUpstream {
    pub async fn listen() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        Self { listener }
    }

    pub fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr())
    }

    /// The next connection the proxy makes.
    pub async fn accept(&self) -> Peer {
        let (stream, _) = within_timeout("a connection to the upstream", self.listener.accept())
            .await
            .unwrap();
        Peer::new(stream)
    }

    /// Whether a connection is waiting to be accepted.
    pub async fn is_called_within(&self, wait: Duration) -> bool {
        timeout(wait, self.listener.accept()).await.is_ok()
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Closed,
    Reset,
}

/// One end of a connection.
pub struct Peer {
    pub stream: TcpStream,
    read: Vec<u8>,
}

impl Peer {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            read: Vec::new(),
        }
    }

    pub async fn connect(addr: SocketAddr) -> Self {
        Self::new(TcpStream::connect(addr).await.unwrap())
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Everything up to and including `end`.
    pub async fn until(&mut self, end: &str) -> String {
        let what = format!("{end:?}, having {:?}", self.so_far());
        within_timeout(&what, async {
            loop {
                if let Some(at) = find(&self.read, end.as_bytes()) {
                    let rest = self.read.split_off(at + end.len());
                    let found = std::mem::replace(&mut self.read, rest);
                    return String::from_utf8(found).unwrap();
                }
                let more = self.more().await;
                assert!(more, "ended before {end:?}: {:?}", self.so_far());
            }
        })
        .await
    }

    /// A message's head, empty line included.
    pub async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    /// Exactly `count` bytes.
    pub async fn bytes(&mut self, count: usize) -> Vec<u8> {
        within_timeout("bytes", async {
            while self.read.len() < count {
                assert!(self.more().await, "ended early: {:?}", self.so_far());
            }
        })
        .await;
        let rest = self.read.split_off(count);
        std::mem::replace(&mut self.read, rest)
    }

    /// What is left until the connection ends, and how it ended.
    pub async fn rest(&mut self) -> (Vec<u8>, Ended) {
        within_timeout("the end of the connection", async {
            let ended = loop {
                match self.stream.read_buf(&mut self.read).await {
                    Ok(0) => break Ended::Closed,
                    Ok(_) => {}
                    Err(_) => break Ended::Reset,
                }
            };
            (std::mem::take(&mut self.read), ended)
        })
        .await
    }

    /// Whether nothing arrives for a while. Can only err on the side of passing.
    pub async fn is_silent_for(&mut self, wait: Duration) -> bool {
        self.read.is_empty()
            && timeout(wait, self.stream.read_buf(&mut self.read))
                .await
                .is_err()
    }

    /// Closes with a reset, as a crashed process does.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    async fn more(&mut self) -> bool {
        self.stream.read_buf(&mut self.read).await.unwrap_or(0) > 0
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, needle)
}
