//! The whole proxy over sockets. What is judged is what the provider and the client received, and what
//! the database holds.

mod alignment;
mod memory;
mod population;
mod replays;
mod tenants;
mod transparent;

mod support {
    pub mod dice;
    pub mod patient_store;
    pub mod planted_table;
    pub mod raw_upstream;
}
