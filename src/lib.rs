//! Diarist: an OpenAI-compatible transparent reverse proxy with observational memory.
//!
//! The story of one request, in reading order: [`server`] accepts it, [`proxy`] decides whether it
//! is a memory request, [`wire`] finds the byte spans of its messages, [`history`] turns them into
//! a chain of links, [`memory`] selects the snapshot that may stand in for the oldest of them,
//! [`wire`] splices the outgoing body from slices of the incoming one, [`upstream`] carries it, and
//! after the answer [`jobs`] records what was said and lets [`llm`] write observations into the
//! [`store`]. [`audit`] leaves one line per request.
//!
//! `history`, `wire`, `tokens` and `memory` are pure: no async, no I/O, no clock. The direction of
//! imports between all rooms is a table in `tests/architecture.rs`.

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod history;
pub mod jobs;
pub mod llm;
pub mod memory;
pub mod provider;
pub mod proxy;
pub mod report;
pub mod server;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod tokens;
pub mod upstream;
pub mod wire;
