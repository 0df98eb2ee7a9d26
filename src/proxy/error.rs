//! The errors of a request, by the side that causes them.

use crate::upstream::{BoxError, SendError};

/// The side that causes an error. It decides the status, and is a label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Downstream,
    Upstream,
    Internal,
}

/// Why Diarist answers by itself. The text is for the operator's log; the client's text is in
/// [`super::respond`].
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("the method CONNECT is not proxied")]
    Connect,
    /// The name in the request.
    #[error("the request is for the host {0:?}")]
    ForeignHost(String),
    #[error("the request's address cannot be forwarded")]
    Target(#[source] Option<http::Error>),
    #[error("the request's head is larger than {limit} bytes, or has too many fields")]
    HeadTooLarge { limit: usize },
    #[error("the request's address is too long")]
    TargetTooLong,
    #[error("the request's head is not valid")]
    HeadMalformed,
    #[error("the request's body has a transfer coding other than chunked")]
    TransferCoding,
    #[error("the request's body is larger than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("there is no room for the request's body")]
    BodyWithoutRoom,
    #[error("the request's body paused for too long, or came too slowly")]
    BodyStalled,
    #[error("the request's body ended early")]
    BodyBroken(#[source] BoxError),
    #[error("{0} requests are already in flight")]
    TooManyRequests(usize),
    /// The number of bodies of other requests that still arrive. It is the limit.
    #[error("{0} request bodies are still coming")]
    TooManyUploads(usize),
    #[error(
        "a connection already has {0} requests in flight, and no more places than that are free"
    )]
    TooManyOfConnection(usize),
    #[error("{0} requests of this address are already in flight")]
    TooManyOfAddress(usize),
    #[error("{0} connections are already open")]
    TooManyConnections(usize),
    /// `url` is the upstream's base URL.
    #[error("the upstream {url} switched protocols without being asked")]
    UnrequestedUpgrade { url: String },
    #[error("the upstream {url} did not answer")]
    Upstream {
        url: String,
        #[source]
        source: SendError,
    },
}

impl ProxyError {
    #[must_use]
    pub fn side(&self) -> Side {
        match self {
            Self::Connect
            | Self::ForeignHost(_)
            | Self::Target(_)
            | Self::HeadTooLarge { .. }
            | Self::TargetTooLong
            | Self::HeadMalformed
            | Self::TransferCoding
            | Self::BodyTooLarge { .. }
            | Self::BodyStalled
            | Self::BodyBroken(_) => Side::Downstream,
            Self::BodyWithoutRoom
            | Self::TooManyRequests(_)
            | Self::TooManyUploads(_)
            | Self::TooManyOfConnection(_)
            | Self::TooManyOfAddress(_)
            | Self::TooManyConnections(_) => Side::Internal,
            Self::UnrequestedUpgrade { .. } | Self::Upstream { .. } => Side::Upstream,
        }
    }
}

impl Side {
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Downstream => "downstream",
            Self::Upstream => "upstream",
            Self::Internal => "internal",
        }
    }
}
