//! The report as one HTML page that loads nothing: its style and its charts are in it, and it has no script.

use super::groups::{GroupBy, Grouping, Ledger};
use super::page_chart::{Bar, bars};
use super::table::{between, notes, of_requests, shown_name};
use super::text::{count, dollars, escaped, minute, percent, shortened};
use super::totals::Totals;
use crate::report::grouped;

/// The groups that the page shows.
pub const PAGE_GROUPS: [GroupBy; 4] = [
    GroupBy::Day,
    GroupBy::Cause,
    GroupBy::Model,
    GroupBy::Thread,
];

/// Rows of a table; a page with every conversation of a year would not open.
const MOST_ROWS: usize = 100;

const LONGEST_NAME: usize = 24;

const STYLE: &str = include_str!("page.css");

/// The page. The ledger was made with [`PAGE_GROUPS`].
pub fn html_report(ledger: &Ledger) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Diarist audit</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Diarist audit</h1>\n"
    );
    match &ledger.period {
        Some((first, last)) => {
            page.push_str(&format!(
                "<p>From <b>{}</b> to <b>{}</b> UTC</p>\n",
                escaped(&minute(first)),
                escaped(&minute(last))
            ));
            page.push_str(&tiles(&ledger.totals));
            for grouping in &ledger.groupings {
                page.push_str(&section(grouping));
            }
            page.push_str("<h2>What the numbers leave out</h2>\n");
            for note in notes(ledger).lines() {
                page.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(note)));
            }
            page.push_str(&skipped(ledger));
        }
        None => page.push_str("<p>No line of the audit counts here.</p>\n"),
    }
    page + "</main>\n</body>\n</html>\n"
}

fn tiles(totals: &Totals) -> String {
    let tile = |name: &str, number: String| {
        format!(
            "<div class=\"tile\"><b>{}</b><span>{name}</span></div>\n",
            escaped(&number)
        )
    };
    let numbers = [
        ("requests", grouped(totals.requests)),
        ("hit rate", percent(totals.hit_rate())),
        ("prompt tokens", count(totals.prompt_tokens())),
        ("memory active", percent(totals.active_share())),
        ("errors", grouped(totals.errors)),
        ("calls of memory", grouped(totals.memory_calls)),
        ("cost of the requests", dollars(totals.cost())),
        ("cost of memory", dollars(totals.memory_cost())),
        ("without Diarist, about", dollars(totals.without())),
        ("net", dollars(totals.net())),
        ("net, between", between(totals.net_range())),
        ("important items lost", lost(totals)),
    ];
    let tiles: String = numbers
        .into_iter()
        .map(|(name, number)| tile(name, number))
        .collect();
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

fn section(grouping: &Grouping) -> String {
    let groups = grouping.sorted();
    match grouping.by {
        GroupBy::Day => charts(&groups),
        GroupBy::Model => format!(
            "<h2>Models</h2>\n<p class=\"note\">A call of memory counts under the model of its conversation.</p>\n{}",
            table(grouping, &groups, COLUMNS)
        ),
        GroupBy::Cause => format!(
            "<h2>What the cache did, and why</h2>\n<p class=\"note\">Each request has the cause for which the cache gave less \
             than it could, or a verdict that needs none. Calls of memory stand by themselves.</p>\n{}",
            table(grouping, &groups, COLUMNS_OF_CAUSES)
        ),
        GroupBy::Thread | GroupBy::Tenant => {
            let rows = table(grouping, &groups, COLUMNS);
            format!("<h2>Conversations</h2>\n{rows}")
        }
    }
}

/// Hit rate and cost of each day.
fn charts(days: &[(Vec<&str>, &Totals)]) -> String {
    let name = |key: &[&str]| key.concat();
    let rates: Vec<Bar> = days
        .iter()
        .map(|(key, totals)| Bar {
            label: name(key),
            values: vec![totals.hit_rate()],
            title: format!("{}: {}", name(key), percent(totals.hit_rate())),
        })
        .collect();
    let costs: Vec<Bar> = days
        .iter()
        .map(|(key, totals)| {
            let with = totals.cost().zip(totals.memory_cost());
            let with = with.map(|(requests, memory)| requests + memory);
            Bar {
                label: name(key),
                // One of two bars alone would look like a saving, or a loss, of everything.
                values: match with.zip(totals.without()) {
                    Some((with, without)) => vec![Some(with), Some(without)],
                    None => vec![None, None],
                },
                title: format!(
                    "{}: {} with Diarist, about {} without; net {}",
                    name(key),
                    dollars(with),
                    dollars(totals.without()),
                    dollars(totals.net())
                ),
            }
        })
        .collect();
    let dearest = costs.iter().flat_map(|bar| bar.values.iter().flatten());
    let dearest = dearest.fold(0.0, |most: f64, cost| most.max(*cost));
    let mut text = "<h2>Hit rate by day</h2>\n".to_owned();
    text.push_str(&bars(&rates, 1.0, "100 %"));
    text.push_str("<h2>Cost by day</h2>\n");
    if dearest > 0.0 {
        text.push_str(
            "<p class=\"note\"><i class=\"first\"></i> with Diarist, memory's calls included \
             <i class=\"second\"></i> without Diarist, an estimate</p>\n",
        );
        text.push_str(&bars(&costs, dearest, &dollars(Some(dearest))));
    }
    let is_unknown = |bar: &&Bar| bar.values.iter().any(Option::is_none);
    let unknown = costs.iter().filter(is_unknown).count();
    if unknown > 0 {
        text.push_str(&format!(
            "<p class=\"note\">{unknown} of {} days have no bars: the price of some requests or calls of memory is not \
             known.</p>\n",
            costs.len()
        ));
    }
    text
}

/// How a cell is written.
type Write = fn(&Totals) -> String;

type Column = (&'static str, Write);

/// The cells of a row behind its name.
const COLUMNS: &[Column] = &[
    ("requests", |it| grouped(it.requests)),
    ("prompt", |it| of_requests(it, count(it.prompt_tokens()))),
    ("hit rate", |it| of_requests(it, percent(it.hit_rate()))),
    ("no usage", |it| grouped(it.no_usage)),
    ("errors", |it| grouped(it.errors)),
    ("cost", |it| dollars(it.cost())),
    ("memory", |it| dollars(it.memory_cost())),
    ("without", |it| dollars(it.without())),
    ("net", |it| {
        let range = it.net_range().map(|_| between(it.net_range()));
        format!(
            "{}<small>{}</small>",
            dollars(it.net()),
            range.unwrap_or_default()
        )
    }),
    ("lost", lost),
];

/// The same for causes, of which most have no money of their own.
const COLUMNS_OF_CAUSES: &[Column] = &[
    ("requests", |it| grouped(it.requests)),
    ("prompt", |it| of_requests(it, count(it.prompt_tokens()))),
    ("not from the cache", |it| {
        of_requests(it, count(it.uncached_tokens()))
    }),
    ("hit rate", |it| of_requests(it, percent(it.hit_rate()))),
    ("cost", |it| of_requests(it, dollars(it.cost()))),
    ("memory", |it| dollars(it.memory_cost())),
];

/// Important items that are in no observation any more, and of how many.
fn lost(totals: &Totals) -> String {
    let both = totals.lost_items().zip(totals.important_items());
    both.map_or_else(
        || "-".to_owned(),
        |(lost, all)| format!("{} of {}", grouped(lost), grouped(all)),
    )
}

fn table(grouping: &Grouping, groups: &[(Vec<&str>, &Totals)], columns: &[Column]) -> String {
    let fields = grouping.by.fields().iter();
    // A keyboard can scroll only what it can reach.
    let mut text = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>".to_owned();
    text.extend(fields.map(|field| format!("<th class=\"name\">{field}</th>")));
    let titles = columns.iter().map(|(title, _)| format!("<th>{title}</th>"));
    text.extend(titles);
    text.push_str("</tr></thead>\n<tbody>\n");
    for (key, totals) in groups.iter().take(MOST_ROWS) {
        text.push_str("<tr>");
        for name in key {
            let name = shown_name(name);
            text.push_str(&format!(
                "<td class=\"name\" title=\"{}\">{}</td>",
                escaped(&name),
                escaped(&shortened(&name, LONGEST_NAME))
            ));
        }
        let cells = columns
            .iter()
            .map(|(_, cell)| format!("<td>{}</td>", cell(totals)));
        text.extend(cells);
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table></div>\n");
    if let Some(more @ 1..) = groups.len().checked_sub(MOST_ROWS) {
        text.push_str(&format!(
            "<p class=\"note\">{} more, with shorter prompts. --format csv has all.</p>\n",
            grouped(more as u64)
        ));
    }
    text
}

fn skipped(ledger: &Ledger) -> String {
    format!(
        "<p class=\"note\">Lines left out: {} torn, {} not of the audit.</p>\n",
        grouped(ledger.torn),
        grouped(ledger.foreign)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Filter;
    use crate::model_prices::PriceTable;

    #[test]
    fn names_are_escaped_in_the_html_report() {
        let prices = PriceTable::new(["m=2,0.5,10".parse().unwrap()]);
        let mut ledger = Ledger::new(&PAGE_GROUPS, Filter::default(), prices);
        for number in 0..=MOST_ROWS {
            let line = format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a","thread":"<script>'{number}\"&","model":"m","prompt_tokens":5,"cached_tokens":1,"completion_tokens":3}}"#
            );
            ledger.add(line.as_bytes());
        }
        let page = html_report(&ledger);
        assert!(!page.contains("<script"), "{page}");
        assert!(page.contains("&lt;script&gt;&#39;0&quot;&amp;"), "{page}");
        assert!(page.contains(">1 more, with shorter prompts."), "{page}");
        assert_eq!(page.matches("<svg").count(), 2);
        for from_elsewhere in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(from_elsewhere), "{from_elsewhere}");
        }
    }
}
