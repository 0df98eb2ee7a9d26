//! The settings of the listeners.

use std::net::SocketAddr;
use std::time::Duration;

use secrecy::SecretString;

/// The addresses, and the limits of connections.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// Opens the details of the admin port.
    pub admin_token: Option<SecretString>,
    /// Names by which clients may reach a loopback listener, beside those of this machine.
    pub hosts: Vec<String>,
    /// From the start of a connection, or the end of its last answer, to a complete request head.
    pub header_timeout: Duration,
    /// How long a connection without a request is kept. If it is less than `header_timeout`, it ends HTTP/1 connections
    /// too; HTTP/2 has only this limit.
    pub idle_timeout: Duration,
    /// How long a client may take no byte at all, of its connection or, in HTTP/2, of one answer.
    pub write_timeout: Duration,
    /// Bytes of a request's head; more is answered 431.
    pub max_head_bytes: usize,
    /// Open connections on the data port; one more is answered 503.
    pub max_connections: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub max_streams: u32,
    /// How long open requests may continue after the signal to stop.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8484)),
            admin: SocketAddr::from(([127, 0, 0, 1], 8485)),
            admin_token: None,
            hosts: Vec::new(),
            header_timeout: Duration::from_mins(1),
            idle_timeout: Duration::from_mins(2),
            write_timeout: Duration::from_mins(1),
            max_head_bytes: 64 << 10,
            max_connections: 8192,
            // RFC 9113, 6.5.2, advises at least 100.
            max_streams: 100,
            drain_timeout: Duration::from_secs(30),
        }
    }
}
