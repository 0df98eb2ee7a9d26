//! The metrics of the GenAI conventions: durations and tokens of model calls.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

use super::names::{Attribute, Metric, Names};

/// As the conventions recommend, in seconds.
const DURATIONS: [f64; 14] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];

/// As the conventions recommend, in tokens.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// The tokens of one call; what is not reported is not measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tokens {
    pub(super) input: Option<u64>,
    pub(super) cache_read: Option<u64>,
    pub(super) cache_write: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) reasoning: Option<u64>,
}

impl Tokens {
    fn number(self, metric: Metric) -> Option<u64> {
        match metric {
            Metric::Duration => None,
            Metric::InputTokens => self.input,
            Metric::OutputTokens => self.output,
            Metric::CacheRead => self.cache_read,
            Metric::CacheWrite => self.cache_write,
            Metric::Reasoning => self.reasoning,
        }
    }
}

/// The kinds of tokens that are measured.
const KINDS: [Metric; 5] = [
    Metric::InputTokens,
    Metric::OutputTokens,
    Metric::CacheRead,
    Metric::CacheWrite,
    Metric::Reasoning,
];

#[derive(Debug)]
pub(super) struct Instruments {
    names: Names,
    duration: Histogram<f64>,
    usage: Usage,
}

#[derive(Debug)]
enum Usage {
    /// One histogram; an attribute says which tokens.
    Histogram(Histogram<u64>),
    /// A counter for each kind.
    Counters(Vec<(Metric, Counter<u64>)>),
}

impl Instruments {
    pub(super) fn new(meter: &Meter, names: Names) -> Self {
        let name = |metric| names.metric(metric).unwrap_or_default();
        let duration = meter
            .f64_histogram(name(Metric::Duration))
            .with_unit("s")
            .with_boundaries(DURATIONS.to_vec())
            .build();
        let usage = match names {
            Names::Today => Usage::Histogram(
                meter
                    .u64_histogram(name(Metric::InputTokens))
                    .with_unit("{token}")
                    .with_boundaries(TOKENS.to_vec())
                    .build(),
            ),
            Names::Newest => {
                let counter = |metric| meter.u64_counter(name(metric)).with_unit("{token}");
                let counters = KINDS.map(|metric| (metric, counter(metric).build()));
                Usage::Counters(counters.into())
            }
        };
        Self {
            names,
            duration,
            usage,
        }
    }

    /// One call of a model took so long and used these tokens.
    pub(super) fn record(&self, seconds: f64, tokens: Tokens, attributes: &[KeyValue]) {
        self.duration.record(seconds, attributes);
        match &self.usage {
            Usage::Counters(counters) => {
                for (metric, counter) in counters {
                    if let Some(number) = tokens.number(*metric) {
                        counter.add(number, attributes);
                    }
                }
            }
            Usage::Histogram(histogram) => {
                for (kind, number) in [("input", tokens.input), ("output", tokens.output)] {
                    let Some(number) = number else { continue };
                    let name = self.names.attribute(Attribute::TokenType);
                    let mut all = attributes.to_vec();
                    all.push(KeyValue::new(name, kind));
                    histogram.record(number, &all);
                }
            }
        }
    }
}
