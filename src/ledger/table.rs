//! The report as text: the sums of all lines, or a line for each group.

use super::groups::{Grouping, Ledger};
use super::holdout::HoldoutGroup;
use super::text::{UNKNOWN, count, dollars, minute, percent, short_count, shortened};
use super::totals::Totals;
use crate::report::{ColumnAlign, align_columns, grouped};

/// A column of numbers: its title, and how the cell is written, in full and short.
struct Column {
    title: &'static str,
    full: fn(&Totals) -> String,
    short: fn(&Totals) -> String,
}

impl Column {
    const fn new(title: &'static str, full: fn(&Totals) -> String) -> Self {
        Self {
            title,
            full,
            short: full,
        }
    }

    const fn with_short(
        title: &'static str,
        full: fn(&Totals) -> String,
        short: fn(&Totals) -> String,
    ) -> Self {
        Self { title, full, short }
    }
}

/// A number about requests, for a group that may have only calls of memory.
pub(super) fn of_requests(totals: &Totals, number: String) -> String {
    if totals.requests == 0 {
        "-".to_owned()
    } else {
        number
    }
}

/// The columns of tokens; the last ones are left out first if the terminal is narrow.
const TOKENS: &[Column] = &[
    Column::with_short(
        "requests",
        |it| grouped(it.requests),
        |it| short_count(Some(it.requests)),
    ),
    Column::with_short(
        "prompt",
        |it| of_requests(it, count(it.prompt_tokens())),
        |it| of_requests(it, short_count(it.prompt_tokens())),
    ),
    Column::with_short(
        "cached",
        |it| of_requests(it, count(it.cached_tokens())),
        |it| of_requests(it, short_count(it.cached_tokens())),
    ),
    Column::new("hit rate", |it| of_requests(it, percent(it.hit_rate()))),
    Column::new("no usage", |it| grouped(it.no_usage)),
    Column::with_short(
        "output",
        |it| of_requests(it, count(it.completion_tokens())),
        |it| of_requests(it, short_count(it.completion_tokens())),
    ),
    Column::new("active", |it| of_requests(it, percent(it.active_share()))),
    Column::new("errors", |it| grouped(it.errors)),
    Column::new("memory calls", |it| grouped(it.memory_calls)),
];

const MONEY: &[Column] = &[
    Column::new("net", |it| dollars(it.net())),
    Column::new("between", |it| between(it.net_range())),
    Column::new("requests", |it| dollars(it.cost())),
    Column::new("memory", |it| dollars(it.memory_cost())),
    Column::new("without Diarist, about", |it| dollars(it.without())),
    Column::new("not priced", |it| {
        grouped(it.unpriced_requests + it.unpriced_calls)
    }),
];

/// The report as tables of at most `width` characters in a line, if there is a terminal, and notes.
pub fn text_report(ledger: &Ledger, width: Option<usize>) -> String {
    let Some((first, last)) = &ledger.period else {
        return "No line of the audit counts here. Look at the files and the filters.\n".to_owned();
    };
    let mut text = format!("From {} to {} UTC\n\n", minute(first), minute(last));
    match ledger.groupings.first() {
        Some(grouping) => {
            text.push_str(&fitting(ledger, grouping, TOKENS, width));
            if ledger.totals.has_prices() {
                text.push('\n');
                text.push_str(&fitting(ledger, grouping, MONEY, width));
            }
        }
        None => text.push_str(&summary(&ledger.totals)),
    }
    let notes = notes(ledger);
    if !notes.is_empty() {
        text.push('\n');
        text.push_str(&notes);
    }
    text
}

/// The widest form of the table that fits.
fn fitting(
    ledger: &Ledger,
    grouping: &Grouping,
    columns: &[Column],
    width: Option<usize>,
) -> String {
    let table = |shown: usize, short: bool, longest_name: usize| {
        let text = table(ledger, grouping, &columns[..shown], short, longest_name);
        let widest = text.lines().map(|line| line.chars().count()).max();
        let fits = width.is_none_or(|width| widest.is_none_or(|widest| widest <= width));
        (text, fits)
    };
    for (short, longest_name) in [(false, 64), (true, 64), (true, 32), (true, 20), (true, 12)] {
        let (text, true) = table(columns.len(), short, longest_name) else {
            continue;
        };
        return text;
    }
    for shown in (1..columns.len()).rev() {
        let (text, fits) = table(shown, true, 12);
        if fits || shown == 1 {
            let left_out: Vec<&str> = columns[shown..].iter().map(|column| column.title).collect();
            return format!(
                "{text}Not shown on so narrow a terminal: {}.\n",
                left_out.join("; ")
            );
        }
    }
    String::new()
}

fn table(
    ledger: &Ledger,
    grouping: &Grouping,
    columns: &[Column],
    short: bool,
    longest_name: usize,
) -> String {
    let fields = grouping.by.fields();
    let titles = fields.iter().copied();
    let titles = titles.chain(columns.iter().map(|column| column.title));
    let mut rows: Vec<Vec<String>> = vec![titles.map(str::to_owned).collect()];
    let cells = |totals: &Totals| {
        let write = |column: &Column| (if short { column.short } else { column.full })(totals);
        columns.iter().map(write).collect::<Vec<_>>()
    };
    for (key, totals) in grouping.sorted() {
        let names = key
            .into_iter()
            .map(|name| shortened(&shown_name(name), longest_name));
        rows.push(names.chain(cells(totals)).collect());
    }
    let mut total = vec![String::new(); fields.len()];
    "total".clone_into(&mut total[0]);
    total.extend(cells(&ledger.totals));
    rows.push(total);
    let mut sides = vec![ColumnAlign::Left; fields.len()];
    sides.extend(columns.iter().map(|_| ColumnAlign::Right));
    align_columns(&rows, &sides)
}

/// Whether a character may change what is on a screen beside itself: a control character, or one that changes the direction of
/// writing.
pub fn changes_screen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name without such characters: clients write the names.
pub(super) fn shown_name(name: &str) -> String {
    if name.is_empty() {
        return "-".to_owned();
    }
    let harmless = |c: char| {
        if changes_screen(c) {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    name.chars().map(harmless).collect()
}

/// The sums of all lines, one below the other.
fn summary(totals: &Totals) -> String {
    let row = |name: &str, number: String, note: String| vec![name.to_owned(), number, note];
    let counted = |name: &str, number: u64, note: String| row(name, grouped(number), note);
    let mut rows = vec![
        counted("requests", totals.requests, String::new()),
        counted("  errors", totals.errors, percent(totals.error_rate())),
        counted(
            "  memory active",
            totals.active,
            percent(totals.active_share()),
        ),
        counted("  without usage", totals.no_usage, unreported_note(totals)),
        row(
            "prompt tokens",
            count(totals.prompt_tokens()),
            String::new(),
        ),
        row(
            "  read from the cache",
            count(totals.cached_tokens()),
            hit_rate_note(totals),
        ),
    ];
    if totals.cache_write_tokens().is_some() {
        let written = count(totals.cache_write_tokens());
        rows.push(row("  written to the cache", written, String::new()));
    }
    rows.push(row(
        "output tokens",
        count(totals.completion_tokens()),
        String::new(),
    ));
    if totals.reasoning_tokens().is_some() {
        let reasoning = count(totals.reasoning_tokens());
        rows.push(row("  of them reasoning", reasoning, String::new()));
    }
    rows.push(counted(
        "calls of memory",
        totals.memory_calls,
        String::new(),
    ));
    if totals.memory_calls > 0 {
        for (name, number) in [
            ("  prompt tokens", totals.memory_prompt_tokens()),
            ("  read from the cache", totals.memory_cached_tokens()),
            ("  output tokens", totals.memory_completion_tokens()),
        ] {
            rows.push(row(name, count(number), String::new()));
        }
    }
    if let Some((lost, all)) = totals.lost_items().zip(totals.important_items()) {
        let note = format!("of {}", grouped(all));
        rows.push(counted("important items lost", lost, note));
    }
    if totals.has_prices() {
        for (name, amount, range) in [
            ("cost of the requests", totals.cost(), None),
            ("cost of memory's calls", totals.memory_cost(), None),
            (
                "without Diarist, about",
                totals.without(),
                totals.without_range(),
            ),
            ("net", totals.net(), totals.net_range()),
        ] {
            let note = range.map_or_else(String::new, |range| between(Some(range)));
            rows.push(row(name, dollars(amount), note));
        }
    }
    align_columns(
        &rows,
        &[ColumnAlign::Left, ColumnAlign::Right, ColumnAlign::Left],
    )
}

/// Two ends in dollars.
pub(super) fn between(range: Option<(f64, f64)>) -> String {
    range.map_or_else(
        || UNKNOWN.to_owned(),
        |(low, high)| format!("{} to {}", dollars(Some(low)), dollars(Some(high))),
    )
}

/// What requests without usage may have sent.
fn unreported_note(totals: &Totals) -> String {
    totals
        .unreported_tokens()
        .map_or_else(String::new, |tokens| {
            let known = totals.unreported_requests();
            let part = if known < totals.no_usage {
                format!(" in {} of them", grouped(known))
            } else {
                String::new()
            };
            format!(
                "about {} tokens of prompt{part}, by their bytes",
                grouped(tokens)
            )
        })
}

fn hit_rate_note(totals: &Totals) -> String {
    let with = match totals.hit_rate() {
        Some(rate) => percent(Some(rate)),
        None => UNKNOWN.to_owned(),
    };
    // Where nothing was replaced, it is the same.
    let without = totals.without_hit_rate().filter(|_| totals.active > 0);
    match without {
        Some(rate) => format!(
            "hit rate {with}, without Diarist about {}",
            percent(Some(rate))
        ),
        None => format!("hit rate {with}"),
    }
}

/// What the numbers leave out, and what they assume.
pub(super) fn notes(ledger: &Ledger) -> String {
    let totals = &ledger.totals;
    let mut notes = String::new();
    let mut note = |text: String| {
        notes.push_str(&text);
        notes.push('\n');
    };
    if totals.no_usage > 0 {
        note(format!(
            "The sums of tokens leave out {} without usage.",
            requests(totals.no_usage)
        ));
    }
    if totals.no_cached > 0 {
        note(format!(
            "The hit rate leaves out {} without a count of cached tokens. Costs count these prompts as uncached.",
            requests(totals.no_cached)
        ));
    }
    if totals.impossible_usage > 0 {
        note(format!(
            "{} reported more tokens from the cache than the prompt has. What came from the cache counts as not reported.",
            lines(totals.impossible_usage)
        ));
    }
    if let Some(text) = holdout_note(ledger) {
        note(text);
    }
    if totals.lost_items() > Some(0) {
        let thread = ledger.only_thread();
        let thread = thread.map_or_else(|| "CONVERSATION".to_owned(), shell_word);
        note(format!(
            "The important items that were lost: diarist threads show {thread} --lost"
        ));
    }
    if !ledger.token_ratios.is_empty() {
        let ratios = ledger.token_ratios.iter();
        let ratios = ratios.map(|(name, ratio)| format!("{} {ratio:.2}", shown_name(name)));
        let ratios: Vec<String> = ratios.collect();
        note(format!(
            "Tokens that the provider counts where Diarist counts one: {}.",
            ratios.join(", ")
        ));
    }
    if !ledger.unpriced_models.is_empty() {
        let models = ledger.unpriced_models.iter().map(|name| shown_name(name));
        let models: Vec<String> = models.collect();
        note(format!(
            "No price is known for: {}. Give one with --price MODEL=IN,CACHED,OUT",
            models.join(", ")
        ));
    }
    if !totals.has_prices() {
        return notes;
    }
    if totals.unpriced_requests > 0 {
        note(format!(
            "The costs leave out {} without known tokens or a known price.",
            requests(totals.unpriced_requests)
        ));
    }
    if totals.one_sided_requests > 0 {
        note(format!(
            "The net leaves out {}: the provider reported the cost, but no price is known that says what they would have \
             cost without Diarist.",
            requests(totals.one_sided_requests)
        ));
    }
    if totals.lacks_calls() {
        note(
            "The cost of memory is not known: a model wrote observations, but no line tells of its calls."
                .to_owned(),
        );
    }
    let cache = if ledger.repeats_forgetting() {
        "its beginning cached unless the provider was seen to forget"
    } else {
        "its beginning always cached"
    };
    note(format!(
        "Without Diarist: an estimate. The whole history, its tokens by the ratio of bytes received and sent,\n\
         {cache} (see docs/audit.md). Net: this less both costs. It lies between two ends:\n\
         replaced text with fewer or more tokens, a cache that forgets nothing or as often as the real one."
    ));
    notes
}

/// A name as one word of a shell: clients choose it.
fn shell_word(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    let shown = shown_name(name);
    if shown.chars().all(is_plain) && !shown.starts_with('-') {
        shown
    } else {
        format!("'{}'", shown.replace('\'', "'\\''"))
    }
}

/// What memory saves, as measured and as estimated; `None` without a hold-out.
fn holdout_note(ledger: &Ledger) -> Option<String> {
    let holdout = &ledger.holdout;
    let saving = holdout.saving()?;
    let rate = |group: &HoldoutGroup| dollars(group.dollars_per_megabyte());
    let ends = |(low, high), word| format!("{} {word} {}", percent(Some(low)), percent(Some(high)));
    let error = saving.interval.map_or_else(
        || "too few conversations for an interval".to_owned(),
        |interval| format!("95 % interval: {}", ends(interval, "to")),
    );
    let estimated = ledger.totals.saving();
    let estimated = estimated.map_or_else(String::new, |(share, range)| {
        let share = percent(Some(share));
        format!(
            "\nEstimated saving of all requests: {share} (between {}).",
            ends(range, "and")
        )
    });
    Some(format!(
        "Measured saving: {} ({error}). A megabyte that clients sent cost {} in {} conversations with memory,\n\
         and {} in {} conversations of the hold-out.{estimated}",
        percent(Some(saving.share)),
        rate(&holdout.with_memory),
        grouped(holdout.with_memory.conversations),
        rate(&holdout.without_memory),
        grouped(holdout.without_memory.conversations),
    ))
}

fn lines(number: u64) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} line{plural}", grouped(number))
}

fn requests(number: u64) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} request{plural}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Filter, GroupBy};
    use crate::model_prices::PriceTable;

    fn ledger(by: &[GroupBy]) -> Ledger {
        let prices = PriceTable::new(["large-model=2,0.5,10".parse().unwrap()]);
        let mut ledger = Ledger::new(by, Filter::default(), prices);
        for (tenant, model, prompt) in [
            ("6739d3a48a1a", "large-model", 12_345_678_u64),
            ("aaaaaaaaaaaa", "unheard-of", 1_000),
        ] {
            let line = format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a","tenant":"{tenant}","thread":"a-conversation-with-a-\u001b[2Jlong-name-at-its-end","model":"{model}","memory":"active","bytes_received":20,"bytes_sent":10,"messages_received":9,"prompt_tokens":{prompt},"cached_tokens":{prompt},"completion_tokens":3}}"#
            );
            ledger.add(line.as_bytes());
        }
        ledger
    }

    #[test]
    fn a_name_changes_nothing_else_on_the_screen() {
        assert_eq!(shown_name("a\u{1b}[2J\n"), "a\u{fffd}[2J\u{fffd}");
        assert_eq!(shown_name("a\u{202e}b\u{61c}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(shown_name("ä 🔴"), "ä 🔴");
    }

    #[test]
    fn a_table_fits_every_terminal() {
        let ledger = ledger(&[GroupBy::Thread]);
        for width in [40, 60, 80, 100, 120, 200] {
            let text = text_report(&ledger, Some(width));
            let tables: Vec<&str> = text.split("\n\n").skip(1).take(2).collect();
            let tables = tables.join("\n");
            for line in tables.lines().filter(|line| !line.starts_with("Not shown")) {
                assert!(line.chars().count() <= width, "{width}:\n{text}");
            }
            assert!(!text.contains('\u{1b}'), "{text}");
        }
        let wide = text_report(&ledger, None);
        assert!(
            wide.contains("12,345,678") && !wide.contains("Not shown"),
            "{wide}"
        );
        let narrow = text_report(&ledger, Some(60));
        assert!(
            narrow.contains("12.3M") && narrow.contains("Not shown"),
            "{narrow}"
        );
    }

    /// 19 requests without usage, of which the estimate knows one.
    #[test]
    fn an_estimate_names_the_number_of_requests_that_it_covers() {
        let mut ledger = ledger(&[]);
        let bare =
            r#"{"time":"2026-11-23T11:20:14.295Z","request_id":"a","model":"m","status":200"#;
        let add =
            |ledger: &mut Ledger, fields: &str| ledger.add(format!("{bare}{fields}}}").as_bytes());
        add(&mut ledger, r#","estimated_prompt_tokens":5979"#);
        let text = text_report(&ledger, None);
        assert!(
            text.contains("1  about 5,979 tokens of prompt, by their bytes\n"),
            "{text}"
        );
        add(&mut ledger, "");
        let text = text_report(&ledger, None);
        assert!(
            text.contains("2  about 5,979 tokens of prompt in 1 of them, by their bytes\n"),
            "{text}"
        );
    }

    #[test]
    fn a_name_is_quoted_as_one_shell_word() {
        for (name, word) in [
            ("trip", "trip"),
            ("a b", "'a b'"),
            ("$(x)", "'$(x)'"),
            ("it's", "'it'\\''s'"),
            ("--all", "'--all'"),
        ] {
            assert_eq!(shell_word(name), word);
        }
    }

    #[test]
    fn the_notes_of_the_report_name_unknown_prices_and_costs() {
        let text = text_report(&ledger(&[]), None);
        for expected in [
            "No price is known for: unheard-of.",
            "The costs leave out 1 request without",
            "Without Diarist: an estimate.",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        let empty = Ledger::new(&[], Filter::default(), PriceTable::new([]));
        assert!(text_report(&empty, None).starts_with("No line"));
    }
}
