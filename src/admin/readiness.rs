//! The condition of the process's parts, as they report it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

/// The condition of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Up,
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
    parts: BTreeMap<&'static str, Condition>,
}

impl Readiness {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the condition of a part. The reason is for operators: no credentials, no text of messages.
    pub fn set(&self, part: &'static str, condition: Condition) {
        self.with_state(|board| board.parts.insert(part, condition));
    }

    /// From now on the process is not ready, whatever its parts report.
    pub fn drain(&self) {
        self.with_state(|board| board.draining = true);
    }

    /// Whether requests should be sent here, and all conditions as JSON.
    pub fn report(&self) -> (bool, String) {
        self.with_state(|board| {
            let mut parts = serde_json::Map::new();
            for (&part, condition) in &board.parts {
                parts.insert(part.to_owned(), describe(condition));
            }
            let status = board.status();
            let ready = matches!(status, "ready" | "degraded");
            (ready, json!({"status": status, "parts": parts}).to_string())
        })
    }

    fn with_state<T>(&self, read: impl FnOnce(&mut ReadinessState) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ReadinessState {
    fn status(&self) -> &'static str {
        let any = |test: fn(&Condition) -> bool| self.parts.values().any(test);
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

fn describe(condition: &Condition) -> serde_json::Value {
    match condition {
        Condition::Up => json!({"status": "up"}),
        Condition::Degraded(reason) => json!({"status": "degraded", "reason": reason}),
        Condition::Down(reason) => json!({"status": "down", "reason": reason}),
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
        let report =
            r#"{"status":"degraded","parts":{"store":{"status":"degraded","reason":"disk full"}}}"#;
        assert_eq!(readiness.report(), (true, report.to_owned()));
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
