//! Counts dollars: what requests and memory's model calls cost, and what the same requests would have cost without
//! Diarist. Notes the estimate of a prompt that nobody counted in its record. Reads audit records before their lines are
//! written, away from the requests. Called by `audit`.

use std::sync::{Arc, LazyLock};

use metrics::Counter;
use serde_json::Value;

use crate::audit::{AuditRecord, CallKind, CallRecord, MemoryState, RecordReader};
use crate::jobs::Reloadable;
use crate::ledger::{CostMeter, Line, ReportedUsage, Text};
use crate::model_prices::{NamedPrice, PriceTable};
use crate::telemetry::{self, ModelSeries, kept};

/// Counters hold whole numbers. In billionths of a dollar the price of one token is one, also of the cheapest models.
const NANODOLLARS: f64 = 1e9;

const REQUEST: &str = "request";

/// The reader of the audit's records.
#[derive(Debug)]
pub(super) struct CostMetrics {
    meter: CostMeter,
    /// The operator's prices, which a reload may replace.
    own: Reloadable<Vec<NamedPrice>>,
    /// Those of them that the meter has.
    in_use: Arc<Vec<NamedPrice>>,
}

impl CostMetrics {
    /// Counts with the prices that Diarist brings, and with these of the operator, which win. The series of the
    /// operator's models, and of `other`, exist from now on; those of the rest from the first line about them.
    pub(super) fn new(own: Reloadable<Vec<NamedPrice>>) -> Self {
        series("");
        let in_use = own.current();
        Self {
            meter: CostMeter::new(price_table(&in_use)),
            own,
            in_use,
        }
    }

    fn follow_reload(&mut self) {
        let current = self.own.current();
        if !Arc::ptr_eq(&current, &self.in_use) {
            self.meter.set_prices(price_table(&current));
            self.in_use = current;
        }
    }
}

/// The prices that Diarist brings and these. The series of these models exist from now on.
fn price_table(own: &[NamedPrice]) -> PriceTable {
    for named in own {
        series(&named.model);
    }
    PriceTable::new(own.to_vec())
}

impl RecordReader for CostMetrics {
    fn request(&mut self, record: &mut AuditRecord) {
        self.follow_reload();
        let line = request_line(record);
        let (dollars, estimated) = (self.meter.request(&line), self.meter.unreported(&line));
        record.estimated_prompt_tokens = estimated;
        match dollars {
            None => add_unpriced(REQUEST),
            // A refused request costs nothing, and its model may be an invented name.
            Some(dollars) if dollars.without == 0.0 => {}
            Some(dollars) => {
                let series = series(record.model.as_deref().unwrap_or_default());
                series.request.increment(nanodollars(dollars.cost));
                series.without.increment(nanodollars(dollars.without));
            }
        }
    }

    fn call(&mut self, record: &CallRecord) {
        self.follow_reload();
        match self.meter.call(&call_line(record)) {
            None => add_unpriced(record.call.name()),
            Some(dollars) => {
                let series = series(&record.model);
                let counter = match record.call {
                    CallKind::Observe => &series.observe,
                    CallKind::Reflect => &series.reflect,
                };
                counter.increment(nanodollars(dollars));
            }
        }
    }
}

/// What dollars depend on, as a reader of the line finds it. To write the line and read it again would take longer than
/// all else that becomes of it.
fn request_line(record: &AuditRecord) -> Line<'_> {
    let is_active = record.memory == MemoryState::Active;
    Line {
        tenant: record.tenant.as_str().into(),
        thread: record.thread.as_deref().map(Text::from),
        model: record.model.as_deref().map(Text::from),
        status: record.status,
        memory: is_active.then(|| "active".into()),
        messages_received: record.messages_received.map(u64::from),
        bytes_received: Some(record.bytes_received),
        bytes_sent: Some(record.bytes_sent),
        attachment_bytes_received: record.attachment_bytes_received,
        attachment_bytes_sent: record.attachment_bytes_sent,
        prompt_tokens: record.prompt_tokens,
        cached_tokens: record.cached_tokens,
        cache_write_tokens: record.cache_write_tokens,
        completion_tokens: record.completion_tokens,
        verdict_cause: record.verdict_cause.as_deref().map(Text::from),
        usage: reported(record.usage.as_ref()),
        ..Line::default()
    }
}

fn call_line(record: &CallRecord) -> Line<'_> {
    Line {
        model: Some(record.model.as_str().into()),
        prompt_tokens: record.prompt_tokens,
        cached_tokens: record.cached_tokens,
        cache_write_tokens: record.cache_write_tokens,
        completion_tokens: record.completion_tokens,
        outcome: Some(record.outcome.name().into()),
        usage: reported(record.usage.as_ref()),
        ..Line::default()
    }
}

fn reported(usage: Option<&Value>) -> ReportedUsage {
    usage.map(ReportedUsage::new).unwrap_or_default()
}

/// The series of one model. All begin together, so that sums over kinds never lack one.
struct Series {
    request: Counter,
    observe: Counter,
    reflect: Counter,
    without: Counter,
}

fn series(model: &str) -> Arc<Series> {
    static SERIES: ModelSeries<Series> = ModelSeries::new();
    SERIES.for_model(model, |model| {
        let cost = |kind: &'static str| {
            metrics::counter!(telemetry::COST, "model" => model.to_owned(), "kind" => kind)
        };
        Series {
            request: cost(REQUEST),
            observe: cost(CallKind::Observe.name()),
            reflect: cost(CallKind::Reflect.name()),
            without: metrics::counter!(telemetry::COST_WITHOUT, "model" => model.to_owned()),
        }
    })
}

/// Counts a request or a call without a price.
fn add_unpriced(kind: &'static str) {
    static REQUESTS: LazyLock<Counter> = LazyLock::new(|| kept(|| unpriced(REQUEST)));
    if kind == REQUEST {
        REQUESTS.increment(1);
    } else {
        unpriced(kind).increment(1);
    }
}

fn unpriced(kind: &'static str) -> Counter {
    metrics::counter!(telemetry::UNPRICED, "kind" => kind)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "prices are not negative, and a request of a billion dollars does not exist"
)]
fn nanodollars(dollars: f64) -> u64 {
    (dollars * NANODOLLARS).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the line of a record says, as the report reads it.
    fn report_values<'a>(
        line: &'a Line<'_>,
    ) -> (Vec<&'a str>, Vec<Option<u64>>, bool, ReportedUsage) {
        let cause = line.verdict_cause.as_ref().map_or("", Text::as_str);
        let texts = vec![
            line.tenant.as_str(),
            line.thread_name(),
            line.model_name(),
            cause,
        ];
        let numbers = vec![
            line.status.map(u64::from),
            line.messages_received,
            line.bytes_received,
            line.bytes_sent,
            line.prompt_tokens,
            line.cached_tokens,
            line.cache_write_tokens,
            line.completion_tokens,
        ];
        (texts, numbers, line.is_active(), line.usage)
    }

    #[test]
    fn prices_follow_a_reload() {
        let own = Reloadable::new(Vec::new());
        let mut metrics = CostMetrics::new(own.clone());
        let mut record =
            AuditRecord::new(jiff::Timestamp::UNIX_EPOCH, "id".to_owned(), String::new());
        record.model = Some("unheard-of".to_owned());
        (record.prompt_tokens, record.completion_tokens) = (Some(1_000), Some(0));
        record.cached_tokens = Some(0);
        let mut cost = |metrics: &mut CostMetrics| {
            metrics.request(&mut record);
            metrics
                .meter
                .request(&request_line(&record))
                .map(|it| it.cost)
        };
        assert_eq!(cost(&mut metrics), None);
        own.replace(vec!["unheard-of=2,1,10".parse().expect("a price")]);
        assert_eq!(cost(&mut metrics), Some(0.002));
    }

    #[test]
    fn a_record_gives_the_same_values_as_its_audit_line() {
        let mut record =
            AuditRecord::new(jiff::Timestamp::UNIX_EPOCH, "id".to_owned(), String::new());
        for round in 0..2 {
            let json = serde_json::to_vec(&record).expect("a line");
            let (_, line) = Line::parse(&json).expect("a line");
            assert_eq!(
                report_values(&request_line(&record)),
                report_values(&line),
                "{round}"
            );
            record.tenant = "tenant".to_owned();
            record.thread = Some("thread".to_owned());
            record.model = Some("model".to_owned());
            record.status = Some(200);
            record.memory = MemoryState::Active;
            record.messages_received = Some(3);
            (record.bytes_received, record.bytes_sent) = (4, 5);
            record.prompt_tokens = Some(60);
            record.cached_tokens = Some(7);
            record.cache_write_tokens = Some(8);
            record.completion_tokens = Some(9);
            record.verdict_cause = Some("idle".into());
            record.usage = Some(serde_json::json!({
                "cost": 0.5, "cache_creation": {"ephemeral_1h_input_tokens": 8},
            }));
        }
    }
}
