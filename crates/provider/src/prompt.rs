//! The prompt that a model would read: tools and messages rendered to text, segment by segment.
//!
//! Every field that is not null is in the text, so any change that the provider could notice changes
//! it. The JSON spelling is not, as for a real chat template. [`super::cache`] compares prompts;
//! [`mod@super::judge`] measures them against the window. Pure.

use std::sync::Arc;

use serde_json::{Map, Value};

/// Counts the tokens of a short text. Must be a pure function of the text.
pub type CountTokens = Arc<dyn Fn(&str) -> u32 + Send + Sync>;

/// The default count: a quarter of the bytes, rounded up. It equals no tokenizer, but it is cheap,
/// needs no vocabulary and never changes.
pub fn estimate_tokens() -> CountTokens {
    Arc::new(|text| u32::try_from(text.len().div_ceil(4)).unwrap_or(u32::MAX))
}

/// The most bytes that are counted at once.
///
/// Counting in short pieces keeps a growing message cacheable up to the point where it grew, since only
/// its last piece changes. It also avoids inputs that tokenizers are slow or panic on.
const PIECE_BYTES: usize = 320;

/// A rendered prompt: the tools first, if there are any, then one segment for each message. A part with a
/// `prompt_cache_breakpoint` ends a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    segments: Vec<String>,
    /// The indices of the segments that end with a breakpoint.
    breakpoints: Vec<usize>,
}

impl Prompt {
    /// Renders the parts of `request` that belong to the prompt.
    pub fn render(request: &Map<String, Value>) -> Self {
        let tools = ["tools", "functions"]
            .iter()
            .filter_map(|key| request.get(*key))
            .filter(|tools| !is_blank(tools))
            .map(|tools| format!("<|tools|>{tools}\n"));
        let mut segments: Vec<String> = tools.collect();
        let mut breakpoints = Vec::new();
        let messages = request.get("messages").and_then(Value::as_array);
        for message in messages.into_iter().flatten() {
            let rest = render(message, &mut |before| {
                breakpoints.push(segments.len());
                segments.push(std::mem::take(before));
            });
            segments.push(rest);
        }
        Self {
            segments,
            breakpoints,
        }
    }

    /// The indices of the segments that end with a breakpoint.
    pub(super) fn breakpoints(&self) -> &[usize] {
        &self.breakpoints
    }

    /// The segments in prompt order.
    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// Its size in tokens by `count`. Linear in the prompt. A conversation that is measured on
    /// every turn uses [`super::cache::PromptCache`], which remembers its counts.
    pub fn tokens(&self, count: &CountTokens) -> u32 {
        self.segments
            .iter()
            .flat_map(|segment| pieces(segment))
            .map(|piece| count(piece))
            .sum()
    }
}

/// Cuts `text` into pieces, deciding from left to right only. Text appended at the end changes no piece
/// except the last one.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(piece_end(rest));
        rest = tail;
        Some(piece)
    })
}

fn piece_end(text: &str) -> usize {
    let window = text.floor_char_boundary(PIECE_BYTES);
    let head = &text.as_bytes()[..window];
    if let Some(newline) = memchr::memchr(b'\n', head) {
        newline + 1
    } else if window == text.len() {
        window
    } else {
        // No empty piece: a leading space is no place to cut.
        memchr::memrchr(b' ', head)
            .filter(|&at| at > 0)
            .unwrap_or(window)
    }
}

/// One message as the model reads it.
pub(super) fn render_message(message: &Value) -> String {
    render(message, &mut |_| {})
}

/// The same. `at_breakpoint` gets what stands before each breakpoint, and may take it away.
fn render(message: &Value, at_breakpoint: &mut dyn FnMut(&mut String)) -> String {
    let Some(fields) = message.as_object() else {
        return message.to_string();
    };
    let mut out = format!("<|{}|>", text_of(fields, "role"));
    if let Some(content) = fields.get("content") {
        render_content(content, &mut out, at_breakpoint);
    }
    for call in fields
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        render_call(call, &mut out);
    }
    render_rest(
        fields,
        &["role", "content", "tool_calls", "cache_control"],
        &mut out,
    );
    out.push('\n');
    out
}

/// The fields that a template has no place for, in an order that does not depend on the client.
fn render_rest(fields: &Map<String, Value>, except: &[&str], out: &mut String) {
    let mut rest: Vec<_> = fields
        .iter()
        .filter(|(key, value)| !except.contains(&key.as_str()) && !is_blank(value))
        .collect();
    rest.sort_by_key(|(key, _)| *key);
    for (key, value) in rest {
        out.push_str("<|");
        out.push_str(key);
        out.push_str("|>");
        out.push_str(&value.to_string());
    }
}

fn render_content(content: &Value, out: &mut String, at_breakpoint: &mut dyn FnMut(&mut String)) {
    match content {
        Value::String(text) => out.push_str(text),
        Value::Array(parts) => {
            for part in parts {
                match part.get("text").and_then(Value::as_str) {
                    Some(text) => out.push_str(text),
                    None => render_media(part, out),
                }
                if part
                    .get("prompt_cache_breakpoint")
                    .is_some_and(|mark| !mark.is_null())
                {
                    at_breakpoint(out);
                }
            }
        }
        Value::Null => {}
        other => out.push_str(&other.to_string()),
    }
}

/// Images and files cost the tokens of their digest, because megabytes of base64 are not megabytes of
/// tokens.
fn render_media(part: &Value, out: &mut String) {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("part");
    let digest = blake3::hash(part.to_string().as_bytes());
    out.push_str("<|");
    out.push_str(kind);
    out.push(' ');
    out.push_str(digest.to_hex().as_str());
    out.push_str("|>");
}

fn render_call(call: &Value, out: &mut String) {
    out.push_str("<|call|>");
    if let Some(function) = call.get("function").and_then(Value::as_object) {
        out.push_str(text_of(function, "name"));
        out.push_str(text_of(function, "arguments"));
    }
    if let Some(fields) = call.as_object() {
        render_rest(fields, &["function", "type", "index"], out);
    }
}

fn text_of<'a>(fields: &'a Map<String, Value>, key: &str) -> &'a str {
    fields.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn prompt(request: &Value) -> Prompt {
        Prompt::render(request.as_object().unwrap())
    }

    #[test]
    fn pieces_join_to_the_text_and_appended_text_changes_only_the_last() {
        let text =
            "Grüße aus Oslo, und noch ein Satz. ".repeat(60) + "\nshort\n\n" + &"x".repeat(2000);
        let cut: Vec<&str> = pieces(&text).collect();
        assert_eq!(cut.concat(), text);
        assert!(
            cut.iter()
                .all(|piece| piece.len() <= PIECE_BYTES && !piece.is_empty())
        );

        let longer = format!("{text} and more");
        let grown: Vec<&str> = pieces(&longer).collect();
        assert_eq!(grown[..cut.len() - 1], cut[..cut.len() - 1]);
    }

    #[test]
    fn a_prompt_depends_on_every_field_but_not_on_the_json_spelling() {
        let plain = prompt(&json!({"messages": [{"role": "user", "content": "hi"}]}));
        let parts = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": null}]});
        assert_eq!(plain, prompt(&parts));

        for other in [
            json!({"messages": [{"role": "system", "content": "hi"}]}),
            json!({"messages": [{"role": "user", "content": "hi", "name": "nils"}]}),
            json!({"messages": [{"role": "user", "content": "hi "}]}),
            json!({"tools": [{"type": "function"}], "messages": [{"role": "user", "content": "hi"}]}),
        ] {
            assert_ne!(plain, prompt(&other), "{other}");
        }
    }

    #[test]
    fn an_image_is_counted_by_its_digest_and_not_by_its_bytes() {
        let image = json!({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", "A".repeat(100_000))}}
        ]}]});
        assert!(prompt(&image).tokens(&super::super::estimate_tokens()) < 100);
    }
}
