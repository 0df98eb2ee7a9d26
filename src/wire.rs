//! Wire formats: bytes to spans, spans back to bytes.
pub mod usage;
