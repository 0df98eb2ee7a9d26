//! Diarist: an OpenAI-compatible transparent reverse proxy with observational memory.
//!
//! The story of one request, in reading order: [`server`] accepts it, [`proxy`] decides whether
//! memory may change it, [`wire`] finds the byte spans of its messages, [`history`] turns them into
//! a chain of links, [`lookup`] finds what is known of that chain, [`memory`] selects the snapshot that may stand in for the oldest of them,
//! [`wire`] splices the outgoing body from slices of the incoming one, [`upstream`] carries it, and
//! after the answer [`jobs`] records the exchange and lets [`llm`] write observations into the
//! [`store`]. [`audit`] leaves one line per request.
//!
//! Around it: [`cli`] reads the command line; [`config`] reads the configuration and builds the settings of the
//! modules; [`app`] builds the modules and runs them. All modules use [`tasks`] and [`telemetry`]. [`admin`] reports their
//! health, and [`tokens`] counts tokens off the request path. [`provider`] is not part of the proxy: it plays the
//! upstream for tests and the demo, and checks the requests it gets; [`report`] compares the results. [`ledger`] sums the lines of [`audit`], with
//! the [`model_prices`].
//!
//! `history`, `wire`, `tokens`, `memory` (the package `diarist-core`), `report`, `ledger` and `model_prices` are pure: no async, no I/O,
//! no clock. `tests/architecture.rs` has a table of the imports between all modules; `ARCHITECTURE.md` has the map, the
//! invariants and the walkthroughs.

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod jobs;
pub mod ledger;
pub mod llm;
pub mod lookup;
pub mod model_prices;
pub mod proxy;
pub mod report;
pub mod server;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod upstream;

pub use diarist_core::{history, memory, steps, tokens, wire};
#[cfg(feature = "demo")]
pub use diarist_provider as provider;
