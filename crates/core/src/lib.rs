//! The pure part of Diarist: no async, no I/O, no clock.
//!
//! [`history`] turns a conversation into a chain of links. [`wire`] finds the byte spans of a request's
//! messages and builds the outgoing body from them. [`tokens`] counts. [`memory`] decides what is
//! observed, when it is used, and how it is written. [`steps`] tells a thread when a step of a long
//! computation ends. Time, stored rows and answers of models come in as values; decisions go out as
//! values.

#![forbid(unsafe_code)]

pub mod history;
pub mod memory;
pub mod steps;
pub mod tokens;
pub mod wire;
