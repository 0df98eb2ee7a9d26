//! Selects the part of the log that the Observer is shown before a range, so that it does not repeat
//! it.

use std::collections::BTreeSet;

use crate::memory::system_messages;

/// The end of `observations` within `budget` tokens, under its dates. Before it, the lines of high priority
/// and of completed work, newest first as far as they fit, but never more of them than lines of the end.
/// Notes count what is left out. System messages are skipped: code copies them, so the Observer has nothing
/// to add.
///
/// `count` counts tokens; it is called at most twice for a line.
pub fn earlier(observations: &str, budget: usize, count: impl Fn(&str) -> usize) -> String {
    let (observations, _) = system_messages::split_messages(observations);
    let lines: Vec<&str> = observations
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    if budget == 0 {
        return String::new();
    }
    let line_cost = |line: &str| count(line) + 1;
    let total: usize = lines.iter().map(|line| line_cost(line)).sum();
    if total <= budget {
        return lines.join("\n");
    }
    // A third of the budget is for important lines. What they do not use goes to the end of the log,
    // which is taken first up to two thirds and then again.
    let mut used_tokens = 0;
    let mut kept_lines = BTreeSet::new();
    let take_end = |kept_lines: &mut BTreeSet<usize>, used_tokens: &mut usize, limit: usize| {
        for (index, line) in lines.iter().enumerate().rev() {
            if kept_lines.contains(&index) {
                continue;
            }
            if *used_tokens + line_cost(line) > limit {
                break;
            }
            *used_tokens += line_cost(line);
            kept_lines.insert(index);
        }
    };
    take_end(&mut kept_lines, &mut used_tokens, budget - budget / 3);
    let start = kept_lines.first().copied().unwrap_or(lines.len());
    let max_important = kept_lines.len();
    let important = (0..start).rev().filter(|index| is_important(lines[*index]));
    for index in important.take(max_important) {
        if used_tokens + line_cost(lines[index]) > budget {
            break;
        }
        used_tokens += line_cost(lines[index]);
        kept_lines.insert(index);
    }
    take_end(&mut kept_lines, &mut used_tokens, budget);
    join_kept(&lines, &kept_lines)
}

fn is_important(line: &str) -> bool {
    let mark = line
        .trim_start()
        .trim_start_matches(['*', '-'])
        .trim_start();
    mark.starts_with('🔴') || mark.starts_with('✅')
}

fn is_date(line: &str) -> bool {
    line.starts_with("Date:")
}

/// The kept lines in order, each under its date. Each run of other lines becomes one note.
fn join_kept(lines: &[&str], kept_lines: &BTreeSet<usize>) -> String {
    let mut out: Vec<String> = Vec::new();
    let (mut hidden, mut day, mut last_day) = (Vec::new(), None, None);
    let note = |hidden: &mut Vec<&str>, out: &mut Vec<String>| {
        match hidden.as_slice() {
            [] => {}
            // A note for one line would be as long as the line.
            [line] => out.push((*line).to_owned()),
            several => out.push(format!("[{} observations left out here]", several.len())),
        }
        hidden.clear();
    };
    for (index, line) in lines.iter().enumerate() {
        if is_date(line) {
            day = Some(*line);
            continue;
        }
        if !kept_lines.contains(&index) {
            hidden.push(*line);
            continue;
        }
        note(&mut hidden, &mut out);
        if day != last_day {
            out.extend(day.map(str::to_owned));
            last_day = day;
        }
        out.push((*line).to_owned());
    }
    note(&mut hidden, &mut out);
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "Date: Mar 3, 2026
* 🔴 (10:00) User is called Ada
* 🟡 one
* 🟢 two
* ✅ (11:00) import done

Date: Mar 4, 2026
* 🟡 three
* 🟢 four
* 🟡 five
";

    fn words(line: &str) -> usize {
        line.split_whitespace().count()
    }

    #[test]
    fn all_of_it_or_nothing() {
        let whole = LOG.replace("\n\n", "\n");
        assert_eq!(earlier(LOG, 1_000, words), whole.trim_end());
        assert_eq!(earlier(LOG, 0, words), "");
        assert_eq!(earlier("", 0, words), "");
    }

    #[test]
    fn the_end_stays_and_of_the_rest_what_matters() {
        assert_eq!(
            earlier(LOG, 32, words),
            "Date: Mar 3, 2026\n* 🔴 (10:00) User is called Ada\n[2 observations left out here]\n* ✅ (11:00) import done\nDate: Mar 4, 2026\n* 🟡 three\n* 🟢 four\n* 🟡 five"
        );
    }

    #[test]
    fn the_end_alone_where_nothing_before_it_matters() {
        let log: String = (0..100).map(|n| format!("* 🟡 line {n}\n")).collect();
        let shown = earlier(&log, 50, words);
        assert_eq!(shown.matches("left out here").count(), 1);
        assert!(
            shown.starts_with("[90 observations left out here]\n* 🟡 line 90\n"),
            "{shown}"
        );
        assert!(shown.ends_with("* 🟡 line 99"));
    }

    #[test]
    fn what_matters_never_outweighs_the_end() {
        let log: String = (0..100).map(|n| format!("* 🔴 line {n}\n")).collect();
        let shown = earlier(&format!("{log}* 🟡 {}\n", "long ".repeat(30)), 60, words);
        let weighty = shown.matches('🔴').count();
        assert!(weighty <= 60 / 5, "{shown}");
        let used: usize = shown
            .lines()
            .filter(|l| !l.starts_with('['))
            .map(|l| words(l) + 1)
            .sum();
        assert!(used <= 60);
    }
}
