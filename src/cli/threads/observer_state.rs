//! What waits for the Observer in one conversation: the last try, why it failed, and when the next one is due.

use jiff::tz::TimeZone;
use serde_json::Value;

use super::time;
use crate::cli::terminal::harmless;
use crate::store::{Event, ThreadDetail};

/// Empty if nothing waits, or if nothing has failed yet.
pub(super) fn text(detail: &ThreadDetail) -> String {
    let Some(waiting) = detail.waiting else {
        return String::new();
    };
    let mut failures = detail.events.iter().rev();
    let Some((at_ms, error)) = failures.find_map(failed_observation) else {
        return String::new();
    };
    let zone = TimeZone::system();
    let next = if waiting.running {
        "A try of the Observer runs now.".to_owned()
    } else {
        format!("Next try of the Observer: {}.", time(waiting.due_ms, &zone))
    };
    format!(
        "\nRanges of messages that wait for the Observer: {}. Last try that failed: {}: {}\n{next}\n",
        waiting.count,
        time(at_ms, &zone),
        harmless(&error),
    )
}

/// When an observation failed, and why.
fn failed_observation(event: &Event) -> Option<(i64, String)> {
    let body: Value = serde_json::from_str(&event.body).ok()?;
    let failed = event.kind.ends_with("-failed") && body["operationType"] == "observation";
    failed.then(|| {
        (
            event.at_ms,
            body["error"].as_str().unwrap_or("?").to_owned(),
        )
    })
}
