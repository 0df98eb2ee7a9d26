//! Wire formats: bytes to spans, spans back to bytes.
//!
//! A wire format reads a request body once, says where each message stands and what it means
//! ([`chat::parse`]), and builds the outgoing body from slices of the incoming one ([`Splice`]).
//! It never takes a message apart and writes it again: what is forwarded raw is a byte range of
//! what was received, so INV-TAIL holds by type. Called by `proxy` (parse, splice), `jobs` (spoken
//! words) and `audit` (usage). Knows `history`, nothing of memory.

pub mod chat;
mod media;
mod scan;
mod splice;
pub mod usage;

pub use splice::{Insert, Placement, Segment, Splice};
