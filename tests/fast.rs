//! The suites that take seconds: each plays one part of Diarist by itself, or the binary as an operator
//! uses it. None runs the whole proxy inside this process.

mod architecture;
mod audit_command;
mod audit_schema;
mod checklist;
mod cli;
mod config;
mod demo;
mod documents;
mod llm;
mod provider;
mod serve;
mod store;
mod tee;
mod wire;

#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests; not every program uses those that need it"
)]
mod support {
    pub mod patient_store;
    pub mod skipped;
}
