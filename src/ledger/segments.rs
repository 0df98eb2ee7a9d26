//! What a prompt consisted of, drawn with characters: one row for each segment, in the order of the prompt.
//!
//! Tokens of a segment are estimated by its share of the bytes. Called by `why`.

use super::line::{Line, Segments};
use crate::report::grouped;

/// Characters of the longest bar.
const WIDTH: u64 = 40;

/// A part of a bar that the request before had too, and one that it had not.
const SAME: &str = "#";
const NEW: &str = ".";

/// The drawing; `None` if the line does not say what the prompt consisted of.
pub(super) fn draw(line: &Line<'_>) -> Option<String> {
    let segments = line.segments?;
    let rows = [
        ("tools", segments.tools),
        ("system", segments.system),
        ("observations", segments.observations),
        ("messages", segments.messages),
    ];
    let whole = rows
        .iter()
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    let longest = rows
        .iter()
        .map(|(_, bytes)| *bytes)
        .max()
        .filter(|bytes| *bytes > 0)?;
    let mut text = vec![heading(line, whole)];
    let mut before = 0;
    for (name, bytes) in rows.into_iter().filter(|(_, bytes)| *bytes > 0) {
        // Without a request before, nothing is the same.
        let same = line
            .common_bytes
            .unwrap_or(0)
            .saturating_sub(before)
            .min(bytes);
        before = before.saturating_add(bytes);
        let tokens = line.prompt_tokens.map_or_else(String::new, |tokens| {
            format!(", about {} tokens", grouped(scaled(bytes, tokens, whole)))
        });
        let (length, same) = (
            scaled(bytes, WIDTH, longest).max(1),
            scaled(same, WIDTH, longest),
        );
        let bar = SAME.repeat(to_usize(same)) + &NEW.repeat(to_usize(length.saturating_sub(same)));
        text.push(format!(
            "  {name:<12}  {bar} {} bytes{tokens}",
            grouped(bytes)
        ));
    }
    text.extend(replaced(segments));
    Some(text.join("\n"))
}

fn heading(line: &Line<'_>, whole: u64) -> String {
    let legend = match line.common_bytes {
        Some(_) => format!(" ({SAME}: as in the request before, {NEW}: new)"),
        None => String::new(),
    };
    format!("The prompt had {} bytes{legend}:", grouped(whole))
}

fn replaced(segments: Segments) -> Option<String> {
    (segments.replaced > 0).then(|| {
        format!(
            "The observations stand for {} bytes of messages.",
            grouped(segments.replaced)
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
    fn each_segment_has_a_bar_with_what_is_the_same_and_what_is_new() {
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
    fn nothing_is_drawn_of_what_is_not_known() {
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
