//! Memory through the whole proxy: real sockets, the strict scripted provider as judge, SQLite in a
//! file. What is asserted is read from the provider's record, not from the proxy's opinion.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what was measured is worth reading")]

pub mod rig;
mod story;
pub mod tools;

mod accounts;
mod answered_errors;
mod bad_input;
mod batches;
mod body_budget;
mod borrowed;
mod branches;
mod budget;
mod by_hand;
mod cache_key;
mod cache_kinds;
mod cache_marks;
mod cache_receipt;
mod calls;
mod changed;
mod controls;
mod cost_aware;
mod cut;
mod database;
mod days;
mod declined;
mod dropping;
mod failing;
mod faults;
mod filtered;
mod first_requests;
mod fixed;
mod forgotten;
mod hangups;
mod hints;
mod holdout;
mod identity;
mod idle;
mod important;
mod kept;
mod ladder;
mod late;
mod limited;
mod losses;
mod lowered;
mod modes;
mod no_trace;
mod observing;
mod overflow;
mod overrides;
mod paths;
mod pepper;
mod pieces;
mod placement;
mod process;
mod quota;
mod reflecting;
mod refusals;
mod reproduced;
mod resource;
mod rotated;
mod same;
mod shown;
mod stopgap;
mod stopping;
mod streams;
mod timeline;
mod told;
mod trimmed;
mod turns;
mod unwritten;
mod uploads;
mod users;
mod wishes;
