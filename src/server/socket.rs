//! Opens the listening sockets, and guards a client's stream with time limits. Called by [`super`].

use std::future::Future as _;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, Sleep};

use super::bad_request::BadRequestAnswer;
use crate::proxy::abort::ResetOnClose;

/// A port that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} ({port} port): {}", reason(.source, .port))]
pub struct BindError {
    /// `data` or `admin`.
    pub port: &'static str,
    pub addr: SocketAddr,
    #[source]
    source: io::Error,
}

/// What is wrong, and the flag that helps.
fn reason(error: &io::Error, port: &str) -> String {
    let reason = match error.kind() {
        ErrorKind::AddrInUse => "the port is already in use",
        ErrorKind::PermissionDenied => "permission denied (ports below 1024 need a privilege)",
        ErrorKind::AddrNotAvailable => "this machine does not have the address",
        _ => return error.to_string(),
    };
    let flag = if port == "admin" {
        "--admin"
    } else {
        "--listen"
    };
    format!("{reason}; use {flag} to choose another address")
}

pub(super) fn listen(port: &'static str, addr: SocketAddr) -> Result<TcpListener, BindError> {
    let attempt = || {
        let socket = if addr.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }?;
        // A restart must not wait for the connections of the process before it. (On Windows the
        // option would let two processes share the port.)
        #[cfg(not(windows))]
        socket.set_reuseaddr(true)?;
        // Accepted sockets inherit it, so a vanished client is noticed even in an idle tunnel.
        socket.set_keepalive(true)?;
        socket.bind(addr)?;
        socket.listen(1024)
    };
    attempt().map_err(|source| BindError { port, addr, source })
}

/// Whether an error of `accept` concerns only the connection that was to be accepted.
pub(super) fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's stream with two limits that hyper-util lacks: it fails if the client takes no byte for too long, or
/// sends too slowly what decides its protocol.
#[derive(Debug)]
pub(super) struct ClientStream {
    stream: TcpStream,
    reset: ResetOnClose,
    /// Set until the protocol of the client is known.
    preface: Option<Preface>,
    write_timeout: Duration,
    stall: Option<Pin<Box<Sleep>>>,
    stalling: bool,
    bad_request: BadRequestAnswer,
    /// Whether the client speaks HTTP/2. Its frames are never replaced.
    http2: bool,
    /// The rest of a replacement, and the number of bytes that it replaces.
    replacement: Option<(Bytes, usize)>,
}

#[derive(Debug)]
struct Preface {
    matched: usize,
    deadline: Pin<Box<Sleep>>,
}

impl ClientStream {
    pub(super) fn new(
        stream: TcpStream,
        reset: ResetOnClose,
        first_bytes: Duration,
        write_timeout: Duration,
        bad_request: BadRequestAnswer,
    ) -> Self {
        // A delayed small write costs a token 40 ms. Fails only if the peer is already gone.
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            reset,
            preface: Some(Preface {
                matched: 0,
                deadline: Box::pin(tokio::time::sleep(first_bytes)),
            }),
            write_timeout,
            stall: None,
            stalling: false,
            bad_request,
            http2: false,
            replacement: None,
        }
    }

    /// Writes the replacement for `bytes`, if there is one. Once it is written, `bytes` count as written.
    fn write_replacement(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Option<Poll<io::Result<usize>>> {
        if self.http2 {
            return None;
        }
        if self.replacement.is_none() {
            let replacement = self.bad_request.replacement_for(bytes)?;
            self.replacement = Some((replacement, bytes.len()));
        }
        let (rest, length) = self.replacement.as_mut()?;
        while !rest.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Ready(Ok(written)) if written > 0 => rest.advance(written),
                other => return Some(other),
            }
        }
        let written = *length;
        self.replacement = None;
        Some(Poll::Ready(Ok(written)))
    }

    /// Turns a write that waits for too long into an error.
    fn watch_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalling = false;
            return written;
        }
        let limit = self.write_timeout;
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if !self.stalling {
            self.stalling = true;
            stall.as_mut().reset(Instant::now() + limit);
        }
        stall
            .as_mut()
            .poll(cx)
            .map(|()| Err(timed_out("the client takes no data")))
    }
}

impl Preface {
    /// Whether `bytes`, which follow, are the rest of the preface.
    fn completes_with(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(&PREFACE[self.matched..])
    }

    /// Whether the protocol is still open after `bytes`, which follow.
    fn accepts(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.matched..];
        self.matched += bytes.len();
        bytes.len() < rest.len() && rest.starts_with(bytes)
    }
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, what)
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Some(preface) = &mut self.preface {
            if read.is_pending() {
                return preface
                    .deadline
                    .as_mut()
                    .poll(cx)
                    .map(|()| Err(timed_out("the client says nothing")));
            }
            let bytes = &buffer.filled()[before..];
            let whole = preface.completes_with(bytes);
            if !preface.accepts(bytes) {
                self.http2 = whole;
                self.preface = None;
            }
        }
        read
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let replaced = self.write_replacement(cx, bytes);
        let written = replaced.unwrap_or_else(|| Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.watch_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let replaced = match slices {
            [only] => self.write_replacement(cx, only),
            _ => None,
        };
        let written =
            replaced.unwrap_or_else(|| Pin::new(&mut self.stream).poll_write_vectored(cx, slices));
        self.watch_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.bad_request.flushed();
        }
        self.watch_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.is_requested() {
            // A shutdown would be a clean end; the drop that follows resets instead.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.reset.is_requested() {
            // Fails only if the connection is gone already, which the client notices too.
            let _ = self.stream.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::activity::Activity;
    use super::*;

    #[test]
    fn the_protocol_is_undecided_only_while_the_http2_preface_may_follow() {
        let open = |pieces: &[&[u8]]| {
            let mut preface = Preface {
                matched: 0,
                deadline: Box::pin(tokio::time::sleep(Duration::ZERO)),
            };
            pieces
                .iter()
                .map(|piece| preface.accepts(piece))
                .collect::<Vec<_>>()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        assert_eq!(open(&[b"PR", b"I * "]), [true, true]);
        assert_eq!(open(&[b"P", b"OST"]), [true, false]);
        assert_eq!(open(&[b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"]), [false]);
        assert_eq!(open(&[PREFACE]), [false]);
        assert_eq!(open(&[&[PREFACE, b"settings"].concat()]), [false]);
    }

    #[tokio::test]
    async fn the_http2_preface_is_complete_with_its_last_byte() {
        let mut preface = Preface {
            matched: 0,
            deadline: Box::pin(tokio::time::sleep(Duration::ZERO)),
        };
        assert!(preface.completes_with(&[PREFACE, b"settings"].concat()));
        assert!(!preface.completes_with(b"POST / HTTP/1.1\r\nhost: a\r\n\r\n"));
        let (first, rest) = PREFACE.split_at(10);
        assert!(!preface.completes_with(first));
        assert!(preface.accepts(first));
        assert!(!preface.completes_with(&rest[1..]));
        assert!(preface.completes_with(rest));
    }

    /// What a client gets that sent `chunks`, when hyper writes `answer`.
    async fn sent_to(chunks: &[&[u8]], answer: &[u8]) -> Vec<u8> {
        let listener = listen("data", SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(addr).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let limit = Duration::from_mins(1);
        let unread = BadRequestAnswer::new(Arc::new(Activity::default()), 8 << 10, None);
        let mut stream = ClientStream::new(accepted, ResetOnClose::default(), limit, limit, unread);
        for piece in chunks {
            client.write_all(piece).await.unwrap();
            stream.read_exact(&mut vec![0; piece.len()]).await.unwrap();
        }
        stream.write_all(answer).await.unwrap();
        drop(stream);
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received
    }

    /// Bytes that look like hyper's own answer are one only in HTTP/1: an HTTP/2 frame may hold anything.
    #[tokio::test]
    async fn http2_frames_are_never_rewritten() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let (first, rest) = PREFACE.split_at(10);
        for chunks in [&[PREFACE][..], &[first, rest]] {
            assert_eq!(sent_to(chunks, bare).await, bare);
        }
        let answer = sent_to(&[b"GET /"], bare).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("application/json"), "{answer}");
    }

    #[tokio::test]
    async fn a_port_in_use_gives_a_one_line_error_message() {
        let first = listen("data", SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let addr = first.local_addr().unwrap();
        for (port, flag) in [("data", "--listen"), ("admin", "--admin")] {
            let error = listen(port, addr).unwrap_err();
            let expected = format!(
                "cannot listen on {addr} ({port} port): the port is already in use; use {flag} to choose \
                 another address"
            );
            assert_eq!(error.to_string(), expected);
        }
    }
}
