//! The dollars of requests and calls, one by one, while their lines are written.

use super::cost::{call_cost, request_cost};
use super::estimate::Estimator;
use super::line::Line;
use crate::model_prices::PriceTable;

/// The meter remembers at most twice so many conversations, in about 5 MB: it is part of a proxy, and clients choose how
/// many conversations there are.
const CONVERSATIONS: usize = 8_192;

/// Prices requests and calls in the order in which they end. Same rules as the report of `diarist audit`.
#[derive(Debug)]
pub struct CostMeter {
    prices: PriceTable,
    estimator: Estimator,
}

/// What a request cost, and what it would have cost without Diarist, in US dollars. The second number is an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestDollars {
    pub cost: f64,
    pub without: f64,
}

impl CostMeter {
    pub fn new(prices: PriceTable) -> Self {
        Self {
            prices,
            estimator: Estimator::with_generation(CONVERSATIONS),
        }
    }

    /// Uses other prices from now on.
    pub fn set_prices(&mut self, prices: PriceTable) {
        self.prices = prices;
    }

    /// Takes a request of a client. `None` if its tokens or the price of its model are not known.
    pub fn request(&mut self, line: &Line<'_>) -> Option<RequestDollars> {
        let without = self.estimator.without(line);
        // A counter of the cost with no counterpart would look like a loss.
        let request = request_cost(&self.prices, line, without)?;
        let without = request.without?;
        Some(RequestDollars {
            cost: request.cost,
            without: without.likely,
        })
    }

    /// The tokens of a prompt that nobody reported, by its bytes. The request was taken before.
    pub fn unreported(&self, line: &Line<'_>) -> Option<u64> {
        self.estimator.unreported(line)
    }

    /// The dollars of a model call of memory; `None` as above.
    pub fn call(&self, line: &Line<'_>) -> Option<f64> {
        call_cost(&self.prices, line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_priced_as_in_the_report() {
        let price = "m=1,0.1,10".parse().unwrap();
        let mut meter = CostMeter::new(PriceTable::new([price]));
        let text =
            |fields: &str| format!(r#"{{"time":"2026-11-23T11:20:14.295Z","model":"m",{fields}}}"#);
        let mut request = |prompt: &str, memory: &str| {
            let text = text(&format!(
                r#""request_id":"a","thread":"t","memory":"{memory}","bytes_received":3000,"bytes_sent":1000,"completion_tokens":0{prompt}"#
            ));
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            let dollars = meter.request(&line)?;
            Some((dollars.cost, dollars.without))
        };
        let used = r#","prompt_tokens":1000000,"cached_tokens":1000000"#;
        assert_eq!(request(used, "watching"), Some((0.1, 0.1)));
        // Three times the prompt: the first third comes from the cache.
        assert_eq!(request(used, "active"), Some((0.1, 2.1)));
        assert_eq!(request("", "active"), None);
        let call = |fields: &str| {
            let text = text(&format!(r#""call":"observe"{fields}"#));
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            meter.call(&line)
        };
        let used = r#","prompt_tokens":1000000,"completion_tokens":100000"#;
        assert_eq!(call(used), Some(2.0));
        assert_eq!(call(""), None);
    }
}
