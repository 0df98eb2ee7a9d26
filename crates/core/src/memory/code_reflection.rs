//! Shortens a log without a model, so that it does not grow for ever while the Reflector fails.
//!
//! Leaves out whole observations: low priority first, then medium, then high or done; the oldest first
//! in each. Nothing is rephrased. One line at the top says how many were left out. Called by the
//! recorder when a log has reached its hard limit (INV-BOUND).

use super::log_entries::{self, LogEntry, Priority};

/// The `model` of a part that code wrote.
pub const MODEL: &str = "code";

/// The beginning of the line that says how much was left out. Each later shortening adds to its number.
const NOTE: &str = "* 🟡 [older observations left out: ";
const NOTE_END: &str = "]";

/// Shortens `log` by at least `excess` tokens, as far as there is something to leave out.
/// `count_tokens` counts one line and is called once for each.
///
/// The log has no system messages: they are never shortened ([`super::reflect::ReflectionSource`]).
pub fn shorten(log: &str, excess: u32, count_tokens: impl Fn(&str) -> u32) -> String {
    let (days, mut entries, omitted_before) = read_log(log, &count_tokens);
    let mut omitted = omitted_before;
    // The note has tokens too.
    let mut excess_left = u64::from(excess) + u64::from(count_tokens(&note(usize::MAX))) + 1;
    for priority in [Priority::Low, Priority::Medium, Priority::High] {
        entries.retain(|entry| {
            let drops = excess_left > 0 && entry.priority == priority;
            if drops {
                excess_left = excess_left.saturating_sub(entry.tokens);
                omitted += 1;
            }
            !drops
        });
    }
    write_log(&days, &entries, omitted)
}

fn note(count: usize) -> String {
    format!("{NOTE}{count}{NOTE_END}")
}

/// The days, the observations, and how many were left out earlier.
fn read_log<'a>(
    log: &'a str,
    count_tokens: &impl Fn(&str) -> u32,
) -> (Vec<&'a str>, Vec<LogEntry<'a>>, usize) {
    let (days, mut entries) = log_entries::read_log(log, count_tokens);
    let mut omitted = 0;
    entries.retain_mut(|entry| {
        if let Some(count) = parse_note(entry.lines[0]) {
            omitted += count;
            // Lines indented under the note belong to an observation whose first line was
            // left out.
            let note = entry.lines.remove(0);
            entry.tokens -= u64::from(count_tokens(note)) + 1;
        }
        !entry.lines.is_empty()
    });
    (days, entries, omitted)
}

fn parse_note(line: &str) -> Option<usize> {
    line.strip_prefix(NOTE)?
        .strip_suffix(NOTE_END)?
        .parse()
        .ok()
}

fn write_log(days: &[&str], entries: &[LogEntry<'_>], omitted: usize) -> String {
    let mut out = Vec::new();
    let note = note(omitted);
    let mut day = 0;
    let mut note_written = omitted == 0;
    for entry in entries {
        if entry.day != day {
            day = entry.day;
            out.push(days[day]);
        }
        // Under the first remaining day, so that the log still begins with a date.
        if !note_written {
            out.push(&note);
            note_written = true;
        }
        out.extend(&entry.lines);
    }
    if !note_written {
        out.push(&note);
    }
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::log_entries::priority;
    use super::*;
    use insta::assert_snapshot;
    use proptest::prelude::*;

    fn words(line: &str) -> u32 {
        u32::try_from(line.split_whitespace().count()).expect("few")
    }

    fn weight(log: &str) -> u32 {
        log.lines().map(|line| words(line) + 1).sum()
    }

    const LOG: &str = "Date: Mar 3, 2026\n* 🟢 (10:00) one small thing\n* 🔴 (10:01) two great things\n  * -> with a detail\n* 🟡 (10:02) three\nDate: Mar 4, 2026\n* 🟢 (10:00) four\n* ✅ (10:01) five done\n* 🟡 (10:02) six has 🔴 in it\n";

    #[test]
    fn code_removes_low_priorities_before_medium_and_older_lines_first() {
        assert_snapshot!(shorten(LOG, 1, words), @"
        Date: Mar 3, 2026
        * 🟡 [older observations left out: 2]
        * 🔴 (10:01) two great things
          * -> with a detail
        * 🟡 (10:02) three
        Date: Mar 4, 2026
        * ✅ (10:01) five done
        * 🟡 (10:02) six has 🔴 in it
        ");
        assert_snapshot!(shorten(LOG, 14, words), @"
        Date: Mar 3, 2026
        * 🟡 [older observations left out: 4]
        * 🔴 (10:01) two great things
          * -> with a detail
        Date: Mar 4, 2026
        * ✅ (10:01) five done
        ");
        assert_snapshot!(shorten(LOG, 25, words), @"
        Date: Mar 4, 2026
        * 🟡 [older observations left out: 5]
        * ✅ (10:01) five done
        ");
        assert_eq!(shorten(LOG, 1_000, words), note(6));
    }

    #[test]
    fn shortening_again_adds_to_the_count_in_the_note() {
        let once = shorten(LOG, 1, words);
        let twice = shorten(&once, 14, words);
        assert!(twice.contains("left out: 5]"), "{twice}");
        assert_eq!(twice.matches(NOTE).count(), 1);
    }

    proptest! {
        /// The excess is removed, or only the note is left. The rest is from the log, in order,
        /// and no line is removed while one of a lower priority stays.
        #[test]
        fn code_removes_the_excess_and_low_priorities_first(
            lines in proptest::collection::vec("(Date: Mar [1-5], 2026|\\* (🔴|🟡|🟢|✅) [a-z ]{0,30}|  \\* -> [a-z ]{1,20})", 0..40),
            excess in 0_u32..300,
        ) {
            let log = lines.join("\n");
            let short = shorten(&log, excess, words);
            let kept: Vec<&str> = short.lines().filter(|line| parse_note(line).is_none() && !line.starts_with("Date:")).collect();
            prop_assert!(kept.is_empty() || weight(&short) <= weight(&log).saturating_sub(excess), "{log}\n--\n{short}");
            let mut rest = log.lines();
            for line in &kept {
                prop_assert!(rest.any(|other| other == *line), "{line}");
            }
            let count = |text: &str, wanted: Priority| text.lines().filter(|line| line.starts_with("* ") && priority(line) == wanted && parse_note(line).is_none()).count();
            for (lower, higher) in [
                (Priority::Low, Priority::Medium),
                (Priority::Low, Priority::High),
                (Priority::Medium, Priority::High),
            ] {
                if count(&short, higher) < count(&log, higher) {
                    prop_assert_eq!(count(&short, lower), 0, "{:?} before {:?}: {}", higher, lower, log);
                }
            }
        }
    }
}
