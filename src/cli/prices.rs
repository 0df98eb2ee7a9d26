//! The arguments for the prices in a report.

use crate::report::Price;
#[cfg(feature = "demo")]
use crate::report::Prices;

#[derive(Debug, clap::Args)]
pub(super) struct PriceArgs {
    /// Prices of the conversation's model in dollars per million tokens: uncached, cached, output
    #[arg(
        long = "prices",
        value_name = "IN,CACHED,OUT",
        default_value = "2.50,0.25,10"
    )]
    conversation: Price,
    /// Prices of the model that writes memory, in the same form
    #[arg(
        long = "memory-prices",
        value_name = "IN,CACHED,OUT",
        default_value = "0.25,0.025,2"
    )]
    memory: Price,
}

impl PriceArgs {
    #[cfg(feature = "demo")]
    pub(super) fn prices(&self) -> Prices {
        Prices {
            conversation: self.conversation,
            memory: self.memory,
        }
    }
}
