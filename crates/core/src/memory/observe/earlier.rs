//! Selects the part of the log that the Observer is shown before a range, so that it does not repeat
//! it.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use crate::memory::system_messages;

/// The end of `observations` within `budget` tokens, under its dates. Before it, the lines of high priority
/// and of completed work, newest first as far as they fit, but never more of them than lines of the end.
/// Notes count what is left out. System messages are skipped: code copies them, so the Observer has nothing
/// to add.
///
/// `count` counts tokens, which is most of the work. It is called at most once for a line, and not for old lines that
/// cannot fit.
pub fn earlier(observations: &str, budget: usize, count: impl Fn(&str) -> usize) -> String {
    let (observations, _) = system_messages::split_messages(observations);
    let lines: Vec<&str> = observations
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    if budget == 0 {
        return String::new();
    }
    let costs: Vec<OnceCell<usize>> = lines.iter().map(|_| OnceCell::new()).collect();
    let line_cost = |index: usize| *costs[index].get_or_init(|| count(lines[index]) + 1);
    let mut total = 0;
    // From the end, because its lines are needed in any case.
    let all_fit = (0..lines.len()).rev().all(|index| {
        total += line_cost(index);
        total <= budget
    });
    if all_fit {
        return lines.join("\n");
    }
    // A third of the budget is for important lines. What they do not use goes to the end of the log,
    // which is taken first up to two thirds and then again.
    let mut used_tokens = 0;
    let mut kept_lines = BTreeSet::new();
    let take_end = |kept_lines: &mut BTreeSet<usize>, used_tokens: &mut usize, limit: usize| {
        for index in (0..lines.len()).rev() {
            if kept_lines.contains(&index) {
                continue;
            }
            if *used_tokens + line_cost(index) > limit {
                break;
            }
            *used_tokens += line_cost(index);
            kept_lines.insert(index);
        }
    };
    take_end(&mut kept_lines, &mut used_tokens, budget - budget / 3);
    let start = kept_lines.first().copied().unwrap_or(lines.len());
    let max_important = kept_lines.len();
    let important = (0..start).rev().filter(|index| is_important(lines[*index]));
    for index in important.take(max_important) {
        if used_tokens + line_cost(index) > budget {
            break;
        }
        used_tokens += line_cost(index);
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
    use std::cell::RefCell;

    use proptest::prelude::*;

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
    fn earlier_observations_are_complete_if_they_fit_and_empty_without_budget() {
        let whole = LOG.replace("\n\n", "\n");
        assert_eq!(earlier(LOG, 1_000, words), whole.trim_end());
        assert_eq!(earlier(LOG, 0, words), "");
        assert_eq!(earlier("", 0, words), "");
    }

    #[test]
    fn the_newest_lines_and_older_important_lines_stay() {
        assert_eq!(
            earlier(LOG, 32, words),
            "Date: Mar 3, 2026\n* 🔴 (10:00) User is called Ada\n[2 observations left out here]\n* ✅ (11:00) import done\nDate: Mar 4, 2026\n* 🟡 three\n* 🟢 four\n* 🟡 five"
        );
    }

    #[test]
    fn only_the_newest_lines_stay_if_no_older_line_is_important() {
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
    fn important_older_lines_use_only_a_part_of_the_budget() {
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

    /// The same, plainly: every line is counted whenever its cost is needed.
    fn plainly(log: &str, budget: usize) -> String {
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let cost = |index: usize| words(lines[index]) + 1;
        if budget == 0 || (0..lines.len()).map(cost).sum::<usize>() <= budget {
            return if budget == 0 {
                String::new()
            } else {
                lines.join("\n")
            };
        }
        let (mut used, mut kept) = (0, BTreeSet::new());
        for limit in [budget - budget / 3, budget] {
            for index in (0..lines.len()).rev() {
                if kept.contains(&index) {
                    continue;
                }
                if used + cost(index) > limit {
                    break;
                }
                used += cost(index);
                kept.insert(index);
            }
            if limit < budget {
                let start = kept.first().copied().unwrap_or(lines.len());
                let important = (0..start).rev().filter(|index| is_important(lines[*index]));
                for index in important.take(kept.len()) {
                    if used + cost(index) > budget {
                        break;
                    }
                    used += cost(index);
                    kept.insert(index);
                }
            }
        }
        join_kept(&lines, &kept)
    }

    proptest! {
        #[test]
        fn no_line_is_counted_twice_and_the_selection_equals_a_simple_algorithm(
            kinds in proptest::collection::vec((0..5_usize, 0..9_usize), 0..60),
            budget in 0..200_usize,
        ) {
            let begin = ["Date: Mar 3, 2026", "* 🔴 a", "* ✅ b", "* 🟡 c", ""];
            let lines = kinds.iter().enumerate();
            // Each line is different, so that its counts can be told apart.
            let log: Vec<String> = lines
                .map(|(index, (kind, more))| format!("{} {index}{}", begin[*kind], " word".repeat(*more)))
                .collect();
            let log = log.join("\n");
            let counted = RefCell::new(BTreeSet::new());
            let shown = earlier(&log, budget, |line| {
                assert!(counted.borrow_mut().insert(line.to_owned()), "{line}");
                words(line)
            });
            prop_assert_eq!(shown, plainly(&log, budget));
        }
    }

    #[test]
    fn old_lines_that_cannot_fit_are_not_counted() {
        let log: String = (0..10_000).map(|n| format!("* 🟡 line {n}\n")).collect();
        let counted = RefCell::new(0);
        earlier(&log, 50, |line| {
            *counted.borrow_mut() += 1;
            words(line)
        });
        assert!(*counted.borrow() <= 11, "{}", counted.borrow());
    }
}
