//! Wire formats: bytes to spans, spans back to bytes.
//!
//! A wire format reads a request body once, finds where each message stands and what it means
//! ([`chat::parse`]), and builds the outgoing body from slices of the received one ([`Splice`]). It
//! never takes a message apart and writes it again. Raw text is a byte range of the received body, so
//! INV-TAIL holds by type. Called by the proxy (parse, splice), the jobs module (plain text) and the
//! audit (usage). Knows `history`, but not memory.

pub mod chat;
mod media;
mod outline;
mod request;
mod scan;
mod splice;
pub mod usage;

pub use outline::Outline;
pub use request::Request;
pub use splice::{Additions, Insert, Placement, Segment, Splice, cache_key_member};
