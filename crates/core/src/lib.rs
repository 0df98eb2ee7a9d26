//! The pure part of Diarist: no async, no I/O, no clock.
//!
//! [`history`] turns a conversation into a chain of links, [`wire`] finds the byte spans of a
//! request's messages and splices the outgoing body, [`tokens`] counts, and [`memory`] decides what
//! is observed, when it is applied, and how it is written down. Time, stored rows and the model's
//! answers come in as values; what to do comes out as values.

#![forbid(unsafe_code)]

pub mod history;
pub mod memory;
pub mod tokens;
pub mod wire;
