//! `diarist threads show --why`: from a line of the log to the messages it comes from.

use anyhow::bail;
use jiff::tz::TimeZone;

use super::log_lines::numbered;
use super::time::time;
use crate::cli::terminal::harmless;
use crate::history::Link;
use crate::jobs::{archived_text, message_text};
use crate::memory::Span;
use crate::memory::provenance::MessageRange;
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::ThreadDetail;

/// Matching lines that an error lists at most.
const MAX_MATCHES: usize = 20;

/// The stored texts of messages.
pub(super) struct MessageTexts {
    /// Texts in waiting jobs.
    pub(super) pending: Vec<(Span, String)>,
    /// Texts kept by `memory.keep_messages`.
    pub(super) archived: Vec<(Link, String)>,
}

impl MessageTexts {
    /// The text of the message with this number; `None` if it is not stored.
    pub(super) fn of_message(&self, detail: &ThreadDetail, place: usize) -> Option<String> {
        let holds = |span: &Span| (span.from_count + 1..=span.to_count).contains(&place);
        let pending = || {
            let mut pending = self.pending.iter().filter(|(span, _)| holds(span));
            pending.find_map(|(_, payload)| message_text(payload, place))
        };
        let node = detail.nodes.iter().find(|node| node.count == place);
        let archived = node.and_then(|node| {
            let (_, archived) = self.archived.iter().find(|(link, _)| *link == node.link)?;
            archived_text(archived)
        });
        archived.or_else(pending)
    }
}

/// The messages that a line comes from. `query` is the number of the line, or some of its words.
pub(super) fn text(
    detail: &ThreadDetail,
    texts: &MessageTexts,
    query: &str,
) -> anyhow::Result<String> {
    let lines = numbered(detail);
    if lines.is_empty() {
        bail!("this conversation has no observations yet");
    }
    let found: Vec<_> = if let Ok(number) = query.trim().parse::<usize>() {
        lines.iter().filter(|line| line.number == number).collect()
    } else {
        let needle = query.to_lowercase();
        let fits = |text: &str| text.to_lowercase().contains(&needle);
        lines.iter().filter(|line| fits(line.text)).collect()
    };
    let line = match found.as_slice() {
        [] => bail!(
            "no line matches {query:?}; `diarist threads show` numbers the lines, 1 to {}",
            lines.len()
        ),
        [line] => line,
        several => {
            let mut text = format!(
                "{} lines contain {query:?}; give the number of one:\n",
                several.len()
            );
            for line in several.iter().take(MAX_MATCHES) {
                text.push_str(&format!("{:>5}  {}\n", line.number, harmless(line.text)));
            }
            bail!("{}", text.trim_end())
        }
    };
    let part = line.part;
    let whole = MessageRange {
        first: part.body.span.from_count + 1,
        last: part.body.span.to_count,
    };
    let origin = part.body.analysis.line_sources.for_line(line.index);
    let range = origin.unwrap_or(whole);
    let mut text = format!(
        "Line {} of {} {}, by {}:\n{}\n\n",
        line.number,
        part.body.kind.name(),
        part.id.0,
        harmless(&part.body.model),
        harmless(line.text.trim_end())
    );
    text.push_str(&match origin {
        Some(range) if range == whole => {
            "It comes from these messages; which of them is not known:\n".to_owned()
        }
        Some(_) => "It comes from these messages:\n".to_owned(),
        None => "Its messages were not recorded when it was written; its part covers:\n".to_owned(),
    });
    text.push_str(&message_table(detail, range));
    text.push_str(&message_texts(detail, texts, range));
    Ok(text)
}

fn message_table(detail: &ThreadDetail, range: MessageRange) -> String {
    let zone = TimeZone::system();
    let head = ["message", "role", "first seen", "tokens", "hash"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for node in &detail.nodes {
        if (range.first..=range.last).contains(&node.count) {
            let first_seen = time(node.received_ms, &zone);
            rows.push(vec![
                node.count.to_string(),
                node.role.name().to_owned(),
                if node.live {
                    first_seen
                } else {
                    format!("by {first_seen}")
                },
                grouped(node.tokens.into()),
                node.link.label(),
            ]);
        }
    }
    align_columns(
        &rows,
        &[
            ColumnAlign::Right,
            ColumnAlign::Left,
            ColumnAlign::Left,
            ColumnAlign::Right,
            ColumnAlign::Left,
        ],
    )
}

/// The texts of the messages, if they are kept or in a waiting job.
fn message_texts(detail: &ThreadDetail, texts: &MessageTexts, range: MessageRange) -> String {
    let mut text = String::new();
    for place in range.first..=range.last {
        if let Some(found) = texts.of_message(detail, place) {
            text.push_str(&format!(
                "\nMessage {place}:\n{}\n",
                harmless(found.trim_end())
            ));
        }
    }
    if text.is_empty() {
        text.push_str(
            "\nTheir text is not stored: it is deleted after the observation, unless memory.keep_messages is set. \
             The client has the messages, in this order; the hashes tell one history from another.\n",
        );
    }
    text
}
