//! Long tool call arguments as an outline: every name and every short value that fits, breadth first,
//! so the fields around one long text (such as a file's content) are shown. The limits are the
//! published ones.

use std::collections::VecDeque;

use serde_json::Value;

use super::truncate;
use crate::memory::prompt::first_chars;
use crate::tokens::TokenCounter;

/// The longest string that is shown whole.
const INLINE_CHARS: usize = 160;
/// How many levels of containers are opened.
const MAX_DEPTH: usize = 5;
/// How many members of one container are shown.
const MAX_MEMBERS: usize = 20;
/// The most lines of an outline.
const MAX_LINES: usize = 100;
/// The most characters of a path.
const PATH_CHARS: usize = 160;
/// A shorter preview says nothing.
const MIN_PREVIEW_TOKENS: u32 = 8;

/// A line of the outline.
struct OutlineLine<'v> {
    path: String,
    value: OutlineValue<'v>,
}

enum OutlineValue<'v> {
    /// Shown whole.
    Short(String),
    /// Shown by a preview, if there is room.
    Long(&'v str),
}

/// The outline of `value` in about `limit` tokens at most.
pub(super) fn outline(value: &Value, limit: u32, counter: &dyn TokenCounter) -> String {
    let lines = lines(value);
    let mut out = vec![format!(
        "[outline of {} characters of arguments]",
        value.to_string().chars().count()
    )];
    let format_line = |line: &OutlineLine<'_>, preview: &str| match &line.value {
        OutlineValue::Short(text) => format!("{}: {text}", line.path),
        OutlineValue::Long(text) => {
            let length = text.chars().count();
            format!("{}: {preview}[text of {length} characters]", line.path)
        }
    };
    let mut tokens_left = limit.saturating_sub(counter.count(&out[0]));
    let mut shown = 0;
    for line in &lines {
        let cost = counter.count(&format_line(line, "")) + 1;
        // Leaves room for the note about the rest.
        if cost + 16 > tokens_left {
            break;
        }
        tokens_left -= cost;
        shown += 1;
    }
    let mut previews_left = lines[..shown]
        .iter()
        .filter(|line| matches!(line.value, OutlineValue::Long(_)))
        .count();
    for line in &lines[..shown] {
        let OutlineValue::Long(text) = &line.value else {
            out.push(format_line(line, ""));
            continue;
        };
        // What one preview leaves of its share goes to the ones after it.
        let share = tokens_left / u32::try_from(previews_left.max(1)).unwrap_or(u32::MAX);
        previews_left = previews_left.saturating_sub(1);
        let mut preview = String::new();
        if share >= MIN_PREVIEW_TOKENS {
            preview = truncate::truncate_end(text, share - 4, counter);
            tokens_left = tokens_left.saturating_sub(counter.count(&preview) + 4);
            preview.push_str(" … ");
        }
        out.push(format_line(line, &preview));
    }
    if shown < lines.len() {
        out.push(format!("[{} more entries left out]", lines.len() - shown));
    }
    out.join("\n")
}

/// The lines of the outline, the outermost first.
fn lines(value: &Value) -> Vec<OutlineLine<'_>> {
    let mut lines = Vec::new();
    let mut queue = VecDeque::from([(String::new(), value, 0)]);
    while let Some((path, value, depth)) = queue.pop_front() {
        if lines.len() == MAX_LINES {
            lines.push(OutlineLine {
                path: "[more]".to_owned(),
                value: OutlineValue::Short(format!("{} entries left out", queue.len() + 1)),
            });
            break;
        }
        let members = members(value);
        if members.is_empty() || depth == MAX_DEPTH {
            let value = outline_value(value, members.len());
            let path = shown_path(&path);
            lines.push(OutlineLine { path, value });
            continue;
        }
        let count = members.len();
        for (name, member) in members.into_iter().take(MAX_MEMBERS) {
            let path = match (path.is_empty(), value.is_array()) {
                (_, true) => format!("{path}[{name}]"),
                (true, false) => name,
                (false, false) => format!("{path}.{name}"),
            };
            queue.push_back((path, member, depth + 1));
        }
        if count > MAX_MEMBERS {
            lines.push(OutlineLine {
                path: shown_path(&path),
                value: OutlineValue::Short(format!(
                    "[{} of {count} entries left out]",
                    count - MAX_MEMBERS
                )),
            });
        }
    }
    lines
}

fn members(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| (index.to_string(), item))
            .collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, field)| (name.clone(), field))
            .collect(),
        _ => Vec::new(),
    }
}

fn outline_value(value: &Value, members: usize) -> OutlineValue<'_> {
    match value {
        Value::String(text) if text.chars().nth(INLINE_CHARS).is_some() => OutlineValue::Long(text),
        Value::Array(_) if members > 0 => OutlineValue::Short(format!("[list of {members}]")),
        Value::Object(_) if members > 0 => OutlineValue::Short(format!("{{object of {members}}}")),
        value => OutlineValue::Short(value.to_string()),
    }
}

/// A path of at most 160 characters. Its end is kept, since that distinguishes it from its neighbours.
fn shown_path(path: &str) -> String {
    if path.chars().nth(PATH_CHARS).is_none() {
        return path.to_owned();
    }
    let half = PATH_CHARS / 2;
    let end = crate::memory::prompt::last_chars(path, half - 1);
    format!("{}…{end}", first_chars(path, half))
}
