//! Puts lost lines of a log back into the text that condenses it, under their days.
//!
//! Changes no other line. Called by the jobs that reflect, with the lines that [`super::check`] found
//! damaged.

use std::collections::{BTreeSet, HashMap};

use super::line_marks::minute_of_day;

/// A day of a log: its header as written (empty before the first header) and its lines.
#[derive(Debug, Default)]
struct LogDay<'a> {
    header: &'a str,
    lines: Vec<&'a str>,
}

/// A line to be restored, with the minute of the day of its observation.
type LostLine<'a> = (&'a str, Option<u16>);

fn split_days(log: &str) -> Vec<LogDay<'_>> {
    let mut days = vec![LogDay::default()];
    for line in log.lines() {
        if line.starts_with("Date:") {
            days.push(LogDay {
                header: line.trim_end(),
                lines: Vec::new(),
            });
        } else if let Some(day) = days.last_mut() {
            day.lines.push(line);
        }
    }
    days
}

/// `condensed` with the lines of `log` at these indices (from 0) restored under their days. A line with
/// a time goes before the first later one, any other to the end of its day. A day that is missing is
/// restored in its place.
pub fn restore_lines(log: &str, condensed: &str, lost: &BTreeSet<usize>) -> String {
    let mut order: HashMap<&str, usize> = HashMap::from([("", 0)]);
    let mut restored: Vec<(&str, Vec<LostLine<'_>>)> = vec![("", Vec::new())];
    let (mut at, mut time) = (0, None);
    for (index, line) in log.lines().enumerate() {
        if line.starts_with("Date:") {
            let header = line.trim_end();
            at = *order.entry(header).or_insert_with(|| {
                restored.push((header, Vec::new()));
                restored.len() - 1
            });
            time = None;
            continue;
        }
        if !is_detail(line) {
            time = minute_of_day(line);
        }
        if lost.contains(&index) {
            restored[at].1.push((line, time));
        }
    }
    let mut out = split_days(condensed);
    let at: HashMap<&str, usize> = out
        .iter()
        .enumerate()
        .map(|(index, day)| (day.header, index))
        .collect();
    // Missing days, each before the first day that came after it. Ranks only grow, so each search
    // continues where the last one ended.
    let mut missing_days: Vec<(usize, LogDay<'_>)> = Vec::new();
    let mut next = 0;
    for (rank, (header, lines)) in restored.into_iter().enumerate() {
        if lines.is_empty() {
            continue;
        }
        if let Some(index) = at.get(header) {
            for lost_line in lines {
                out[*index].insert_line(lost_line);
            }
            continue;
        }
        let earlier = |day: &LogDay<'_>| order.get(day.header).is_none_or(|other| *other < rank);
        while out.get(next).is_some_and(earlier) {
            next += 1;
        }
        let lines = lines.into_iter().map(|(line, _)| line).collect();
        missing_days.push((next, LogDay { header, lines }));
    }
    let mut text = Vec::new();
    let mut missing_days = missing_days.iter().peekable();
    for index in 0..=out.len() {
        while let Some((_, day)) = missing_days.next_if(|(before, _)| *before == index) {
            day.write(&mut text);
        }
        if let Some(day) = out.get(index) {
            day.write(&mut text);
        }
    }
    text.join("\n")
}

/// Whether a line belongs to the observation above it.
fn is_detail(line: &str) -> bool {
    line.starts_with([' ', '\t'])
}

impl<'a> LogDay<'a> {
    fn insert_line(&mut self, (line, time): LostLine<'a>) {
        let later = |other: &&str| !is_detail(other) && minute_of_day(other) > time;
        let at = time.and_then(|_| self.lines.iter().position(later));
        self.lines.insert(at.unwrap_or(self.lines.len()), line);
    }

    fn write(&self, text: &mut Vec<&'a str>) {
        if !self.header.is_empty() {
            text.push(self.header);
        }
        text.extend(&self.lines);
    }
}

/// Those of the `lost` lines of `log` that fit into `max_tokens` together, newest first: if there is no
/// room for all, older lines are left out. `count_tokens` counts one line.
pub fn newest_that_fit(
    log: &str,
    lost: &BTreeSet<usize>,
    max_tokens: u32,
    count_tokens: impl Fn(&str) -> u32,
) -> BTreeSet<usize> {
    let lines: Vec<&str> = log.lines().collect();
    let mut left = u64::from(max_tokens);
    let mut fit = BTreeSet::new();
    for index in lost.iter().rev() {
        let Some(line) = lines.get(*index) else {
            continue;
        };
        // One more token for the line break.
        let tokens = u64::from(count_tokens(line)) + 1;
        if tokens <= left {
            left -= tokens;
            fit.insert(*index);
        }
    }
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "Date: Mar 3, 2026\n* 🔴 one\n* 🟡 two\nDate: Mar 4, 2026\n* 🔴 three\nDate: Mar 5, 2026\n* ✅ four\nDate: Mar 4, 2026\n* 🔴 five";

    fn restored_log(condensed: &str, lost: &[usize]) -> String {
        restore_lines(LOG, condensed, &lost.iter().copied().collect())
    }

    #[test]
    fn restored_lines_stand_under_their_days() {
        assert_eq!(
            restored_log(
                "Date: Mar 3, 2026\n* 🟡 two\nDate: Mar 5, 2026\n* x",
                &[1, 6]
            ),
            "Date: Mar 3, 2026\n* 🟡 two\n* 🔴 one\nDate: Mar 5, 2026\n* x\n* ✅ four"
        );
        // Mar 4 is missing: it is restored between its neighbours, with all its lines.
        assert_eq!(
            restored_log(
                "Date: Mar 3, 2026\n* 🟡 two\nDate: Mar 5, 2026\n* x",
                &[4, 8]
            ),
            "Date: Mar 3, 2026\n* 🟡 two\nDate: Mar 4, 2026\n* 🔴 three\n* 🔴 five\nDate: Mar 5, 2026\n* x"
        );
        assert_eq!(
            restored_log("* all", &[6]),
            "* all\nDate: Mar 5, 2026\n* ✅ four"
        );
        assert_eq!(restored_log("* all", &[]), "* all");
        assert_eq!(restored_log("", &[4]), "Date: Mar 4, 2026\n* 🔴 three");
    }

    #[test]
    fn restored_lines_with_a_time_are_sorted_by_it() {
        let log = "Date: Mar 3, 2026\n* 🔴 (08:30) one\n  * -> with a detail\n* 🔴 (9:05) two\n* 🔴 no time\n\
                   * 🔴 (14:00) three\n* 🔴 (14:00) four";
        let all: BTreeSet<usize> = (1..=6).collect();
        assert_eq!(
            restore_lines(
                log,
                "Date: Mar 3, 2026\n* 🟡 (09:05) x\n  * -> 23:00\n* 🟡 y\n* 🟡 (10:00) z",
                &all
            ),
            "Date: Mar 3, 2026\n* 🔴 (08:30) one\n  * -> with a detail\n* 🟡 (09:05) x\n  * -> 23:00\n* 🟡 y\n\
             * 🔴 (9:05) two\n* 🟡 (10:00) z\n* 🔴 no time\n* 🔴 (14:00) three\n* 🔴 (14:00) four"
        );
        // A detail alone goes behind its observation.
        assert_eq!(
            restore_lines(
                log,
                "Date: Mar 3, 2026\n* (08:30) one\n* (9:05) two",
                &BTreeSet::from([2])
            ),
            "Date: Mar 3, 2026\n* (08:30) one\n  * -> with a detail\n* (9:05) two"
        );
    }

    #[test]
    fn the_newest_lost_lines_that_fit_are_restored() {
        let lost = BTreeSet::from([1, 4, 6, 8]);
        let fit = |room| {
            let words = |line: &str| u32::try_from(line.split_whitespace().count()).expect("few");
            newest_that_fit(LOG, &lost, room, words)
                .into_iter()
                .collect::<Vec<_>>()
        };
        // Each line has four tokens.
        assert_eq!(fit(3), [] as [usize; 0]);
        assert_eq!(fit(4), [8]);
        assert_eq!(fit(11), [6, 8]);
        assert_eq!(fit(16), [1, 4, 6, 8]);
        // A line that is too large is skipped.
        let log = "* 🔴 one\n* 🔴 two\n* 🔴 a very long line indeed";
        let weigh = |line: &str| u32::try_from(line.len()).expect("few");
        let all = BTreeSet::from([0, 1, 2]);
        assert_eq!(newest_that_fit(log, &all, 21, weigh), BTreeSet::from([1]));
    }
}
