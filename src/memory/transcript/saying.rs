//! Who says what in one message: its pieces as labelled texts, redacted and shortened.
//!
//! Keeps count over a whole range of what needs it: attachments, and which tool calls and results
//! were told already.

use std::collections::HashMap;

use serde_json::Value;

use crate::history::{Attachment, Piece, Role, Spoken};
use crate::memory::prompt::{head, tail};
use crate::memory::{redact, render};

/// Characters of a tool result that are shown: 5,000 tokens, as published, at 4 characters each.
pub const RESULT_CHARS: usize = 20_000;
/// Characters of the arguments of a tool call that are shown: 2,000 tokens, as published.
pub const ARGUMENT_CHARS: usize = 8_000;
/// Characters of any other text that are shown. Not published: it keeps a pasted book from
/// overflowing the window of the model that observes.
pub const TEXT_CHARS: usize = 200_000;

/// Characters of a tool's or a participant's name that are shown.
const NAME_CHARS: usize = 80;
/// Characters of a file name that are shown.
const LABEL_CHARS: usize = 120;

/// One labelled text.
pub(super) struct Saying {
    pub(super) who: String,
    pub(super) what: String,
}

struct Call {
    name: String,
    arguments: String,
    /// The result told last.
    result: Option<String>,
}

/// Reads the messages of one range in order.
#[derive(Default)]
pub(super) struct Reader {
    calls: HashMap<String, Call>,
    images: usize,
    sounds: usize,
    files: usize,
}

/// The label of who speaks in a message: `User`, `User maria`, `Assistant`.
pub(super) fn speaker(spoken: &Spoken) -> String {
    let role = match spoken.role {
        Role::System => "System",
        Role::User => "User",
        Role::Assistant => "Assistant",
        Role::Tool => "Tool result",
    };
    match spoken.name.as_deref().map(name).filter(|n| !n.is_empty()) {
        Some(name) => format!("{role} {name}"),
        None => role.to_owned(),
    }
}

impl Reader {
    /// What a message says. Nothing for an empty one, for an echo of our own block, and for calls
    /// and results that were told before.
    pub(super) fn read(&mut self, spoken: &Spoken) -> Vec<Saying> {
        let mut sayings = Vec::new();
        let mut who = speaker(spoken);
        let mut words: Vec<String> = Vec::new();
        // The result whose words are being collected.
        let mut result: Option<String> = None;
        for piece in &spoken.pieces {
            match piece {
                Piece::Text(text) => {
                    let own = render::before_block(text).trim();
                    if !own.is_empty() && own != render::REMINDER {
                        words.push(redact::clean(own));
                    }
                }
                Piece::Refusal(text) => words.push(format!("[declined] {}", redact::clean(text))),
                Piece::Unknown(json) => words.push(shorten(&redact::clean(json), ARGUMENT_CHARS)),
                Piece::Attachment { kind, label, .. } => words.push(self.attachment(*kind, label)),
                Piece::Call {
                    id,
                    name,
                    arguments,
                } => {
                    self.flush(&mut sayings, &who, &mut words, result.take());
                    sayings.extend(self.call(id, name, arguments));
                }
                Piece::Result { id } => {
                    self.flush(&mut sayings, &who, &mut words, result.take());
                    who = self.result_label(id);
                    result = Some(id.clone());
                }
            }
        }
        self.flush(&mut sayings, &who, &mut words, result);
        sayings
    }

    fn flush(
        &mut self,
        sayings: &mut Vec<Saying>,
        who: &str,
        words: &mut Vec<String>,
        result: Option<String>,
    ) {
        let text = std::mem::take(words).join("\n");
        let what = match result {
            None if text.is_empty() => return,
            None => shorten(&text, TEXT_CHARS),
            Some(id) => {
                let text = if text.is_empty() {
                    "[empty result]".to_owned()
                } else {
                    shorten(&text, RESULT_CHARS)
                };
                if let Some(call) = self.calls.get_mut(&id) {
                    if call.result.as_ref() == Some(&text) {
                        return;
                    }
                    call.result = Some(text.clone());
                }
                text
            }
        };
        sayings.push(Saying {
            who: who.to_owned(),
            what,
        });
    }

    /// A call, unless it only repeats one that still waits for its result. Ids are no reason to
    /// leave a call out by themselves: some models number their calls anew in every round.
    fn call(&mut self, id: &str, tool: &str, arguments: &str) -> Option<Saying> {
        let name = name(tool);
        let what = show_arguments(arguments);
        let key = if id.is_empty() { tool } else { id };
        let told = self.calls.get(key).is_some_and(|call| {
            call.result.is_none() && call.name == name && call.arguments == what
        });
        if told && !id.is_empty() {
            return None;
        }
        let call = Call {
            name: name.clone(),
            arguments: what.clone(),
            result: None,
        };
        self.calls.insert(key.to_owned(), call);
        Some(Saying {
            who: format!("Tool call {name}"),
            what,
        })
    }

    fn result_label(&self, id: &str) -> String {
        match self.calls.get(id) {
            Some(call) => format!("Tool result {}", call.name),
            None => format!("Tool result {}", name(id)).trim_end().to_owned(),
        }
    }

    fn attachment(&mut self, kind: Attachment, label: &str) -> String {
        let (word, count) = match kind {
            Attachment::Image => ("Image", &mut self.images),
            Attachment::Audio => ("Audio", &mut self.sounds),
            Attachment::File => ("File", &mut self.files),
        };
        *count += 1;
        let label = redact::clean(label).replace(['[', ']'], " ");
        let label = plain(&label, LABEL_CHARS);
        if label.is_empty() {
            format!("[{word} #{count}]")
        } else {
            format!("[{word} #{count}: {label}]")
        }
    }
}

/// A name on one line that can not be taken for the end of its label.
fn name(text: &str) -> String {
    plain(&text.replace(':', "."), NAME_CHARS)
}

fn plain(text: &str, limit: usize) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let joined = words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    head(&joined, limit).to_owned()
}

fn show_arguments(arguments: &str) -> String {
    let text = redact::clean(arguments.trim());
    if text.is_empty() || text == "{}" {
        "[no arguments]".to_owned()
    } else if text.chars().count() <= ARGUMENT_CHARS {
        text
    } else {
        outline(&text).unwrap_or_else(|| shorten(&text, ARGUMENT_CHARS))
    }
}

/// Long arguments as JSON with their long strings shortened until they fit, so that the names and
/// short values around one long text (a file's content, say) stay to be seen.
fn outline(arguments: &str) -> Option<String> {
    let value: Value = serde_json::from_str(arguments).ok()?;
    [2_000, 500, 160].into_iter().find_map(|limit| {
        let mut value = value.clone();
        shorten_strings(&mut value, limit);
        let text = value.to_string();
        (text.chars().count() <= ARGUMENT_CHARS).then_some(text)
    })
}

fn shorten_strings(value: &mut Value, limit: usize) {
    match value {
        Value::String(text) => *text = shorten(text, limit),
        Value::Array(items) => items.iter_mut().for_each(|v| shorten_strings(v, limit)),
        Value::Object(fields) => fields.values_mut().for_each(|v| shorten_strings(v, limit)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// At most `limit` characters of `text`: three parts from its start, one from its end (where errors
/// and totals stand), and between them how many were left out.
fn shorten(text: &str, limit: usize) -> String {
    // Cheap for the common case: there are never more characters than bytes.
    if text.len() <= limit {
        return text.to_owned();
    }
    let count = text.chars().count();
    if count <= limit {
        return text.to_owned();
    }
    let end = limit / 4;
    format!(
        "{} [... {} characters left out ...] {}",
        head(text, limit - end),
        count - limit,
        tail(text, end)
    )
}
