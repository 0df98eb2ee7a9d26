//! The report for programs: JSON and CSV.

use serde_json::{Map, Value, json};

use super::groups::{Grouping, Ledger};
use super::holdout::HoldoutGroup;
use super::measures::{MEASURES, rounded};
use super::totals::Totals;

/// One JSON object: the groups, their total, and what could not be read or priced. An unknown number is `null`.
pub fn json_report(ledger: &Ledger) -> Value {
    let mut report = Map::new();
    let (first, last) = ledger.period.as_ref().map(|(a, b)| (a, b)).unzip();
    report.insert("first".to_owned(), first.cloned().into());
    report.insert("last".to_owned(), last.cloned().into());
    for grouping in &ledger.groupings {
        report.insert("by".to_owned(), grouping.by.fields().into());
        let groups = grouping.sorted().into_iter().map(|(key, totals)| {
            let named = grouping.by.fields().iter().zip(key);
            let mut group: Map<String, Value> = named
                .map(|(field, value)| ((*field).to_owned(), value.into()))
                .collect();
            group.extend(measures(totals));
            Value::Object(group)
        });
        report.insert("groups".to_owned(), groups.collect());
    }
    report.insert("total".to_owned(), measures(&ledger.totals).collect());
    report.insert("holdout".to_owned(), holdout(ledger));
    let models: Vec<&String> = ledger.unpriced_models.iter().collect();
    report.insert("unpriced_models".to_owned(), json!(models));
    report.insert("token_ratios".to_owned(), json!(ledger.token_ratios));
    let repeats = ledger.repeats_forgetting();
    report.insert("repeats_forgetting".to_owned(), repeats.into());
    report.insert("torn_lines".to_owned(), ledger.torn.into());
    report.insert("foreign_lines".to_owned(), ledger.foreign.into());
    report.into()
}

/// `null` if no conversation went without memory, or if its cost is not known.
fn holdout(ledger: &Ledger) -> Value {
    let holdout = &ledger.holdout;
    let Some(saving) = holdout.saving() else {
        return Value::Null;
    };
    let group = |group: &HoldoutGroup| {
        json!({
            "conversations": group.conversations,
            "requests": group.requests,
            "dollars_per_megabyte": group.dollars_per_megabyte().map(rounded),
        })
    };
    let interval = saving.interval;
    let (low, high) = interval
        .map(|(low, high)| (rounded(low), rounded(high)))
        .unzip();
    let (estimated, ends) = ledger.totals.saving().unzip();
    let (estimated_low, estimated_high) = ends.unzip();
    json!({
        "with_memory": group(&holdout.with_memory),
        "without_memory": group(&holdout.without_memory),
        "saving": rounded(saving.share),
        "saving_low": low,
        "saving_high": high,
        "estimated_saving": estimated.map(rounded),
        "estimated_low": estimated_low.map(rounded),
        "estimated_high": estimated_high.map(rounded),
    })
}

fn measures(totals: &Totals) -> impl Iterator<Item = (String, Value)> {
    let all = MEASURES.iter();
    all.map(|(name, take)| ((*name).to_owned(), take(totals).to_json()))
}

/// A header and one line for each group, or one line for all. An unknown number is empty. Quoted by RFC 4180.
pub fn csv_report(ledger: &Ledger) -> String {
    let fields = |grouping: &Grouping| grouping.by.fields();
    let named = ledger.groupings.first().map_or(&[][..], fields);
    let header = named.iter().chain(MEASURES.iter().map(|(name, _)| name));
    let mut text = csv_line(header.map(|name| (*name).to_owned()));
    let row = |key: Vec<&str>, totals: &Totals| {
        let key = key.into_iter().map(str::to_owned);
        csv_line(key.chain(MEASURES.iter().map(|(_, take)| take(totals).to_plain())))
    };
    match ledger.groupings.first() {
        Some(grouping) => {
            for (key, totals) in grouping.sorted() {
                text.push_str(&row(key, totals));
            }
        }
        None => text.push_str(&row(Vec::new(), &ledger.totals)),
    }
    text
}

fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<String> = cells.map(|cell| quoted(&cell)).collect();
    cells.join(",") + "\r\n"
}

/// A cell, quoted where it must be. A spreadsheet would compute a name that begins like a formula, and clients choose
/// the names of conversations: an apostrophe in front makes it text.
fn quoted(cell: &str) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && cell.parse::<f64>().is_err() {
        return quoted(&format!("'{cell}"));
    }
    if cell.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_would_break_a_line_are_quoted() {
        let cells = ["a", "b,c", "d\"e", "f\ng", ""].map(str::to_owned);
        let line = csv_line(cells.into_iter());
        assert_eq!(line, "a,\"b,c\",\"d\"\"e\",\"f\ng\",\r\n");
    }

    #[test]
    fn a_name_that_looks_like_a_formula_is_text() {
        let cells = ["=1+1", "@x", "-0.5", "=a,b", "a=b"].map(str::to_owned);
        let line = csv_line(cells.into_iter());
        assert_eq!(line, "'=1+1,'@x,-0.5,\"'=a,b\",a=b\r\n");
    }
}
