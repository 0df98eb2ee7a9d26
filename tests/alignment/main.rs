//! Clients that never continue what they sent: through the whole proxy, judged by what the provider
//! got and what the Observer was shown.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/dice.rs"]
#[expect(dead_code, reason = "shared with another test binary")]
mod dice;
#[path = "../support/planted_table.rs"]
mod planted_table;
#[path = "../memory/rig.rs"]
#[expect(dead_code, reason = "shared with another test binary")]
mod rig;

mod apart;
mod book;
mod compose;
mod corpus;
mod inflate;
mod kept;
mod manners;
mod oracle;
mod others;
mod overflow;
mod proven;
mod random;
mod recorded;
mod replayed;
mod retried;
mod rows;
mod script;
mod stage;
mod table;
mod warm;
