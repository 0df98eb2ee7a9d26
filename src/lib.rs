//! Diarist: an OpenAI-compatible transparent reverse proxy with observational memory.
//!
//! The story of one request, in reading order: [`server`] accepts it, [`proxy`] decides whether it
//! is a memory request, [`wire`] finds the byte spans of its messages, [`history`] turns them into
//! a chain of links, [`memory`] selects the snapshot that may stand in for the oldest of them,
//! [`wire`] splices the outgoing body from slices of the incoming one, [`upstream`] carries it, and
//! after the answer [`jobs`] records what was said and lets [`llm`] write observations into the
//! [`store`]. [`audit`] leaves one line per request.
//!
//! Around it: [`cli`] reads the command line and [`config`] what is configured, [`app`] builds the
//! rooms and lets them run, [`tasks`] and [`telemetry`] carry what all of them need, [`admin`] tells
//! how they are, [`tokens`] counts off the request path. [`provider`] is no part of the proxy: it
//! plays the upstream for tests and the demo, and judges what it is sent; [`report`] puts what came of it
//! side by side.
//!
//! `history`, `wire`, `tokens`, `memory` (the package `diarist-core`) and `report` are pure: no async, no I/O, no clock. The direction of
//! imports between all rooms is a table in `tests/architecture.rs`; `ARCHITECTURE.md` has the map, the
//! invariants and three walkthroughs.

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod jobs;
pub mod llm;
pub mod proxy;
pub mod report;
pub mod server;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod upstream;

pub use diarist_core::{history, memory, tokens, wire};
#[cfg(feature = "demo")]
pub use diarist_provider as provider;
