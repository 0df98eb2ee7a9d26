//! Every invariant, over generated clients: the decisions alone (`properties`), and the decisions
//! together with the real store, recorder and workers, one step at a time (`simulation`).

mod properties;
mod simulation;

mod support {
    pub mod dice;
    pub mod patient_store;
    pub mod planted_table;
}
