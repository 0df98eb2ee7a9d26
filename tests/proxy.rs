//! The whole proxy over sockets. What is judged is what the provider and the client received, and what
//! the database holds.

mod alignment;
mod memory;
mod otlp;
mod population;
mod replays;
mod tenants;
mod transparent;

/// The allocator of the product. It takes less time than that of the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests; not every program uses those that need it"
)]
mod support {
    pub mod collector;
    pub mod depth;
    pub mod dice;
    pub mod patient_store;
    pub mod planted_table;
    pub mod raw_upstream;
    pub mod skipped;
}
