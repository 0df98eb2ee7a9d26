//! The cost of one line: by a table of prices, or as the provider reported it.

use super::estimate::{Without, billed};
use super::line::Line;
use crate::model_prices::PriceTable;

/// What one request cost, in dollars, and what it would have cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RequestCost {
    pub cost: f64,
    /// `None` if only the provider knows the price: it reported what the request cost.
    pub without: Option<WithoutCost>,
}

/// What a request would have cost without Diarist, in dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WithoutCost {
    pub likely: f64,
    /// The ends between which it lies.
    pub cheapest: f64,
    pub dearest: f64,
}

impl WithoutCost {
    fn exactly(cost: f64) -> Self {
        Self {
            likely: cost,
            cheapest: cost,
            dearest: cost,
        }
    }
}

/// The cost of a request line; `without` are its tokens without Diarist. `None` if it is not known.
pub(super) fn request_cost(
    prices: &PriceTable,
    line: &Line<'_>,
    without: Option<Without>,
) -> Option<RequestCost> {
    if line.is_refused() && line.prompt_tokens.is_none() {
        return Some(RequestCost {
            cost: 0.0,
            without: Some(WithoutCost::exactly(0.0)),
        });
    }
    let Some(price) = prices.find(line.model_name()) else {
        return reported_cost(line, without);
    };
    let tokens = without?;
    let likely = price.cost(&tokens.likely);
    Some(RequestCost {
        cost: price.cost(&billed(line)?),
        without: Some(WithoutCost {
            likely,
            // Where reading from the cache is dearer than reading anew, the ends would change places.
            cheapest: price.cost(&tokens.cheapest).min(likely),
            dearest: price.cost(&tokens.dearest).max(likely),
        }),
    })
}

/// What the provider says that the request cost. It says no price of a token, so nobody knows what other tokens would have
/// cost.
fn reported_cost(line: &Line<'_>, without: Option<Without>) -> Option<RequestCost> {
    let cost = line.usage.cost()?;
    let is_same = without.is_some_and(|tokens| Some(tokens.likely) == billed(line));
    Some(RequestCost {
        cost,
        without: is_same.then(|| WithoutCost::exactly(cost)),
    })
}

/// The cost of a model call of memory, in dollars. A call without an answer reports no tokens, and counts as free:
/// without that, one rate limit in a month would leave the cost of memory unknown.
pub(super) fn call_cost(prices: &PriceTable, line: &Line<'_>) -> Option<f64> {
    if line.is_unanswered_call() && line.prompt_tokens.is_none() && line.usage.cost().is_none() {
        return Some(0.0);
    }
    match prices.find(line.model_name()) {
        Some(price) => Some(price.cost(&billed(line)?)),
        None => line.usage.cost(),
    }
}

#[cfg(test)]
mod tests {
    use crate::ledger::{Filter, Ledger, Totals};
    use crate::model_prices::PriceTable;

    /// The sums of lines with these fields.
    fn totals(lines: &[&str]) -> Totals {
        let prices = ["m=2,0.2,10,2.5", "plain=2,0.2,10"].map(|text| text.parse().unwrap());
        let mut ledger = Ledger::new(&[], Filter::default(), PriceTable::new(prices));
        for fields in lines {
            ledger.add(format!(r#"{{"time":"2026-11-23T11:20:14.295Z",{fields}}}"#).as_bytes());
        }
        ledger.totals
    }

    fn is_close(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-9)
    }

    /// Anthropic writes for an hour at twice the price of a token, for five minutes at 1.25 times.
    #[test]
    fn a_cache_write_for_an_hour_costs_more() {
        let wrote = |model: &str, usage: &str| {
            let fields = format!(
                r#""request_id":"a","model":"{model}","prompt_tokens":1000000,"cached_tokens":0,"cache_write_tokens":1000000,"completion_tokens":0,"usage":{usage}"#
            );
            totals(&[&fields]).cost()
        };
        for (model, usage, cost) in [
            (
                "claude-sonnet-5",
                r#"{"cache_creation":{"ephemeral_1h_input_tokens":1000000}}"#,
                4.0,
            ),
            (
                "claude-haiku-4-5",
                r#"{"cache_creation":{"ephemeral_1h_input_tokens":1000000}}"#,
                2.0,
            ),
            (
                "m",
                r#"{"cache_creation":{"ephemeral_5m_input_tokens":600000,"ephemeral_1h_input_tokens":400000}}"#,
                3.1,
            ),
            (
                "m",
                r#"{"prompt_tokens_details":{"cache_creation_token_details":{"ephemeral_1h_input_tokens":1000000}}}"#,
                4.0,
            ),
            // Nobody can write more than was written.
            (
                "m",
                r#"{"cache_creation":{"ephemeral_1h_input_tokens":9000000}}"#,
                4.0,
            ),
            (
                "m",
                r#"{"cache_creation":{"ephemeral_1h_input_tokens":-1}}"#,
                2.5,
            ),
            (
                "m",
                r#"{"cache_creation":7,"prompt_tokens_details":[]}"#,
                2.5,
            ),
            ("m", "{}", 2.5),
            // A price without one for writes says that they cost as much as the rest.
            (
                "plain",
                r#"{"cache_creation":{"ephemeral_1h_input_tokens":1000000}}"#,
                2.0,
            ),
        ] {
            let found = wrote(model, usage);
            assert!(is_close(found, cost), "{model} {usage}: {found:?}");
        }
    }

    /// OpenRouter says what a request cost.
    #[test]
    fn a_reported_cost_counts_where_no_price_is_known() {
        let request_line = |model: &str, more: &str| {
            format!(
                r#""request_id":"a","tenant":"t","thread":"c","model":"{model}","prompt_tokens":1000,"cached_tokens":0,"completion_tokens":100{more}"#
            )
        };
        let one = |model: &str, more: &str| totals(&[&request_line(model, more)]);
        let reported = one("unheard-of", r#","usage":{"cost":0.0125}"#);
        assert!(is_close(reported.cost(), 0.0125) && is_close(reported.without(), 0.0125));
        assert_eq!((reported.net(), reported.unpriced_requests), (Some(0.0), 0));
        // The price wins.
        assert!(is_close(one("m", r#","usage":{"cost":5}"#).cost(), 0.003));
        for none in [r#""x""#, "-1", "null", "{}"] {
            let unknown = one("unheard-of", &format!(r#","usage":{{"cost":{none}}}"#));
            assert_eq!(
                (unknown.cost(), unknown.unpriced_requests),
                (None, 1),
                "{none}"
            );
        }
        let call = r#""call":"observe","model":"unheard-of","prompt_tokens":10,"completion_tokens":1,"usage":{"cost":0.5}"#;
        assert!(is_close(totals(&[call]).memory_cost(), 0.5));
    }

    #[test]
    fn an_unanswered_call_is_free_and_keeps_the_total_known() {
        let call = |more: &str| format!(r#""call":"observe","model":"m"{more}"#);
        let known = r#","prompt_tokens":1000,"cached_tokens":0,"completion_tokens":0"#;
        let kept = call(known);
        let refused = call(&format!(r#"{known},"outcome":"refused""#));
        let sums = |second: &str| totals(&[&kept, second]);
        for outcome in ["failed", "too_long", "refused", "abandoned"] {
            let sums = sums(&call(&format!(r#","outcome":"{outcome}""#)));
            assert!(is_close(sums.memory_cost(), 0.002), "{outcome}");
            assert_eq!(sums.unpriced_calls, 0, "{outcome}");
        }
        assert!(
            is_close(sums(&refused).memory_cost(), 0.004),
            "its tokens are known"
        );
        let unknown = sums(&call(r#","outcome":"kept""#));
        assert_eq!((unknown.memory_cost(), unknown.unpriced_calls), (None, 1));
    }

    /// What the whole history would have cost needs the prices of tokens.
    #[test]
    fn the_net_leaves_out_a_reported_cost_without_a_comparison() {
        let line = |model: &str, more: &str| {
            format!(
                r#""request_id":"a","tenant":"t","thread":"{model}","model":"{model}","memory":"active","messages_received":9,"bytes_received":4000,"bytes_sent":1000,"prompt_tokens":1000000,"cached_tokens":0,"completion_tokens":0{more}"#
            )
        };
        let reported = line("unheard-of", r#","usage":{"cost":1.5}"#);
        let alone = totals(&[&reported]);
        assert!(is_close(alone.cost(), 1.5));
        assert_eq!(
            (alone.without(), alone.net(), alone.net_range()),
            (None, None, None)
        );
        assert_eq!((alone.unpriced_requests, alone.one_sided_requests), (0, 1));
        let both = totals(&[&reported, &line("m", "")]);
        assert!(
            is_close(both.cost(), 3.5)
                && is_close(both.without(), 8.0)
                && is_close(both.net(), 6.0)
        );
    }
}
