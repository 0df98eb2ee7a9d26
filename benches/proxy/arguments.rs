//! What the command line asks for.

use clap::Parser;

/// Rounds of an ordinary run: the fewest for which quartiles mean something.
const ROUNDS: usize = 5;
/// Rounds of a quick run: enough to see that a row works.
const QUICK_ROUNDS: usize = 2;

/// Measures Diarist beside nginx and a plain pass-through: `cargo bench --bench proxy -- [OPTIONS]`.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy")]
pub struct Arguments {
    /// Rounds of each row; in each, all programs run one after the other [default: 5, quick: 2].
    #[arg(long)]
    rounds: Option<usize>,
    /// Rows to measure, by name; all unless given.
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Fewer rounds and requests: shows whether a row works, not what it is worth.
    #[arg(long)]
    pub quick: bool,
    /// Measures the scaling curves instead of the table.
    #[arg(long)]
    pub curves: bool,
    /// Stored conversations of the row `stored` [default: 100,000, quick: 5,000].
    #[arg(long)]
    conversations: Option<usize>,
    /// Cargo gives it to every benchmark that it runs.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Arguments {
    /// Rounds of a row.
    pub fn rounds(&self) -> usize {
        let default = if self.quick { QUICK_ROUNDS } else { ROUNDS };
        self.rounds.unwrap_or(default).max(1)
    }

    /// Conversations that the row `stored` stores.
    pub fn conversations(&self) -> usize {
        let default = if self.quick { 5_000 } else { 100_000 };
        self.conversations.unwrap_or(default).max(1_000)
    }

    /// Whether the curve over stored conversations is wanted: it takes longer than all others.
    pub fn stores_many(&self) -> bool {
        self.conversations.is_some()
    }

    /// `full`, or a quarter of it in a quick run.
    pub fn count(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(4) } else { full }
    }
}
