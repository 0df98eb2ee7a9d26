//! Which lines count.

use super::line::Line;

/// What a line must have; `None` lets all through. Times are text in the form of audit lines.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The first time that counts.
    pub since: Option<String>,
    /// The first time that no longer counts.
    pub until: Option<String>,
    pub tenant: Option<String>,
    pub thread: Option<String>,
    /// The model that the line is charged to; see [`super::GroupBy::Model`].
    pub model: Option<String>,
}

impl Filter {
    /// Whether the line counts. `model` is the one that it is charged to.
    pub(super) fn matches(&self, line: &Line<'_>, model: &str) -> bool {
        let time = line.time.as_str();
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        self.since.as_deref().is_none_or(|since| time >= since)
            && self.until.as_deref().is_none_or(|until| time < until)
            && is(&self.tenant, line.tenant.as_str())
            && is(&self.thread, line.thread_name())
            && is(&self.model, model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_includes_its_start_time_and_excludes_its_end_time() {
        let text =
            r#"{"time":"2026-11-23T11:20:14.295Z","request_id":"a","tenant":"t","model":"m"}"#;
        let (_, line) = Line::parse(text.as_bytes()).unwrap();
        let counts = |since: &str, until: &str, tenant: &str, model: &str| {
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let filter = Filter {
                since: some(since),
                until: some(until),
                tenant: some(tenant),
                thread: None,
                model: some(model),
            };
            filter.matches(&line, line.model_name())
        };
        assert!(counts("", "", "", ""));
        assert!(counts("2026-11-23T11:20:14.295Z", "", "t", "m"));
        assert!(!counts("2026-11-23T11:20:14.296Z", "", "", ""));
        assert!(counts("", "2026-11-23T11:20:14.296Z", "", ""));
        assert!(!counts("", "2026-11-23T11:20:14.295Z", "", ""));
        assert!(!counts("", "", "u", "") && !counts("", "", "", "n"));
    }
}
