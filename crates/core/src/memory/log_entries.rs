//! Reads a log as single observations under their days, so that code can leave some of them out.
//!
//! An observation is a line with the lines indented under it, and stays or goes as a whole. Decides
//! nothing and rephrases nothing. Used by [`super::code_reflection`] and [`super::peer_memory`].

/// The priority of an observation, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    Low,
    Medium,
    High,
}

/// One observation.
#[derive(Debug)]
pub(super) struct LogEntry<'a> {
    /// The index of its day.
    pub(super) day: usize,
    pub(super) priority: Priority,
    pub(super) lines: Vec<&'a str>,
    pub(super) tokens: u64,
}

/// The days (headers; the first one is empty) and the observations of `log`, in order. `count_tokens`
/// counts one line and is called once for each.
pub(super) fn read_log<'a>(
    log: &'a str,
    count_tokens: impl Fn(&str) -> u32,
) -> (Vec<&'a str>, Vec<LogEntry<'a>>) {
    let mut days = vec![""];
    let mut entries: Vec<LogEntry<'a>> = Vec::new();
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        if line.starts_with("Date:") {
            if days.last() != Some(&line) {
                days.push(line);
            }
            continue;
        }
        // One more token for the line break.
        let tokens = u64::from(count_tokens(line)) + 1;
        let day = days.len() - 1;
        match entries.last_mut() {
            Some(entry) if line.starts_with([' ', '\t']) && entry.day == day => {
                entry.lines.push(line);
                entry.tokens += tokens;
            }
            _ => entries.push(LogEntry {
                day,
                priority: priority(line),
                lines: vec![line],
                tokens,
            }),
        }
    }
    (days, entries)
}

pub(super) fn priority(line: &str) -> Priority {
    // The mark stands near the beginning; further on, it may be part of the text.
    let beginning = super::prompt::first_chars(line, 12);
    if beginning.contains(['🔴', '✅']) {
        Priority::High
    } else if beginning.contains('🟢') {
        Priority::Low
    } else {
        Priority::Medium
    }
}
