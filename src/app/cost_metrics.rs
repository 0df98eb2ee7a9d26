//! Counts dollars: what requests and memory's model calls cost, and what the same requests would have cost without
//! Diarist. Reads audit lines while they are written, away from the requests. Called by `audit`.

use crate::audit::LineReader;
use crate::ledger::{CostMeter, MeteredLine, NamedPrice, PriceTable};
use crate::telemetry::{self, model_label};

/// Counters hold whole numbers. In billionths of a dollar the price of one token is one, also of the cheapest models.
const NANODOLLARS: f64 = 1e9;

const REQUEST: &str = "request";
const OBSERVE: &str = "observe";
const REFLECT: &str = "reflect";

/// The reader of the audit's lines.
#[derive(Debug)]
pub(super) struct CostMetrics {
    meter: CostMeter,
}

impl CostMetrics {
    /// Counts with the prices that Diarist brings, and with these of the operator, which win. The series of the
    /// operator's models, and of `other`, exist from now on; those of the rest from the first line about them.
    pub(super) fn new(own: &[NamedPrice]) -> Self {
        register(&model_label(""));
        for named in own {
            register(&model_label(&named.model));
        }
        Self {
            meter: CostMeter::new(PriceTable::new(own.to_vec())),
        }
    }
}

impl LineReader for CostMetrics {
    fn read(&mut self, line: &[u8]) {
        match self.meter.measure(line) {
            None => {}
            Some(MeteredLine::Request { model, dollars }) => match dollars {
                // A refused request costs nothing, and its model may be an invented name.
                Some(dollars) if dollars.without == 0.0 => {}
                Some(dollars) => {
                    let model = model_label(&model);
                    register(&model);
                    add_cost(&model, REQUEST, dollars.cost);
                    metrics::counter!(telemetry::COST_WITHOUT, "model" => model)
                        .increment(nanodollars(dollars.without));
                }
                None => add_unpriced(REQUEST),
            },
            Some(MeteredLine::Call {
                model,
                call,
                dollars,
            }) => {
                let kind = if call == OBSERVE { OBSERVE } else { REFLECT };
                match dollars {
                    Some(dollars) => {
                        let model = model_label(&model);
                        register(&model);
                        add_cost(&model, kind, dollars);
                    }
                    None => add_unpriced(kind),
                }
            }
        }
    }
}

/// Lets all series of a model exist, so that sums over kinds never lack one.
fn register(model: &str) {
    for kind in [REQUEST, OBSERVE, REFLECT] {
        add_cost(model, kind, 0.0);
    }
    metrics::counter!(telemetry::COST_WITHOUT, "model" => model.to_owned()).increment(0);
}

fn add_cost(model: &str, kind: &'static str, dollars: f64) {
    metrics::counter!(telemetry::COST, "model" => model.to_owned(), "kind" => kind)
        .increment(nanodollars(dollars));
}

fn add_unpriced(kind: &'static str) {
    metrics::counter!(telemetry::UNPRICED, "kind" => kind).increment(1);
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "prices are not negative, and a request of a billion dollars does not exist"
)]
fn nanodollars(dollars: f64) -> u64 {
    (dollars * NANODOLLARS).round() as u64
}
