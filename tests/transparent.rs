//! Everything that is not a memory request crosses the proxy as it came, over real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests"
)]

#[path = "support/raw_upstream.rs"]
mod raw_upstream;

#[path = "transparent/rig.rs"]
mod rig;

#[path = "transparent/continuing.rs"]
mod continuing;
#[path = "transparent/crossing.rs"]
mod crossing;
#[path = "transparent/draining.rs"]
mod draining;
#[path = "transparent/hanging_up.rs"]
mod hanging_up;
#[path = "transparent/http2.rs"]
mod http2;
#[path = "transparent/limits.rs"]
mod limits;
#[path = "transparent/pooling.rs"]
mod pooling;
#[path = "transparent/streaming.rs"]
mod streaming;
#[path = "transparent/tls.rs"]
mod tls;
#[path = "transparent/tunnels.rs"]
mod tunnels;
