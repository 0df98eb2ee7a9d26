//! The condition of the process's parts, as they report it. `admin` shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::json;

/// The condition of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Up,
    /// It waits on purpose until this time, because somebody asked it to. The process is ready.
    Resting {
        until: Timestamp,
    },
    /// Something is lost, for example memory, but requests are served. The process stays ready.
    Degraded(String),
    /// Requests cannot be served. The process is not ready.
    Down(String),
}

/// The conditions of all parts. Parts write to it through cheap clones.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<ReadinessState>>);

#[derive(Debug, Default)]
struct ReadinessState {
    draining: bool,
    parts: BTreeMap<&'static str, Part>,
}

#[derive(Debug)]
struct Part {
    condition: Condition,
    /// Since when it is in this condition. Another reason for the same condition does not change it.
    since: Timestamp,
}

impl Readiness {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the condition of a part. The reason is for operators: no credentials, no text of messages.
    pub fn set(&self, part: &'static str, condition: Condition) {
        self.with_state(|board| {
            let same = |known: &&Part| {
                std::mem::discriminant(&known.condition) == std::mem::discriminant(&condition)
            };
            let since = board.parts.get(part).filter(same).map(|known| known.since);
            let since = since.unwrap_or_else(Timestamp::now);
            board.parts.insert(part, Part { condition, since });
        });
    }

    /// The condition of a part, if it has reported one.
    #[must_use]
    pub fn condition(&self, part: &str) -> Option<Condition> {
        self.with_state(|board| board.parts.get(part).map(|known| known.condition.clone()))
    }

    /// From now on the process is not ready, whatever its parts report.
    pub fn drain(&self) {
        self.with_state(|board| board.draining = true);
    }

    /// Whether requests should be sent here, and all conditions as JSON.
    pub fn report(&self) -> (bool, String) {
        self.with_state(|board| {
            let mut parts = serde_json::Map::new();
            for (&name, part) in &board.parts {
                parts.insert(name.to_owned(), describe(part));
            }
            let status = board.status();
            (
                is_ready(status),
                json!({"status": status, "parts": parts}).to_string(),
            )
        })
    }

    /// The status alone, as JSON: for those who may not read the reasons.
    pub fn short_report(&self) -> String {
        self.with_state(|board| {
            let status = board.status();
            json!({"ready": is_ready(status), "status": status}).to_string()
        })
    }

    fn with_state<T>(&self, read: impl FnOnce(&mut ReadinessState) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether requests should be sent to a server of this status: without memory they still pass.
fn is_ready(status: &str) -> bool {
    matches!(status, "ready" | "degraded")
}

impl ReadinessState {
    fn status(&self) -> &'static str {
        let any =
            |test: fn(&Condition) -> bool| self.parts.values().any(|part| test(&part.condition));
        if self.draining {
            "draining"
        } else if any(|condition| matches!(condition, Condition::Down(_))) {
            "down"
        } else if any(|condition| matches!(condition, Condition::Degraded(_))) {
            "degraded"
        } else {
            "ready"
        }
    }
}

fn describe(part: &Part) -> serde_json::Value {
    let since = format!("{:.0}", part.since);
    match &part.condition {
        Condition::Up => json!({"status": "up"}),
        Condition::Resting { until } => {
            json!({"status": "resting", "since": since, "until": format!("{until:.0}")})
        }
        Condition::Degraded(error) => {
            json!({"status": "degraded", "since": since, "error": error})
        }
        Condition::Down(error) => json!({"status": "down", "since": since, "error": error}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_store_is_reported_without_taking_the_proxy_out_of_rotation() {
        let readiness = Readiness::new();
        assert_eq!(
            readiness.report(),
            (true, r#"{"status":"ready","parts":{}}"#.to_owned())
        );
        readiness.set("store", Condition::Degraded("disk full".to_owned()));
        let (ready, report) = readiness.report();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let part = &report["parts"]["store"];
        assert!(ready && report["status"] == "degraded");
        assert!(part["status"] == "degraded" && part["error"] == "disk full");
        let since = part["since"].as_str().unwrap().to_owned();
        assert!(since.parse::<Timestamp>().is_ok(), "{since}");
        readiness.set("store", Condition::Up);
        assert!(readiness.report().0);
        readiness.set("upstream", Condition::Down("no roots".to_owned()));
        assert!(!readiness.report().0);
    }

    #[test]
    fn a_draining_process_is_not_ready() {
        let readiness = Readiness::new();
        readiness.drain();
        assert_eq!(
            readiness.report(),
            (false, r#"{"status":"draining","parts":{}}"#.to_owned())
        );
    }
}
