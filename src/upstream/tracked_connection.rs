//! A connection of which one can see whether it still exists. Called by [`super`].
//!
//! A request that is handed to a pooled connection in the moment in which that connection ends may get no answer and no
//! error: the ended connection has emptied its queue, and the queue itself lives as long as somebody waits for it
//! (hyper 1, `client::dispatch`; tokio's channel keeps a message that arrives while its receiver is dropped). The client
//! would wait until the deadline for the response head, ten minutes. So whoever waits long looks at the connection.
//!
//! A connection whose peer takes no byte for too long ends. hyper flushes what it has written before it closes, also when
//! nobody waits for the answer any more; the body of the request would be held for as long as the peer likes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Extensions;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Sleep;

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A connection to the upstream.
#[derive(Debug)]
pub(super) struct TrackedConnection {
    stream: Stream,
    exists: Arc<()>,
    write_timeout: Duration,
    stall: Option<Pin<Box<Sleep>>>,
}

/// What a request can learn of its connection. Holds nothing of it.
#[derive(Clone, Debug)]
struct Existence(Weak<()>);

impl TrackedConnection {
    pub(super) fn new(stream: Stream, write_timeout: Duration) -> Self {
        Self {
            stream,
            exists: Arc::default(),
            write_timeout,
            stall: None,
        }
    }

    /// Turns a write that waits for too long into an error.
    fn watch_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let limit = self.write_timeout;
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "the upstream takes no data");
        stall.as_mut().poll(cx).map(|()| Err(timed_out()))
    }

    fn stream(&mut self) -> Pin<&mut Stream> {
        Pin::new(&mut self.stream)
    }
}

/// Whether the request was given to a connection that has ended since. Its answer can be on the way to whoever waits for
/// it.
pub(super) fn has_ended(connection: &CaptureConnection) -> bool {
    let mut extensions = Extensions::new();
    if let Some(connected) = &*connection.connection_metadata() {
        connected.get_extras(&mut extensions);
    }
    let existence: Option<&Existence> = extensions.get();
    existence.is_some_and(|existence| existence.0.strong_count() == 0)
}

impl Connection for TrackedConnection {
    fn connected(&self) -> Connected {
        let existence = Existence(Arc::downgrade(&self.exists));
        self.stream.connected().extra(existence)
    }
}

impl Read for TrackedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl Write for TrackedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write(cx, bytes);
        self.watch_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write_vectored(cx, slices);
        self.watch_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream().poll_flush(cx);
        self.watch_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::Empty;
    use hyper_util::client::legacy::Client;
    use hyper_util::client::legacy::connect::capture_connection;
    use hyper_util::rt::TokioExecutor;
    use rustls::RootCertStore;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::super::connect;
    use super::*;

    #[tokio::test]
    async fn a_tracked_connection_counts_as_open_until_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tls = connect::with_roots(RootCertStore::empty()).unwrap();
        let connector = connect::connector(&tls, Duration::from_secs(10), Duration::from_mins(1));
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let mut request = http::Request::get(url).body(Empty::<&[u8]>::new()).unwrap();
        let connection = capture_connection(&mut request);
        assert!(!has_ended(&connection), "there is none yet");

        let serving = async {
            let (mut upstream, _) = listener.accept().await.unwrap();
            upstream.read_exact(&mut [0; 16]).await.unwrap();
            assert!(!has_ended(&connection));
            let no_content = b"HTTP/1.1 204 No Content\r\n\r\n";
            upstream.write_all(no_content).await.unwrap();
            upstream
        };
        let (answer, upstream) = tokio::join!(client.request(request), serving);
        assert_eq!(answer.unwrap().status(), 204);
        assert!(!has_ended(&connection), "it is kept for the next request");

        drop(upstream);
        let ended = async {
            while !has_ended(&connection) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_mins(1), ended).await;
        assert!(waited.is_ok(), "it seems to exist still");
    }
}
