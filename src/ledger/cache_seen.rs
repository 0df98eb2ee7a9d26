//! What the lines tell about the prompt cache of one model: whether it works, how often it forgets, how long it keeps a
//! prompt.

use super::line::{Line, Text};

/// The shortest lifetime that a provider publishes: see the rules of the caches in `docs/audit.md`.
const SHORTEST_LIFETIME_MS: u64 = 5 * 60 * 1_000;

/// The cache of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheSeen {
    /// It gave something back.
    pub hit: bool,
    /// Requests of which it gave back what it should.
    kept: u64,
    /// Requests of which it did not, for a reason that only the provider knows.
    forgotten: u64,
    /// The longest pause after which it gave back what it should.
    longest_pause_ms: u64,
}

impl CacheSeen {
    /// Adds a request.
    pub(super) fn add(&mut self, line: &Line<'_>) {
        self.hit |= line.cached_tokens.is_some_and(|cached| cached > 0);
        let is = |text: Option<&Text<'_>>, expected| text.map(Text::as_str) == Some(expected);
        if is(line.verdict_cause.as_ref(), "provider") {
            self.forgotten += 1;
        } else if is(line.verdict.as_ref(), "warm") {
            self.kept += 1;
            self.longest_pause_ms = self.longest_pause_ms.max(line.idle_ms.unwrap_or(0));
        }
    }

    /// How often it forgets, between 0 and 1: Laplace's rule of succession, since a few requests prove no frequency.
    pub(super) fn forgets(&self) -> f64 {
        (self.forgotten as f64 + 1.0) / ((self.kept + self.forgotten) as f64 + 2.0)
    }

    /// Whether it may have dropped a prompt after this pause.
    pub(super) fn may_drop_after(&self, idle_ms: u64) -> bool {
        idle_ms > self.longest_pause_ms.max(SHORTEST_LIFETIME_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_loss_rate_and_lifetime_are_measured_from_audit_lines() {
        let mut cache_seen = CacheSeen::default();
        let mut add = |fields: &str| {
            let text =
                format!(r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a",{fields}}}"#);
            cache_seen.add(&Line::parse(text.as_bytes()).unwrap().1);
            (
                cache_seen.hit,
                cache_seen.forgets(),
                cache_seen.may_drop_after(400_000),
            )
        };
        assert_eq!(
            add(r#""verdict":"cold_start","cached_tokens":0"#),
            (false, 0.5, true)
        );
        let warm = r#""verdict":"warm","cached_tokens":9,"idle_ms":"#;
        assert_eq!(add(&format!("{warm}1000")), (true, 1.0 / 3.0, true));
        let provider = r#""verdict":"miss","verdict_cause":"provider","idle_ms":900000"#;
        assert_eq!(add(provider), (true, 0.5, true));
        assert_eq!(add(&format!("{warm}400000")), (true, 0.4, false));
        assert!(!CacheSeen::default().may_drop_after(300_000));
    }
}
