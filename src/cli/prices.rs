//! The prices a report reckons with.

use crate::report::Price;
#[cfg(feature = "demo")]
use crate::report::Prices;

#[derive(Debug, clap::Args)]
pub(super) struct PriceArgs {
    /// Dollars per million tokens of the conversation's model: uncached, cached, answered
    #[arg(
        long = "prices",
        value_name = "IN,CACHED,OUT",
        default_value = "2.50,0.25,10"
    )]
    conversation: Price,
    /// The same of the model that writes memory
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
