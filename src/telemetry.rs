//! Names, set-up and rendering of logs and metrics.
//!
//! Every metric name of the process is a constant here and has its help text in [`describe`]. Never opens a port: `admin`
//! renders what [`install_recorder`] collects. Labels are few and never name a conversation, a tenant or a path; there
//! is a limit for models.

mod log_writer;
mod logging;
mod model_labels;
mod open_count;
mod panic_hook;
mod series;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub use log_writer::LogGuard;
pub use logging::{LogFormat, LoggingError, init_logging};
pub use model_labels::model_label;
pub use open_count::OpenCount;
pub use panic_hook::install_panic_hook;
pub use series::{ModelSeries, kept};

/// Requests that ended. Labels: `status` (`2xx`...), `end` (see `proxy::request_metrics`).
pub const REQUESTS: &str = "diarist_requests_total";
/// Requests between their head and the last byte of their answer.
pub const REQUESTS_IN_FLIGHT: &str = "diarist_requests_in_flight";
/// From a request's head to the end of its answer.
pub const REQUEST_DURATION: &str = "diarist_request_duration_seconds";
/// From sending a request to the upstream's response head.
pub const UPSTREAM_HEAD: &str = "diarist_upstream_head_seconds";
/// Answers that Diarist gave by itself. Labels: `side`, `code`.
pub const ERRORS: &str = "diarist_errors_total";
/// Open connections on the data port.
pub const CONNECTIONS: &str = "diarist_connections";
/// Connections turned away because the limit was reached.
pub const CONNECTIONS_REFUSED: &str = "diarist_connections_refused_total";
/// Answers that were ended because their clients did not read them. Label: `reason` (`time`; `full`: another request
/// needed the place).
pub const ANSWERS_UNREAD: &str = "diarist_answers_unread_total";
/// Open tunnels (WebSocket connections that passed through).
pub const TUNNELS: &str = "diarist_tunnels";

/// Memory requests. Label: `rung` (see `proxy::fallback::Fallback`).
pub const MEMORY_REQUESTS: &str = "diarist_memory_requests_total";
/// Tokens of requests, as the provider reported them. Labels: `kind` (`input`, `cache_read`, `cache_write`, `output`,
/// `reasoning`), `model` (see [`model_label`]).
pub const PROMPT_TOKENS: &str = "diarist_prompt_tokens_total";
/// Billionths of a dollar that requests and memory's model calls cost, as far as tokens and prices are known. Labels:
/// `model`, `kind` (`request`, `observe`, `reflect`).
pub const COST: &str = "diarist_cost_nanodollars_total";
/// The same for the same requests without Diarist: an estimate. Label: `model`.
pub const COST_WITHOUT: &str = "diarist_cost_without_nanodollars_total";
/// Requests and memory's model calls that are in no cost: tokens or price are not known. Label: `kind`, as above.
pub const UNPRICED: &str = "diarist_unpriced_total";
/// Bytes of prompts as they were sent. Label: `segment` (`tools`, `system`, `observations`, `reminder`, `messages`;
/// `replaced`: what the observations replaced, which was not sent).
pub const PROMPT_BYTES: &str = "diarist_prompt_bytes_total";
/// Requests by what the provider's prompt cache did. Labels: `verdict`, `cause` (`none` if it needs none).
pub const CACHE_VERDICTS: &str = "diarist_cache_verdicts_total";
/// Accepted requests that were recorded.
pub const EXCHANGES_RECORDED: &str = "diarist_exchanges_recorded_total";
/// Chat completions that were forwarded unread, because there was no room for their bodies.
pub const BODIES_UNREAD: &str = "diarist_bodies_unread_total";
/// First requests of conversations that wait for a second one before they are recorded. A gauge.
pub const EXCHANGES_WAITING: &str = "diarist_exchanges_waiting";
/// Those that were forgotten, because too many waited.
pub const FIRST_REQUESTS_FORGOTTEN: &str = "diarist_first_requests_forgotten_total";
/// Bytes of accepted requests that the recorder has not recorded yet. A gauge.
pub const INTAKE_BYTES: &str = "diarist_intake_bytes";
/// Accepted requests that were not recorded: the recorder's intake was full, the process stopped, or a fault ended the
/// recorder.
pub const EXCHANGES_DROPPED: &str = "diarist_exchanges_dropped_total";
/// Bytes of messages that were tokenised.
pub const TOKENIZED_BYTES: &str = "diarist_tokenized_bytes_total";
/// Tokens of messages that Diarist and the provider both counted. Label: `by` (`diarist`, `provider`). The quotient is
/// how the tokenizers differ, over all models.
pub const COMPARED_TOKENS: &str = "diarist_compared_tokens_total";
/// Snapshots prepared. Label: `cause`.
pub const SNAPSHOTS: &str = "diarist_snapshots_total";
/// The share of its source's items that a part kept, 0 to 1. Labels: `kind` (of the part), `item` (a kind of item;
/// `high`; for an observation also `others`: what assistants and tools said).
pub const RETENTION: &str = "diarist_observation_retention_ratio";
/// Reflections that were asked for again because they lost too much.
pub const REFLECTIONS_REMINDED: &str = "diarist_reflections_reminded_total";
/// Reflections that lost more than allowed, because not everything important fitted.
pub const REFLECTIONS_LOSSY: &str = "diarist_reflections_lossy_total";
/// Jobs that have ended. Labels: `kind`, `outcome`.
pub const JOBS: &str = "diarist_jobs_total";
/// Jobs waiting or running.
pub const OPEN_JOBS: &str = "diarist_jobs_open";
/// Models of memory that fail, refuse or answer what cannot be used. Label: `kind` (of the parts they write).
pub const MODELS_FAILING: &str = "diarist_models_failing";
/// What memory's model calls wait for now. Label: `cause` (`rate_limit`: credentials of clients; `budget`: budgets of
/// today that are spent; `breaker`: endpoints that keep failing and are left alone).
pub const RESTING: &str = "diarist_memory_resting";
/// Since when they wait, in seconds since 1970: the first that waits. 0 if nothing does. Label: as above.
pub const RESTING_SINCE: &str = "diarist_memory_resting_since_timestamp_seconds";
/// Until when they wait: the last that ends. 0 if nothing waits. Label: as above.
pub const RESTING_UNTIL: &str = "diarist_memory_resting_until_timestamp_seconds";
/// Tokens of memory's own model calls. Labels: `kind`, `direction` (`in`, `cached`, `out`).
pub const MODEL_TOKENS: &str = "diarist_model_tokens_total";
/// Events that were dropped because the queue to their timeline was full.
pub const EVENTS_DROPPED: &str = "diarist_events_dropped_total";
/// Tenants that have used up a day's tokens for memory (`memory.daily_tokens`).
pub const BUDGETS_SPENT: &str = "diarist_budgets_spent_total";
/// Conversations whose Observer was paused or resumed, since it may read at most 1.5 times the new tokens. Label:
/// `change` (`paused`, `resumed`).
pub const OBSERVER_PAUSES: &str = "diarist_observer_pauses_total";
/// Conversations deleted because their account held more than `store.max_account_bytes`.
pub const QUOTA_DELETED: &str = "diarist_quota_deleted_total";
/// The size of the database file and of its journal. Label: `file` (`database`, `journal`).
pub const DATABASE_BYTES: &str = "diarist_database_bytes";
/// Audit lines that were not written. Label: `reason` (`full`, `closed`, `write`, `fault`, `store`).
pub const AUDIT_DROPPED: &str = "diarist_audit_dropped_total";
/// Log lines that were lost, because nobody read standard error in time.
pub const LOG_DROPPED: &str = "diarist_log_dropped_total";
/// Calls of the store that failed.
pub const STORE_FAILURES: &str = "diarist_store_failures_total";

const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// In seconds. Two decades below a second for the proxy itself, up to ten minutes for slow models.
const DURATION_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0,
];

/// For shares, 0 to 1: fine steps near 1, where most values are.
const RATIO_BUCKETS: &[f64] = &[0.0, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0];

static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// The metrics recorder could not be installed.
#[derive(Debug, thiserror::Error)]
#[error("the metrics recorder cannot be installed")]
pub struct RecorderError(#[from] BuildError);

/// Installs the recorder of the process. Further calls return the same recorder, since one process has one set of
/// metrics, however many applications run in it.
///
/// # Errors
/// If another recorder was installed before.
pub fn install_recorder() -> Result<PrometheusHandle, RecorderError> {
    // Locked while installing, because two applications of one process may start at once.
    let mut recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*recorder {
        return Ok(handle.clone());
    }
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), DURATION_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_ratio".to_owned()), RATIO_BUCKETS)?
        .install_recorder()?;
    describe();
    register();
    Ok(recorder.insert(handle).clone())
}

/// Merges samples regularly, and never returns. Must run in every process with a recorder: nothing else merges them,
/// and they pile up between two scrapes.
pub async fn run_upkeep(recorder: PrometheusHandle) {
    let mut tick = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        tick.tick().await;
        recorder.run_upkeep();
    }
}

/// Gives every metric its help text and unit.
fn describe() {
    describe_counter!(REQUESTS, "Requests that ended, by status class and by how");
    describe_gauge!(REQUESTS_IN_FLIGHT, "Requests not yet answered in full");
    describe_histogram!(
        REQUEST_DURATION,
        Unit::Seconds,
        "From a request's head to the end of its answer"
    );
    describe_histogram!(
        UPSTREAM_HEAD,
        Unit::Seconds,
        "From sending a request to the upstream's response head"
    );
    describe_counter!(ERRORS, "Answers given by Diarist itself, by side and code");
    describe_gauge!(CONNECTIONS, "Open connections on the data port");
    describe_counter!(
        CONNECTIONS_REFUSED,
        "Connections turned away because the limit was reached"
    );
    describe_counter!(
        ANSWERS_UNREAD,
        "Answers ended because their clients did not read them, by reason"
    );
    describe_gauge!(TUNNELS, "Open tunnels");
    describe_memory();
}

/// Lets series exist before their first event, so that an alert sees the first one: those whose labels are known here.
fn register() {
    for name in [REQUEST_DURATION, UPSTREAM_HEAD] {
        let _ = metrics::histogram!(name);
    }
    for name in [EXCHANGES_WAITING, INTAKE_BYTES] {
        metrics::gauge!(name).increment(0.0);
    }
    for name in [CONNECTIONS, REQUESTS_IN_FLIGHT, TUNNELS] {
        metrics::gauge!(name).increment(0.0);
    }
    for status in ["1xx", "2xx", "3xx", "4xx", "5xx", "none"] {
        for end in ["complete", "hung_up", "broken", "stalled"] {
            metrics::counter!(REQUESTS, "status" => status, "end" => end).increment(0);
        }
    }
    for name in [
        CONNECTIONS_REFUSED,
        EXCHANGES_RECORDED,
        EXCHANGES_DROPPED,
        FIRST_REQUESTS_FORGOTTEN,
        BODIES_UNREAD,
        TOKENIZED_BYTES,
        REFLECTIONS_REMINDED,
        REFLECTIONS_LOSSY,
        EVENTS_DROPPED,
        BUDGETS_SPENT,
        QUOTA_DELETED,
        STORE_FAILURES,
        LOG_DROPPED,
    ] {
        metrics::counter!(name).increment(0);
    }
    for kind in ["chunk", "reflection"] {
        for outcome in ["written", "empty", "given_up", "failed"] {
            metrics::counter!(JOBS, "kind" => kind, "outcome" => outcome).increment(0);
        }
        for direction in ["in", "cached", "out"] {
            metrics::counter!(MODEL_TOKENS, "kind" => kind, "direction" => direction).increment(0);
        }
        metrics::gauge!(MODELS_FAILING, "kind" => kind).increment(0.0);
    }
    for cause in ["rate_limit", "budget", "breaker"] {
        for name in [RESTING, RESTING_SINCE, RESTING_UNTIL] {
            metrics::gauge!(name, "cause" => cause).increment(0.0);
        }
    }
    for reason in ["time", "full"] {
        metrics::counter!(ANSWERS_UNREAD, "reason" => reason).increment(0);
    }
    for change in ["paused", "resumed"] {
        metrics::counter!(OBSERVER_PAUSES, "change" => change).increment(0);
    }
    for by in ["diarist", "provider"] {
        metrics::counter!(COMPARED_TOKENS, "by" => by).increment(0);
    }
    for kind in ["request", "observe", "reflect"] {
        metrics::counter!(UNPRICED, "kind" => kind).increment(0);
    }
    for reason in ["full", "closed", "write", "fault", "store"] {
        metrics::counter!(AUDIT_DROPPED, "reason" => reason).increment(0);
    }
    for file in ["database", "journal"] {
        metrics::gauge!(DATABASE_BYTES, "file" => file).increment(0.0);
    }
    metrics::gauge!(OPEN_JOBS).increment(0.0);
}

fn describe_memory() {
    describe_counter!(MEMORY_REQUESTS, "Memory requests, by fallback (rung)");
    describe_counter!(
        PROMPT_TOKENS,
        "Tokens of requests, as the provider reported them, by kind and model"
    );
    describe_counter!(
        COST,
        "Billionths of a dollar for requests and memory's model calls, by model and kind"
    );
    describe_counter!(
        COST_WITHOUT,
        "Billionths of a dollar that the same requests would have cost without Diarist: an estimate"
    );
    describe_counter!(
        UNPRICED,
        "Requests and memory's model calls whose cost is not known, by kind"
    );
    describe_counter!(
        PROMPT_BYTES,
        Unit::Bytes,
        "Prompts as they were sent, by segment, and what observations replaced"
    );
    describe_counter!(
        CACHE_VERDICTS,
        "Requests by what the provider's prompt cache did, and why"
    );
    describe_counter!(EXCHANGES_RECORDED, "Accepted requests that were recorded");
    describe_counter!(
        BODIES_UNREAD,
        "Chat completions forwarded unread, because there was no room for their bodies"
    );
    describe_gauge!(
        EXCHANGES_WAITING,
        "First requests of conversations, waiting for a second one before they are recorded"
    );
    describe_counter!(
        FIRST_REQUESTS_FORGOTTEN,
        "First requests of conversations, forgotten before their second one because too many waited"
    );
    describe_gauge!(
        INTAKE_BYTES,
        Unit::Bytes,
        "Accepted requests that the recorder has not recorded yet"
    );
    describe_counter!(
        EXCHANGES_DROPPED,
        "Accepted requests that were not recorded: the queue of the recorder was full, the process stopped, or the recorder failed"
    );
    describe_counter!(
        TOKENIZED_BYTES,
        Unit::Bytes,
        "Bytes of messages that were tokenised"
    );
    describe_counter!(
        COMPARED_TOKENS,
        "Tokens of messages that Diarist and the provider both counted"
    );
    describe_counter!(SNAPSHOTS, "Snapshots prepared, by cause");
    describe_counter!(JOBS, "Jobs ended, by kind and outcome");
    describe_gauge!(OPEN_JOBS, "Jobs waiting or running");
    describe_gauge!(
        MODELS_FAILING,
        "Models of memory that fail, by the kind of part they write"
    );
    describe_gauge!(
        RESTING,
        "Credentials, budgets and endpoints for which memory's model calls wait now, by cause"
    );
    describe_gauge!(
        RESTING_SINCE,
        Unit::Seconds,
        "Since when memory's model calls wait, by cause; 0 if they do not"
    );
    describe_gauge!(
        RESTING_UNTIL,
        Unit::Seconds,
        "Until when memory's model calls wait, by cause; 0 if they do not"
    );
    describe_histogram!(
        RETENTION,
        "The share of its source's items that a part kept, by kind of part and of item"
    );
    describe_counter!(
        REFLECTIONS_REMINDED,
        "Reflections asked for again because they lost too much"
    );
    describe_counter!(
        REFLECTIONS_LOSSY,
        "Reflections that lost more than allowed, because not everything important fitted"
    );
    describe_counter!(MODEL_TOKENS, "Tokens of memory's own model calls");
    describe_counter!(
        EVENTS_DROPPED,
        "Events dropped because the queue to their timeline was full"
    );
    describe_counter!(
        BUDGETS_SPENT,
        "Daily budgets that were spent, of one account or of all"
    );
    describe_counter!(
        OBSERVER_PAUSES,
        "Conversations whose Observer was paused or resumed"
    );
    describe_counter!(
        QUOTA_DELETED,
        "Conversations deleted because their account held too many bytes"
    );
    describe_gauge!(DATABASE_BYTES, Unit::Bytes, "Size of the database, by file");
    describe_counter!(STORE_FAILURES, "Calls of the store that failed");
    describe_counter!(
        AUDIT_DROPPED,
        "Audit lines that were not written, by reason"
    );
    describe_counter!(
        LOG_DROPPED,
        "Log lines that were lost because nobody read standard error in time"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_rendered_with_help_text_and_fixed_buckets() {
        install_recorder().unwrap();
        let handle = install_recorder().unwrap();
        metrics::counter!(CONNECTIONS_REFUSED).increment(2);
        metrics::histogram!(UPSTREAM_HEAD).record(0.003);
        let text = handle.render();
        for first in [
            "diarist_jobs_total{kind=\"chunk\",outcome=\"failed\"}",
            "diarist_exchanges_dropped_total",
            "diarist_audit_dropped_total{reason=\"write\"}",
            "diarist_models_failing{kind=\"chunk\"}",
        ] {
            let found = text.lines().any(|line| line.starts_with(first));
            assert!(found, "{first} exists before its first event");
        }
        assert!(text.contains("# HELP diarist_connections_refused_total Connections turned"));
        assert!(text.contains("diarist_connections_refused_total 2"));
        assert!(text.contains("diarist_upstream_head_seconds_bucket{le=\"0.005\"} 1"));
    }
}
