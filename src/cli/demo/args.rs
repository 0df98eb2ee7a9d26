//! The arguments of `diarist demo`.

use crate::cli::prices;

/// Smaller than the defaults, with which the first reflection needs a conversation of about 300,000 tokens. To play
/// that takes minutes.
const MESSAGE_TOKENS: u32 = 8_000;

const OBSERVATION_TOKENS: u32 = 8_000;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Number of turns of the user; with tools, each turn is one to four requests
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    pub(super) turns: u32,
    /// Seed of the invented conversation
    #[arg(long, value_name = "S", default_value_t = 7)]
    pub(super) seed: u64,
    /// As memory.observation.message_tokens, whose default is 30,000
    #[arg(long, value_name = "N", default_value_t = MESSAGE_TOKENS)]
    pub(super) message_tokens: u32,
    /// As memory.reflection.observation_tokens, whose default is 40,000
    #[arg(long, value_name = "N", default_value_t = OBSERVATION_TOKENS)]
    pub(super) observation_tokens: u32,
    #[command(flatten)]
    pub(super) prices: prices::PriceArgs,
}
