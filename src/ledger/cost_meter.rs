//! The dollars of audit lines, one by one, while they are written.

use super::cost::{call_cost, request_cost};
use super::estimate::Estimator;
use super::line::{Line, LineKind};
use super::price::PriceTable;

/// The meter remembers at most twice so many conversations, in about 5 MB: it is part of a proxy, and clients choose how
/// many conversations there are.
const CONVERSATIONS: usize = 8_192;

/// Prices lines in the order in which they are written. Same rules as the report of `diarist audit`.
#[derive(Debug)]
pub struct CostMeter {
    prices: PriceTable,
    estimator: Estimator,
}

/// A line that costs something, or may.
#[derive(Clone, Debug, PartialEq)]
pub enum MeteredLine {
    /// A request of a client. Dollars are absent if its tokens or the price of its model are not known.
    Request {
        model: String,
        dollars: Option<RequestDollars>,
    },
    /// A model call of memory with its name in the audit (`observe`, `reflect`), and its dollars as above.
    Call {
        model: String,
        call: String,
        dollars: Option<f64>,
    },
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

    /// Takes one line without its line break. `None` for lines that cost nothing, and for what is no line.
    pub fn measure(&mut self, line: &[u8]) -> Option<MeteredLine> {
        let (kind, line) = Line::parse(line).ok()?;
        let model = line.model_name().to_owned();
        match kind {
            LineKind::Request => {
                let without = self.estimator.without(&line);
                let dollars = request_cost(&self.prices, &line, without);
                Some(MeteredLine::Request {
                    model,
                    dollars: dollars.map(|request| RequestDollars {
                        cost: request.cost,
                        without: request.without,
                    }),
                })
            }
            LineKind::Call => Some(MeteredLine::Call {
                model,
                call: line.call.as_ref()?.as_str().to_owned(),
                dollars: call_cost(&self.prices, &line),
            }),
            LineKind::Part | LineKind::Deletion | LineKind::Pass => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_priced_as_in_the_report() {
        let price = "m=1,0.1,10".parse().unwrap();
        let mut meter = CostMeter::new(PriceTable::new([price]));
        let mut measure = |fields: &str| {
            let line = format!(r#"{{"time":"2026-11-23T11:20:14.295Z",{fields}}}"#);
            meter.measure(line.as_bytes())
        };
        let request = |prompt: &str, memory: &str| {
            format!(
                r#""request_id":"a","thread":"t","model":"m","memory":"{memory}","bytes_received":3000,"bytes_sent":1000,"completion_tokens":0{prompt}"#
            )
        };
        let dollars = |cost, without| {
            let dollars = Some(RequestDollars { cost, without });
            Some(MeteredLine::Request {
                model: "m".to_owned(),
                dollars,
            })
        };
        let used = r#","prompt_tokens":1000000,"cached_tokens":1000000"#;
        assert_eq!(measure(&request(used, "watching")), dollars(0.1, 0.1));
        // Three times the prompt: the first third comes from the cache.
        assert_eq!(measure(&request(used, "active")), dollars(0.1, 2.1));
        let call = |dollars| MeteredLine::Call {
            model: "m".to_owned(),
            call: "observe".to_owned(),
            dollars,
        };
        let fields =
            r#""call":"observe","model":"m","prompt_tokens":1000000,"completion_tokens":100000"#;
        assert_eq!(measure(fields), Some(call(Some(2.0))));
        assert_eq!(measure(r#""call":"observe","model":"m""#), Some(call(None)));
        let unknown = Some(MeteredLine::Request {
            model: "m".to_owned(),
            dollars: None,
        });
        assert_eq!(measure(&request("", "active")), unknown);
        assert_eq!(measure(r#""wrote":"observation","model":"m""#), None);
        assert_eq!(measure(r#""path":"/v1/models""#), None);
    }
}
