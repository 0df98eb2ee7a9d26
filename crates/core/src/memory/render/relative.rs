//! Relates the dates of a log to the day on which it was put into the block.
//!
//! ```text
//! [as of Mar 20, 2026]
//! Date: Mar 4, 2026 (2 weeks before)
//! * 🔴 (14:05) User flies to Oslo. (meaning Mar 13, 2026 - 1 week before: the day has passed, whether it happened is not known)
//! [11 days later]
//! Date: Mar 15, 2026 (5 days before)
//! ```
//! The text stays true for ever, because it counts from a named day. "5 days ago" would be false tomorrow,
//! and to rewrite it would cost the prompt cache of everything behind it. Each part keeps the day of the
//! first block it stood in. Looks only backwards, so adding a part changes nothing before it. Gets only
//! lines of observations, never a copied system message.

use jiff::civil::Date;

use crate::memory::dates;

/// The beginning of the line that names the day.
const AS_OF: &str = "[as of ";

/// The last dates in the parts before.
#[derive(Debug, Default)]
pub(super) struct PreviousDates {
    as_of: Option<Date>,
    header: Option<String>,
    /// The day of the header, or the last day that it may mean.
    day: Option<Date>,
    /// Whether it is certainly that day.
    exact: bool,
}

/// `observed` with the longest relations that it can ever get: sent for the first time on the last of
/// all days, behind a part of the first.
pub(super) fn longest_relations(observed: &str) -> String {
    let mut previous = PreviousDates {
        day: Some(Date::MIN),
        exact: true,
        ..PreviousDates::default()
    };
    previous.relate(observed, Date::MAX)
}

impl PreviousDates {
    /// `observed` with its dates related to `as_of`.
    pub(super) fn relate(&mut self, observed: &str, as_of: Date) -> String {
        let mut out: Vec<String> = Vec::new();
        let mut lines = observed.lines().peekable();
        if self.as_of.replace(as_of) == Some(as_of) {
            // A long day is not named again with every chunk.
            lines.next_if(|first| self.header.as_deref() == Some(first.trim_end()));
        } else {
            out.push(format!("{AS_OF}{}]", dates::format_date(as_of)));
        }
        for line in lines {
            if line.starts_with("Date:") {
                out.extend(self.header(line.trim_end(), as_of));
            } else if line.starts_with(AS_OF) {
                // Only code may name the day of a block.
                out.push(format!("({}", &line[1..]));
            } else {
                out.push(self.line(line, as_of));
            }
        }
        out.join("\n")
    }

    /// A date header, and before it the gap since the previous one.
    fn header(&mut self, line: &str, as_of: Date) -> Vec<String> {
        self.header = Some(line.to_owned());
        let Some((day, _)) = dates::find_date(line) else {
            self.day = None;
            return vec![line.to_owned()];
        };
        let exact = !line.contains("on or before");
        // Without two exact days, the gap is unknown.
        let days_known = std::mem::replace(&mut self.exact, exact) && exact;
        let before = std::mem::replace(&mut self.day, day.first).filter(|_| days_known);
        let Some(first) = day.first else {
            return vec![line.to_owned()];
        };
        let relation = dates::relation(first, as_of);
        if !exact {
            return vec![format!("{line} ({relation}, or earlier)")];
        }
        let gap = before.and_then(|before| dates::gap(before, first));
        let mut lines: Vec<String> = gap
            .map(|gap| format!("[{gap} later]"))
            .into_iter()
            .collect();
        lines.push(format!("{line} ({relation})"));
        lines
    }

    /// A line, with a relation if its end names a day.
    fn line(&self, line: &str, as_of: Date) -> String {
        self.relate_line(line, as_of)
            .unwrap_or_else(|| line.to_owned())
    }

    fn relate_line(&self, line: &str, as_of: Date) -> Option<String> {
        let (text, date_text) = line.trim_end().strip_suffix(')')?.rsplit_once('(')?;
        let (word, _) = date_text.trim_start().split_once(' ')?;
        if !["meaning", "estimated"].contains(&word.to_ascii_lowercase().as_str()) {
            return None;
        }
        let (day, end) = dates::find_date(date_text)?;
        if date_text[end..].contains(" - ") {
            // The model has written a relation already.
            return None;
        }
        let has_passed = day.last < as_of && !text.contains('✅') && self.was_future(text, day);
        let note = if has_passed {
            ": the day has passed, whether it happened is not known"
        } else {
            ""
        };
        let relation = match day.first {
            Some(first) => format!(" - {}", dates::relation(first, as_of)),
            None if has_passed => " - before".to_owned(),
            None => return None,
        };
        Some(format!("{text}({date_text}{relation}{note})"))
    }

    /// Whether the day was in the future when the line was written: by the days, or by the words.
    fn was_future(&self, text: &str, day: dates::WrittenDate) -> bool {
        self.day.is_some_and(|header_day| day.last > header_day) || has_future_words(text)
    }
}

/// Words of intent. If a header gives the day of a line, they decide only for dates on that same day.
/// In other languages, the days alone decide.
const FUTURE_WORDS: [&str; 16] = [
    "will",
    "going to",
    "plan",
    "plans",
    "planned",
    "planning",
    "intends",
    "intend",
    "wants to",
    "hopes to",
    "expects",
    "scheduled",
    "upcoming",
    "due",
    "about to",
    "needs to",
];

fn has_future_words(text: &str) -> bool {
    let text = text.to_lowercase();
    let is_whole_word = |at: usize, word: &str| {
        let letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !letter(text[..at].chars().next_back()) && !letter(text[at + word.len()..].chars().next())
    };
    FUTURE_WORDS.iter().any(|word| {
        text.match_indices(word)
            .any(|(at, _)| is_whole_word(at, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use jiff::civil::date;

    fn relate(observed: &str, as_of: Date) -> String {
        PreviousDates::default().relate(observed, as_of)
    }

    #[test]
    fn dates_get_their_distance_to_the_as_of_day() {
        let log = "Date: on or before Mar 1, 2026\n* 🟡 Assistant: hello\nDate: Mar 4, 2026\n* 🔴 (14:05) User asked for a hotel. (meaning Mar 27-28, 2026)\n  * -> Hotel Lund\nDate: Mar 5, 2026\n* 🟢 (09:00) Estimated cost 90 EUR. (estimated early April 2026)\nDate: Mar 15, 2026\n* ✅ (10:00) Booked (by phone)";
        assert_snapshot!(relate(log, date(2026, 3, 20)), @r"
        [as of Mar 20, 2026]
        Date: on or before Mar 1, 2026 (2 weeks before, or earlier)
        * 🟡 Assistant: hello
        Date: Mar 4, 2026 (2 weeks before)
        * 🔴 (14:05) User asked for a hotel. (meaning Mar 27-28, 2026 - 1 week after)
          * -> Hotel Lund
        Date: Mar 5, 2026 (2 weeks before)
        * 🟢 (09:00) Estimated cost 90 EUR. (estimated early April 2026 - 2 weeks after)
        [1 week later]
        Date: Mar 15, 2026 (5 days before)
        * ✅ (10:00) Booked (by phone)
        ");
    }

    #[test]
    fn a_plan_whose_day_has_passed_is_marked_as_past_and_unconfirmed() {
        let relate_line =
            |line: &str| relate(&format!("Date: Mar 4, 2026\n{line}"), date(2026, 3, 20));
        let noted = |line: &str| relate_line(line).contains("whether it happened is not known");
        let line = relate_line("* 🔴 User flies to Oslo. (meaning Mar 13, 2026)");
        assert!(
            line.ends_with("(meaning Mar 13, 2026 - 1 week before: the day has passed, whether it happened is not known)"),
            "{line}"
        );
        // Written on the day itself: the words decide.
        assert!(noted("* 🔴 User will call the bank. (meaning Mar 4, 2026)"));
        assert!(!noted("* 🔴 User called the bank. (meaning Mar 4, 2026)"));
        // The day was past when the line was written.
        assert!(!noted("* 🔴 User moved to Graz. (meaning Feb 2, 2026)"));
        // The day is not past yet, or not for certain.
        assert!(!noted("* 🔴 User flies to Oslo. (meaning Mar 20, 2026)"));
        assert!(!noted("* 🔴 User flies to Oslo. (meaning Mar 18-20, 2026)"));
        assert!(!noted(
            "* 🔴 User flies to Oslo. (meaning early March 2026)"
        ));
        assert!(!noted("* 🔴 User wants to be done. (meaning Mar 2026)"));
        // The task is done.
        assert!(!noted(
            "* ✅ User flew to Oslo as planned. (meaning Mar 13, 2026)"
        ));
        // A reflection may put the line under a later day; the words still decide.
        assert!(noted(
            "* 🔴 User planned to sell the car. (meaning Mar 2, 2026)"
        ));
        assert!(!noted(
            "* 🔴 User explained the planetary gear. (meaning Mar 2, 2026)"
        ));
    }

    #[test]
    fn a_plan_for_a_month_that_has_passed_is_marked_as_past() {
        let line = relate(
            "* 🔴 User will sell the car. (meaning Feb 2026)",
            date(2026, 3, 20),
        );
        assert!(
            line.ends_with(
                "(meaning Feb 2026 - before: the day has passed, whether it happened is not known)"
            ),
            "{line}"
        );
    }

    #[test]
    fn dates_that_cannot_be_read_stay_unchanged() {
        let log = "Date: some day\n* 🔴 User leaves soon. (meaning soon)\n* see (Mar 4, 2026)\n* (meaning Mar 4, 2026) first\n* x (meaning Mar 4, 2026 - 16 days ago)\n)(";
        let related = relate(log, date(2026, 3, 20));
        assert_eq!(related, format!("[as of Mar 20, 2026]\n{log}"));
    }

    #[test]
    fn a_second_part_of_the_same_day_does_not_repeat_the_date() {
        let mut behind = PreviousDates::default();
        let (first, second) = (date(2026, 3, 5), date(2026, 3, 6));
        let related = behind.relate("Date: Mar 4, 2026\n* one", first);
        assert_eq!(
            related,
            "[as of Mar 5, 2026]\nDate: Mar 4, 2026 (the day before)\n* one"
        );
        let related = behind.relate("Date: Mar 4, 2026\n* two", first);
        assert_eq!(related, "* two");
        let related = behind.relate("Date: Mar 4, 2026\n* three", second);
        assert_eq!(
            related,
            "[as of Mar 6, 2026]\nDate: Mar 4, 2026 (2 days before)\n* three"
        );
        let related = behind.relate(
            "Date: Mar 6, 2026\n* four\nDate: Mar 3, 2026\n* five",
            second,
        );
        assert_eq!(
            related,
            "[2 days later]\nDate: Mar 6, 2026 (the same day)\n* four\nDate: Mar 3, 2026 (3 days before)\n* five"
        );
    }

    #[test]
    fn observations_cannot_forge_the_as_of_line() {
        let related = relate("[as of Jan 1, 1999]\n* x", date(2026, 3, 5));
        assert_eq!(related.matches(AS_OF).count(), 1);
    }
}
