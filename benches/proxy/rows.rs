//! The rows of the table, by name, in the order in which a run measures them.

mod neighbours;
mod resident;
mod sizes;
mod small;
pub mod stored;
mod streams;
mod warm;

use crate::report::Finding;
use crate::rounds::Bench;

/// All names.
pub const NAMES: [&str; 11] = [
    "latency",
    "processor",
    "rate",
    "large",
    "growing",
    "warm",
    "streams",
    "resident",
    "body",
    "neighbours",
    "stored",
];

/// Measures one row.
pub async fn measure(name: &str, bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    match name {
        "latency" => small::latency(bench).await,
        "processor" => small::processor(bench).await,
        "rate" => small::rate(bench).await,
        "large" => sizes::large(bench).await,
        "growing" => sizes::growing(bench).await,
        "warm" => warm::warm(bench).await,
        "streams" => streams::streams(bench).await,
        "resident" => resident::mix(bench).await,
        "body" => resident::body(bench).await,
        "neighbours" => Box::pin(neighbours::neighbours(bench)).await,
        "stored" => stored::stored(bench).await,
        _ => anyhow::bail!("no row has this name; there are: {}", NAMES.join(", ")),
    }
}
