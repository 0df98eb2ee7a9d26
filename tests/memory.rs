//! Memory through the whole proxy: real sockets, the strict scripted provider as judge, SQLite in a
//! file. What is asserted is read from the provider's record, not from the proxy's opinion.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "memory/rig.rs"]
mod rig;
#[path = "memory/story.rs"]
mod story;
