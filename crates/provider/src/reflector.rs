//! A scripted Reflector: condenses the observations in its prompt to a share of their size.
//!
//! Low priorities are left out first, oldest first; high and done lines stay, shortened at worst. A reminder
//! of lost lines makes it keep these lines unchanged. Like the Observer, it invents nothing. A [`Script`],
//! called by [`super::chat`].

use super::observer::{ObserverStyle, reply, shorten};
use super::script::{Reply, Script, ScriptInput};

/// The scripted Reflector.
#[derive(Clone, Copy, Debug)]
pub struct Reflector {
    /// How it works.
    pub style: ObserverStyle,
    /// How many percent of the bytes it keeps.
    pub keep_percent: usize,
}

impl Default for Reflector {
    fn default() -> Self {
        Self {
            style: ObserverStyle::Faithful,
            keep_percent: 55,
        }
    }
}

impl Script for Reflector {
    fn reply(&self, input: &ScriptInput<'_>) -> Reply {
        let user_text = input.texts_by_role("user").join("\n");
        let (observations, missing_lines) = split_missing(&user_text);
        let condensed = condense(&observations, self.keep_percent, &missing_lines);
        let style = match self.style {
            // A reminder of lost lines makes it keep them.
            ObserverStyle::Forgetful if !missing_lines.is_empty() => ObserverStyle::Faithful,
            manner => manner,
        };
        reply(style, &condensed, "")
    }
}

/// Separates the log from the list of missing items, and returns the lines that the list quotes, each
/// by its beginning.
fn split_missing(user_text: &str) -> (String, Vec<&str>) {
    let mut log = Vec::new();
    let mut quoted = Vec::new();
    let mut inside = false;
    for line in user_text.lines() {
        if line.starts_with("<missing-") || line.starts_with("</missing-") {
            inside = !inside;
        } else if !inside {
            log.push(line);
        } else if let Some(line) = line.trim_start().strip_prefix("of: ") {
            quoted.push(line);
        }
    }
    (log.join("\n"), quoted)
}

/// The priorities, in the order in which lines may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    Low,
    Medium,
    High,
}

/// One observation with the lines indented under it.
struct Block<'a> {
    /// The date header that it stands under.
    group: usize,
    priority: Priority,
    lines: Vec<&'a str>,
    /// Whether it must not be shortened.
    keep_whole: bool,
}

impl Block<'_> {
    fn bytes(&self) -> usize {
        self.lines.iter().map(|line| line.len() + 1).sum()
    }
}

/// A log with fewer bytes of observations is hardly shortened.
const SMALL_LOG_BYTES: usize = 600;

fn condense(observations: &str, keep_percent: usize, keep: &[&str]) -> Vec<String> {
    let (dates, mut blocks) = read(observations);
    for block in &mut blocks {
        let first = block.lines.first().map_or("", |line| line.trim());
        block.keep_whole = keep.iter().any(|line| first.starts_with(line));
    }
    let mut unique = std::collections::HashSet::new();
    blocks.retain(|block| unique.insert((block.group, block.lines.clone())));

    let total_bytes: usize = blocks.iter().map(Block::bytes).sum();
    let target = total_bytes * keep_percent / 100;
    let mut remaining_bytes = total_bytes;
    for priority in [Priority::Low, Priority::Medium] {
        blocks.retain(|block| {
            let is_dropped =
                remaining_bytes > target && block.priority == priority && !block.keep_whole;
            remaining_bytes -= if is_dropped { block.bytes() } else { 0 };
            !is_dropped
        });
    }
    // High and done lines stay, but are shortened step by step until they fit. A log of a few lines
    // is not shortened, because nothing would be left to remember.
    if remaining_bytes <= target {
        return write(&dates, &blocks, usize::MAX);
    }
    let widths: &[usize] = if total_bytes < SMALL_LOG_BYTES {
        &[96]
    } else {
        &[96, 84, 72, 64, 56, 50, 44, 36]
    };
    widths
        .iter()
        .map(|width| write(&dates, &blocks, *width))
        .find(|lines| lines.iter().map(|line| line.len() + 1).sum::<usize>() <= target)
        .unwrap_or_else(|| write(&dates, &blocks, *widths.last().unwrap_or(&96)))
}

fn read(observations: &str) -> (Vec<&str>, Vec<Block<'_>>) {
    // Observations before the first header have no date.
    let mut dates = vec![""];
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for line in observations.lines() {
        let text = line.trim_start();
        let marker = text.starts_with("* ") || text.starts_with("- ");
        if text.starts_with("Date:") {
            if dates.last() != Some(&text) {
                dates.push(text);
            }
        } else if marker && text.len() == line.len() {
            blocks.push(Block {
                group: dates.len() - 1,
                priority: priority(text),
                lines: vec![line],
                keep_whole: false,
            });
        } else if (marker || text.starts_with("->"))
            && let Some(block) = blocks.last_mut()
        {
            block.lines.push(line);
        }
    }
    (dates, blocks)
}

fn priority(line: &str) -> Priority {
    if line.contains('🔴') || line.contains('✅') {
        Priority::High
    } else if line.contains('🟢') {
        Priority::Low
    } else {
        Priority::Medium
    }
}

/// A finite `width` keeps the beginning of each observation, and of a long log not all observations.
fn write(dates: &[&str], blocks: &[Block<'_>], width: usize) -> Vec<String> {
    let mut out = Vec::new();
    let mut group = 0;
    for block in blocks {
        if block.group != group {
            group = block.group;
            out.push(dates[group].to_owned());
        }
        if width == usize::MAX || block.keep_whole {
            out.extend(block.lines.iter().map(|line| (*line).to_owned()));
        } else {
            out.extend(block.lines.first().map(|line| shorten(line, width)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observations(lines: usize) -> String {
        let mut shown = String::from("Condense:\nDate: Mar 4, 2026\n");
        for line in 0..lines {
            let mark = ["🟢", "🔴", "🟡"][line % 3];
            shown.push_str(&format!(
                "* {mark} (14:{:02}) fact number {line}\n  -> detail {line}\n",
                line % 60
            ));
        }
        shown + "Date: Mar 5, 2026\n* ✅ (09:00) everything was booked\n"
    }

    #[test]
    fn the_reflector_drops_low_priorities_first_and_keeps_to_the_size() {
        let shown = observations(90);
        let condensed = condense(&shown, 55, &[]);
        let size: usize = condensed.iter().map(|line| line.len() + 1).sum();
        assert!(
            (45..=62).contains(&(size * 100 / shown.len())),
            "{size} of {}",
            shown.len()
        );
        assert_eq!(
            condensed.iter().filter(|line| line.contains('🔴')).count(),
            30
        );
        assert!(condensed.iter().all(|line| !line.contains('🟢')));
        let yellow: Vec<&String> = condensed
            .iter()
            .filter(|line| line.contains('🟡'))
            .collect();
        assert!(
            yellow.len() < 30 && yellow.last().unwrap().ends_with("number 89"),
            "the oldest went"
        );
        assert_eq!(condensed[0], "Date: Mar 4, 2026");
        assert_eq!(
            condensed.last().unwrap(),
            "* ✅ (09:00) everything was booked"
        );
    }

    #[test]
    fn lines_of_high_priority_are_shortened_and_not_dropped() {
        let line = format!("* 🔴 (14:05) {}", "important words ".repeat(20));
        let shown: Vec<String> = (0..20).map(|n| format!("{line}{n}\n  -> detail")).collect();
        let condensed = condense(&shown.join("\n"), 55, &[]);
        assert_eq!(condensed.len(), 20);
        assert!(condensed.iter().all(|line| line.len() < 110));
    }

    #[test]
    fn lines_that_the_prompt_lists_as_missing_stay_whole() {
        let long = format!(
            "* 🔴 (14:05) {} number 48,211",
            "important words ".repeat(20)
        );
        let mut lines: Vec<String> = (0..20).map(|n| format!("{long} {n}")).collect();
        lines.push(format!(
            "<missing-x>\n48,211\n    of: {}\n</missing-x>",
            lines[3]
        ));
        let shown = lines.join("\n");
        let (log, quoted) = split_missing(&shown);
        assert!(!log.contains("missing") && quoted == [lines[3].as_str()]);
        let condensed = condense(&log, 55, &quoted);
        assert!(condensed.contains(&lines[3]) && !condensed.contains(&lines[4]));
    }
}
