//! Long arguments of a tool call as an outline: every name and short value that fits, breadth first,
//! so that what stands around one long text (a file's content, say) is seen. The numbers are the
//! published ones.

use std::collections::VecDeque;

use serde_json::Value;

use super::capped;
use crate::memory::prompt::head;
use crate::tokens::TokenCounter;

/// Longest string that stands in its line.
const INLINE_CHARS: usize = 160;
/// Levels of containers that are opened.
const DEPTH: usize = 5;
/// Members of one container that are shown.
const PER_CONTAINER: usize = 20;
/// Lines of the outline.
const ENTRIES: usize = 100;
/// Characters of a path.
const PATH_CHARS: usize = 160;
/// Shorter than this, a preview says nothing.
const LEAST_PREVIEW: u32 = 8;

/// A line of the outline.
struct Line<'v> {
    path: String,
    what: What<'v>,
}

enum What<'v> {
    /// As it stands.
    Short(String),
    /// A preview of it, if there is room.
    Long(&'v str),
}

/// The outline of `value`, in at most about `limit` tokens.
pub(super) fn outline(value: &Value, limit: u32, counter: &dyn TokenCounter) -> String {
    let lines = lines(value);
    let mut out = vec![format!(
        "[outline of {} characters of arguments]",
        value.to_string().chars().count()
    )];
    let spelled = |line: &Line<'_>, preview: &str| match &line.what {
        What::Short(text) => format!("{}: {text}", line.path),
        What::Long(text) => {
            let length = text.chars().count();
            format!("{}: {preview}[text of {length} characters]", line.path)
        }
    };
    let mut left = limit.saturating_sub(counter.count(&out[0]));
    let mut shown = 0;
    for line in &lines {
        let cost = counter.count(&spelled(line, "")) + 1;
        // Room for the note that more was there.
        if cost + 16 > left {
            break;
        }
        left -= cost;
        shown += 1;
    }
    let mut waiting = lines[..shown]
        .iter()
        .filter(|line| matches!(line.what, What::Long(_)))
        .count();
    for line in &lines[..shown] {
        let What::Long(text) = &line.what else {
            out.push(spelled(line, ""));
            continue;
        };
        // What one preview leaves of its share goes to those after it.
        let share = left / u32::try_from(waiting.max(1)).unwrap_or(u32::MAX);
        waiting = waiting.saturating_sub(1);
        let mut preview = String::new();
        if share >= LEAST_PREVIEW {
            preview = capped::start(text, share - 4, counter);
            left = left.saturating_sub(counter.count(&preview) + 4);
            preview.push_str(" … ");
        }
        out.push(spelled(line, &preview));
    }
    if shown < lines.len() {
        out.push(format!("[{} more entries left out]", lines.len() - shown));
    }
    out.join("\n")
}

/// What there is to show, the outermost first.
fn lines(value: &Value) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut queue = VecDeque::from([(String::new(), value, 0)]);
    while let Some((path, value, depth)) = queue.pop_front() {
        if lines.len() == ENTRIES {
            lines.push(Line {
                path: "[more]".to_owned(),
                what: What::Short(format!("{} entries left out", queue.len() + 1)),
            });
            break;
        }
        let members = members(value);
        if members.is_empty() || depth == DEPTH {
            let what = told(value, members.len());
            let path = shown_path(&path);
            lines.push(Line { path, what });
            continue;
        }
        let count = members.len();
        for (name, member) in members.into_iter().take(PER_CONTAINER) {
            let path = match (path.is_empty(), value.is_array()) {
                (_, true) => format!("{path}[{name}]"),
                (true, false) => name,
                (false, false) => format!("{path}.{name}"),
            };
            queue.push_back((path, member, depth + 1));
        }
        if count > PER_CONTAINER {
            lines.push(Line {
                path: shown_path(&path),
                what: What::Short(format!(
                    "[{} of {count} entries left out]",
                    count - PER_CONTAINER
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

fn told(value: &Value, members: usize) -> What<'_> {
    match value {
        Value::String(text) if text.chars().nth(INLINE_CHARS).is_some() => What::Long(text),
        Value::Array(_) if members > 0 => What::Short(format!("[list of {members}]")),
        Value::Object(_) if members > 0 => What::Short(format!("{{object of {members}}}")),
        value => What::Short(value.to_string()),
    }
}

/// A path of at most 160 characters. Its end is what tells it from its neighbours.
fn shown_path(path: &str) -> String {
    if path.chars().nth(PATH_CHARS).is_none() {
        return path.to_owned();
    }
    let half = PATH_CHARS / 2;
    let end = crate::memory::prompt::tail(path, half - 1);
    format!("{}…{end}", head(path, half))
}
