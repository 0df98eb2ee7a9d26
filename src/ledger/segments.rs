//! What a prompt consisted of, drawn with characters: one row for each segment, in the order of the prompt.
//!
//! Tokens of a segment are an estimate, by its share of the bytes. Called by `why`.

use super::line::{Line, Segments};
use crate::report::grouped;

/// Characters of the longest bar.
const WIDTH: u64 = 40;

/// A part of a bar that the request before had too, and one that it had not.
const SAME: &str = "#";
const NEW: &str = ".";

/// The segments in the order of the prompt.
fn rows(segments: Segments) -> [(&'static str, u64); 5] {
    [
        ("tools", segments.tools),
        ("system", segments.system),
        // Most of it stands before the observations.
        ("reminder", segments.reminder),
        ("observations", segments.observations),
        ("messages", segments.messages),
    ]
}

/// The drawing; `None` if the line does not say what the prompt consisted of.
pub(super) fn draw(line: &Line<'_>) -> Option<String> {
    let segments = line.segments?;
    let whole = rows(segments)
        .iter()
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    let longest = rows(segments)
        .iter()
        .map(|(_, bytes)| *bytes)
        .max()
        .filter(|bytes| *bytes > 0)?;
    let tokens = line.segment_tokens.map(rows);
    let mut text = vec![heading(line, whole)];
    let mut before = 0;
    for (at, (name, bytes)) in rows(segments).into_iter().enumerate() {
        if bytes == 0 {
            continue;
        }
        // Without a request before, nothing is the same.
        let same = line
            .common_bytes
            .unwrap_or(0)
            .saturating_sub(before)
            .min(bytes);
        before = before.saturating_add(bytes);
        // Lines of older versions say only how many tokens the whole prompt had.
        let by_bytes = || Some(scaled(bytes, line.prompt_tokens?, whole));
        let tokens = tokens.map_or_else(by_bytes, |tokens| Some(tokens[at].1));
        let length = scaled(bytes, WIDTH, longest).max(1);
        // A small segment is drawn longer than it is.
        let same = if same == bytes {
            length
        } else {
            scaled(same, WIDTH, longest)
        };
        let bar = SAME.repeat(to_usize(same)) + &NEW.repeat(to_usize(length.saturating_sub(same)));
        text.push(format!(
            "  {name:<12}  {bar} {} bytes{}",
            grouped(bytes),
            about(tokens)
        ));
    }
    text.extend(replaced(line, segments));
    Some(text.join("\n"))
}

fn about(tokens: Option<u64>) -> String {
    tokens.map_or_else(String::new, |tokens| {
        format!(", about {} tokens", grouped(tokens))
    })
}

fn heading(line: &Line<'_>, whole: u64) -> String {
    let legend = match line.common_bytes {
        Some(_) => format!(" ({SAME}: as in the request before, {NEW}: new)"),
        None => String::new(),
    };
    format!("The prompt had {} bytes{legend}:", grouped(whole))
}

fn replaced(line: &Line<'_>, segments: Segments) -> Option<String> {
    (segments.replaced > 0).then(|| {
        format!(
            "The observations stand for {} bytes of messages{}.",
            grouped(segments.replaced),
            about(line.segment_tokens.map(|tokens| tokens.replaced))
        )
    })
}

/// `part` of `whole`, as a part of `size`, rounded.
fn scaled(part: u64, size: u64, whole: u64) -> u64 {
    let product = u128::from(part) * u128::from(size) + u128::from(whole) / 2;
    let share = product.checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// A length of a bar: at most [`WIDTH`].
fn to_usize(length: u64) -> usize {
    usize::try_from(length.min(WIDTH)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(fields: &str) -> Option<String> {
        let text = format!(r#"{{"time":"2026-11-23T11:23:00.000Z","request_id":"b"{fields}}}"#);
        let (_, line) = Line::parse(text.as_bytes()).unwrap();
        draw(&line)
    }

    #[test]
    fn each_segment_bar_shows_unchanged_and_new_bytes() {
        let text = drawn(
            r#","prompt_tokens":2500,"common_bytes":1500,"segments":{"tools":0,"system":1000,"observations":1000,"messages":8000,"replaced":90000}"#,
        );
        let expected = "The prompt had 10,000 bytes (#: as in the request before, .: new):\n\
            \x20 system        ##### 1,000 bytes, about 250 tokens\n\
            \x20 observations  ###.. 1,000 bytes, about 250 tokens\n\
            \x20 messages      ........................................ 8,000 bytes, about 2,000 tokens\n\
            The observations stand for 90,000 bytes of messages.";
        assert_eq!(text.as_deref(), Some(expected));
    }

    #[test]
    fn a_small_unchanged_segment_is_drawn_as_unchanged() {
        let text = drawn(
            r#","common_bytes":2001,"segments":{"tools":1,"system":0,"observations":0,"messages":4000}"#,
        );
        let text = text.unwrap();
        assert!(text.contains("  tools         # 1 bytes\n"), "{text}");
        let changed = drawn(r#","common_bytes":0,"segments":{"tools":1,"messages":4000}"#);
        assert!(changed.unwrap().contains("  tools         . 1 bytes\n"));
    }

    #[test]
    fn segment_tokens_come_from_the_line_if_it_has_them() {
        let text = drawn(
            r#","prompt_tokens":9,"segments":{"observations":50,"messages":40,"replaced":90,"reminder":10},"segment_tokens":{"observations":5,"messages":3,"replaced":8,"reminder":1}"#,
        );
        let text = text.unwrap();
        for expected in [
            "  reminder      ........ 10 bytes, about 1 tokens\n  observations  ",
            " 50 bytes, about 5 tokens",
            "  messages      ................................ 40 bytes, about 3 tokens",
            "stand for 90 bytes of messages, about 8 tokens.",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn an_unknown_segment_or_comparison_is_not_drawn() {
        assert_eq!(drawn(""), None);
        assert_eq!(drawn(r#","segments":{}"#), None);
        let huge = format!(
            r#","prompt_tokens":9,"segments":{{"messages":{}}}"#,
            u64::MAX
        );
        assert!(drawn(&huge).unwrap().contains("about 9 tokens"));
        let text = drawn(r#","segments":{"tools":1,"messages":4000}"#).unwrap();
        assert!(text.contains("  tools         . 1 bytes\n"), "{text}");
        assert!(!text.contains("before"), "{text}");
    }
}
