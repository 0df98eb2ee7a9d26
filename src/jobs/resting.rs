//! What the metrics say of memory's calls that wait: how many, since when and until when.

use crate::telemetry;

/// Shows the rests of one cause, as milliseconds since 1970: the first beginning and the last end; zeros without any.
pub(super) fn publish(cause: &'static str, rests: impl IntoIterator<Item = (i64, i64)>) {
    let rests: Vec<(i64, i64)> = rests.into_iter().collect();
    let since = rests.iter().map(|(since, _)| *since).min();
    let until = rests.iter().map(|(_, until)| *until).max();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let seconds = |time: Option<i64>| time.unwrap_or(0) as f64 / 1_000.0;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let count = rests.len() as f64;
    metrics::gauge!(telemetry::RESTING, "cause" => cause).set(count);
    metrics::gauge!(telemetry::RESTING_SINCE, "cause" => cause).set(seconds(since));
    metrics::gauge!(telemetry::RESTING_UNTIL, "cause" => cause).set(seconds(until));
}
