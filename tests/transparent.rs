//! Everything that is no chat completion crosses the proxy as it came, over real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod rig;

mod continuing;
mod crossing;
mod draining;
mod hanging_up;
mod http2;
mod limits;
mod local_only;
mod pooling;
mod streaming;
mod tls;
mod tunnels;
mod unread_answers;
