//! `diarist threads show --timeline`: what happened to the memory of one conversation, one line for each event.
//!
//! Reads the bodies of events as `jobs` writes them. A call that has ended is one line, not two: its start is left
//! out. The last line is the state of the conversation now. `--json` prints every event as it is.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::cli::terminal::harmless;
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::Event;

/// Columns: time, what, tokens, result.
type Row = [String; 4];

/// The events as a table.
pub(super) fn table(events: &[Event]) -> String {
    let bodies: Vec<Value> = events
        .iter()
        .map(|event| serde_json::from_str(&event.body).unwrap_or_default())
        .collect();
    let ended: HashSet<&str> = events
        .iter()
        .zip(&bodies)
        .filter(|(event, _)| event.kind.ends_with("-end") || event.kind.ends_with("-failed"))
        .filter_map(|(_, body)| body["cycleId"].as_str())
        .collect();
    let has_ended = |body: &Value| {
        body["cycleId"]
            .as_str()
            .is_some_and(|id| ended.contains(id))
    };
    let rows = events.iter().zip(&bodies).filter_map(|(event, body)| {
        let is_start = event.kind.ends_with("-start");
        (!is_start || !has_ended(body)).then(|| row(event, body).to_vec())
    });
    let mut table = vec![
        ["time (UTC)", "what", "tokens", "result"]
            .map(str::to_owned)
            .to_vec(),
    ];
    table.extend(rows);
    if table.len() == 1 {
        return "\nNothing has happened to its memory yet.\n".to_owned();
    }
    let (left, right) = (ColumnAlign::Left, ColumnAlign::Right);
    format!(
        "\nTimeline, the newest events of each kind\n{}",
        align_columns(&table, &[left, left, right, left])
    )
}

/// The events as they are, one JSON object a line.
pub(super) fn json_lines(events: &[Event]) -> String {
    let line = |event: &Event| {
        let body: Value = serde_json::from_str(&event.body).unwrap_or_default();
        let time = jiff::Timestamp::from_millisecond(event.at_ms);
        let time = time.map(|time| time.to_string()).ok();
        format!(
            "{}\n",
            json!({"time": time, "event": event.kind, "body": body})
        )
    };
    events.iter().map(line).collect()
}

fn row(event: &Event, body: &Value) -> Row {
    let kind = event.kind.strip_prefix("data-om-").unwrap_or(&event.kind);
    let operation = || text(body, "operationType").unwrap_or_else(|| kind.to_owned());
    let (what, tokens, result) = match kind {
        "buffering-start" | "observation-start" => {
            let read = number(body, "tokensToBuffer").or(number(body, "tokensToObserve"));
            (operation(), tokens(read), "running".to_owned())
        }
        "buffering-end" | "observation-end" => {
            let read = number(body, "tokensBuffered").or(number(body, "tokensObserved"));
            let wrote = number(body, "bufferedTokens").or(number(body, "observationTokens"));
            (
                operation(),
                change(read, wrote),
                format!("written{}", duration(body)),
            )
        }
        "buffering-failed" | "observation-failed" => {
            let error = text(body, "error").unwrap_or_default();
            let result = format!("failed{}: {error}", duration(body));
            (operation(), tokens(number(body, "tokensAttempted")), result)
        }
        "activation" => {
            let (before, after) = (
                number(body, "tokensActivated"),
                number(body, "observationTokens"),
            );
            let cause = text(body, "cause").unwrap_or_default();
            let what = format!("activation of {}", operation());
            (
                what,
                change(before, after),
                format!("sent from now on ({cause})"),
            )
        }
        "status" => {
            let active = &body["windows"]["active"];
            let window = |name: &str| {
                format!(
                    "{name} {} of {}",
                    tokens(number(&active[name], "tokens")),
                    tokens(number(&active[name], "threshold"))
                )
            };
            let sum = number(&active["messages"], "tokens")
                .zip(number(&active["observations"], "tokens"))
                .map(|(messages, observations)| messages + observations);
            let result = format!("{}, {}", window("messages"), window("observations"));
            ("state".to_owned(), tokens(sum), result)
        }
        "thread-update" => {
            let title = text(body, "newTitle").unwrap_or_default();
            ("title".to_owned(), String::new(), title)
        }
        other => (harmless(other), String::new(), String::new()),
    };
    [time(event.at_ms), what, tokens, one_line(&result)]
}

fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(
        |_| "?".to_owned(),
        |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

fn number(body: &Value, key: &str) -> Option<u64> {
    body[key].as_u64()
}

/// Fit for a terminal: models and providers write some of these texts.
fn text(body: &Value, key: &str) -> Option<String> {
    body[key].as_str().map(harmless)
}

/// The first line of a text: an error message may have several.
fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn tokens(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), grouped)
}

fn change(before: Option<u64>, after: Option<u64>) -> String {
    format!("{} -> {}", tokens(before), tokens(after))
}

fn duration(body: &Value) -> String {
    number(body, "durationMs").map_or_else(String::new, |ms| {
        format!(
            " after {:.1} s",
            std::time::Duration::from_millis(ms).as_secs_f64()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, body: &Value) -> Event {
        Event {
            kind: format!("data-om-{kind}"),
            at_ms: 1_795_000_000_000,
            body: body.to_string(),
        }
    }

    fn events() -> Vec<Event> {
        let call = |id: &str| json!({"cycleId": id, "operationType": "observation"});
        let with = |id: &str, more: Value| {
            let mut body = call(id);
            for (key, value) in more.as_object().into_iter().flatten() {
                body[key] = value.clone();
            }
            body
        };
        vec![
            event(
                "buffering-start",
                &with("1-1", json!({"tokensToBuffer": 6000})),
            ),
            event(
                "buffering-end",
                &with(
                    "1-1",
                    json!({"tokensBuffered": 6000, "bufferedTokens": 900, "durationMs": 3100}),
                ),
            ),
            event(
                "observation-failed",
                &with(
                    "2-1",
                    json!({"tokensAttempted": 500, "durationMs": 20, "error": "404\nno such model"}),
                ),
            ),
            event(
                "observation-start",
                &with("3-1", json!({"tokensToObserve": 700})),
            ),
            event(
                "activation",
                &json!({"operationType": "observation", "tokensActivated": 6000,
                    "observationTokens": 900, "cause": "threshold"}),
            ),
            event(
                "status",
                &json!({"windows": {"active": {"messages": {"tokens": 1200, "threshold": 30000},
                    "observations": {"tokens": 900, "threshold": 40000}}}}),
            ),
            event("thread-update", &json!({"newTitle": "A trip"})),
        ]
    }

    #[test]
    fn each_event_is_a_line_with_time_tokens_and_result() {
        let table = table(&events());
        let lines: Vec<String> = table
            .lines()
            .skip(3)
            .map(|line| {
                line.split_whitespace()
                    .skip(2)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        assert_eq!(
            lines,
            [
                "observation 6,000 -> 900 written after 3.1 s",
                "observation 500 failed after 0.0 s: 404",
                "observation 700 running",
                "activation of observation 6,000 -> 900 sent from now on (threshold)",
                "state 2,100 messages 1,200 of 30,000, observations 900 of 40,000",
                "title A trip",
            ],
            "{table}"
        );
        assert!(super::table(&[]).contains("Nothing has happened"));
    }

    #[test]
    fn the_json_output_contains_every_event_in_full() {
        let text = json_lines(&events());
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[0]["event"], "data-om-buffering-start");
        assert_eq!(lines[1]["body"]["bufferedTokens"], 900);
    }
}
