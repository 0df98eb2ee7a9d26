//! The scripted provider over real sockets: what it records, how it streams, how it breaks.
//!
//! Its verdicts and its cache have their tests beside the code; here is what only a connection
//! shows.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod answers;
mod client;
mod conversations;
mod faults;
mod streams;
