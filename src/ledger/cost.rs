//! The cost of one line by a table of prices.

use super::estimate::{Without, billed};
use super::line::Line;
use super::price::PriceTable;

/// What one request cost, and what it would have cost, in dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RequestCost {
    pub cost: f64,
    pub without: f64,
    /// The ends between which `without` lies.
    pub cheapest: f64,
    pub dearest: f64,
}

/// The cost of a request line; `without` are its tokens without Diarist. `None` if one of the two numbers is not known.
pub(super) fn request_cost(
    prices: &PriceTable,
    line: &Line<'_>,
    without: Option<Without>,
) -> Option<RequestCost> {
    if line.is_refused() && line.prompt_tokens.is_none() {
        return Some(RequestCost {
            cost: 0.0,
            without: 0.0,
            cheapest: 0.0,
            dearest: 0.0,
        });
    }
    let price = prices.find(line.model_name())?;
    let tokens = without?;
    let without = price.cost(&tokens.likely);
    Some(RequestCost {
        cost: price.cost(&billed(line)?),
        without,
        // Where reading from the cache is dearer than reading anew, the ends would change places.
        cheapest: price.cost(&tokens.cheapest).min(without),
        dearest: price.cost(&tokens.dearest).max(without),
    })
}

/// The cost of a model call of memory, in dollars.
pub(super) fn call_cost(prices: &PriceTable, line: &Line<'_>) -> Option<f64> {
    let price = prices.find(line.model_name())?;
    Some(price.cost(&billed(line)?))
}
