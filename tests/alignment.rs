//! Clients that never continue what they sent: through the whole proxy, judged by what the provider
//! got and what the Observer was shown.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod acknowledged;
mod answer_receipts;
mod apart;
mod archived;
mod client_habits;
mod common_words;
mod compose;
pub mod corpus;
mod deleted;
mod equal_answers;
pub mod harness;
pub mod inflate;
mod many_summaries;
mod model_store;
mod oracle;
mod overflow;
mod own_words;
mod peer_memory;
mod proven;
mod random;
mod recorded;
pub mod replayed;
mod retried;
mod rows;
mod script;
mod summary_at_once;
mod summary_in_front;
mod table;
mod warm;
