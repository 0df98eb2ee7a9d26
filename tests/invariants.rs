//! Every invariant, over generated clients: the decisions alone (`properties`), and the decisions
//! together with the real store, recorder and workers, one step at a time (`simulation`).

mod properties;
mod simulation;

/// The allocator of the product. It takes less time than that of the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests; not every program uses those that need it"
)]
mod support {
    pub mod depth;
    pub mod dice;
    pub mod parallel;
    pub mod patient_store;
    pub mod planted_table;
}
