//! The state that all requests share, and the limits that one request has.
//!
//! [`Shared`] lies below every phase of a request: phases import it, it imports none of them. Built by
//! [`super::Proxy::new`]. It has no memory: that is [`super::Memory`].

use std::time::Duration;

use super::body::Pace;
use super::body_budget::BodyBudget;
use super::places::Places;
use super::rejections::Rejections;
use crate::tasks::Tasks;
use crate::upstream::Upstream;

/// How much, and how long, one request may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in progress, over all connections. One more is answered 429. A body that is read whole does not
    /// count before it is in.
    pub max_requests: usize,
    /// How many of them one address may have. Addresses of this machine may have any number.
    pub max_requests_per_address: usize,
    /// Bytes of a body that has to be read whole. Bodies that stream through have no limit.
    pub max_body_bytes: usize,
    /// Bytes that the bodies of all chat completions use together, from their first byte to the end of the
    /// answer. Beyond that a request is forwarded unread, without memory.
    pub max_buffered_bytes: usize,
    /// How fast a body has to come that is read whole.
    pub body_pace: Pace,
    /// Longest pause between two pieces of a request's body.
    pub request_idle: Duration,
    /// Longest pause between two pieces of a response's body. Reasoning models pause for minutes.
    pub response_idle: Duration,
    /// Longest time a tunnel may stay open without a byte in either direction.
    pub tunnel_idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            max_requests_per_address: 2048,
            max_body_bytes: 32 << 20,
            max_buffered_bytes: 256 << 20,
            body_pace: Pace {
                grace: Duration::from_mins(1),
                min_bytes_per_second: 32 << 10,
            },
            request_idle: Duration::from_mins(1),
            response_idle: Duration::from_mins(5),
            tunnel_idle: Duration::from_mins(5),
        }
    }
}

/// What every phase of a request may use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: Upstream,
    pub(super) limits: Limits,
    pub(super) body_budget: BodyBudget,
    pub(super) places: Places,
    pub(super) rejections: Rejections,
    pub(super) tasks: Tasks,
}
