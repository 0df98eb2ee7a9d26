//! The store from outside: the trait on real files, and what happens when the file is in trouble.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

mod answers;
mod audit_lines;
mod batch;
mod budget;
mod costs;
mod crash;
mod earlier_log;
mod faults;
mod forget;
mod hangups;
mod isolation;
mod queue;
mod quota;
mod seen_messages;
mod story;
mod timers;
mod together;
pub mod world;
