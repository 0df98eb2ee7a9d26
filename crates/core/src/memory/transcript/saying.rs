//! Who says what in one message: its pieces as labelled texts, redacted and shortened.
//!
//! Keeps count over a whole range of what needs it: attachments, and which tool calls and results
//! were told already.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;

use super::capped::capped;
use super::outline::outline;
use super::{Style, blocks};
use crate::history::{Attachment, Piece, Role, Spoken};
use crate::memory::prompt::head;
use crate::memory::render;

/// Tokens of a tool result that are shown, as published.
pub const RESULT_TOKENS: u32 = 5_000;
/// Tokens of the arguments of a tool call that are shown, as published.
pub const ARGUMENT_TOKENS: u32 = 2_000;

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
pub(super) struct Reader<'a> {
    style: &'a Style<'a>,
    calls: HashMap<String, Call>,
    names: Names,
}

/// Counts attachments: each kind for itself, over the whole range.
#[derive(Default)]
pub(super) struct Names {
    images: usize,
    sounds: usize,
    files: usize,
}

impl Names {
    /// The name of the next attachment of this kind.
    pub(super) fn next(&mut self, kind: Attachment) -> String {
        let (word, count) = match kind {
            Attachment::Image => ("Image", &mut self.images),
            Attachment::Audio => ("Audio", &mut self.sounds),
            Attachment::File => ("File", &mut self.files),
        };
        *count += 1;
        format!("{word} #{count}")
    }
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

impl<'a> Reader<'a> {
    pub(super) fn new(style: &'a Style<'a>) -> Self {
        Self {
            style,
            calls: HashMap::new(),
            names: Names::default(),
        }
    }

    /// `text` without what must not be shown.
    fn clean(&self, text: &str) -> String {
        self.style.redactor.clean(text)
    }

    /// `text` as its author wrote it: clients put blocks of their own into what users say.
    fn own_words<'t>(&self, role: Role, text: &'t str) -> Cow<'t, str> {
        match role {
            Role::User => blocks::without(text, self.style.omit_blocks).into(),
            _ => text.into(),
        }
    }

    /// What a message says. Nothing for an empty one, for an echo of what is our own, and for calls
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
                    let own = render::before_block(text);
                    if !["", render::REMINDER, render::BRIDGE].contains(&own.trim()) {
                        words.push(self.clean(self.own_words(spoken.role, own).trim()));
                    }
                }
                Piece::Refusal(text) => words.push(format!("[declined] {}", self.clean(text))),
                Piece::Unknown(json) => {
                    let json = self.clean(json);
                    words.push(capped(&json, ARGUMENT_TOKENS, self.style.counter));
                }
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
        let Some(id) = result else {
            if !text.is_empty() {
                sayings.push(Saying {
                    who: who.to_owned(),
                    what: text,
                });
            }
            return;
        };
        let ending = Ending::of(&text);
        let what = match ending {
            _ if !text.is_empty() => capped(&text, RESULT_TOKENS, self.style.counter),
            _ => "[empty result]".to_owned(),
        };
        if let Some(call) = self.calls.get_mut(&id) {
            if call.result.as_ref() == Some(&what) {
                return;
            }
            call.result = Some(what.clone());
        }
        sayings.push(Saying {
            who: who.replacen("result", ending.word(), 1),
            what,
        });
    }

    /// A call, unless it only repeats one that still waits for its result. Ids are no reason to
    /// leave a call out by themselves: some models number their calls anew in every round.
    fn call(&mut self, id: &str, tool: &str, arguments: &str) -> Option<Saying> {
        let name = name(tool);
        let what = self.arguments(arguments);
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
        let called = self.names.next(kind);
        let label = self.clean(label).replace(['[', ']'], " ");
        let label = plain(&label, LABEL_CHARS);
        if label.is_empty() {
            format!("[{called}]")
        } else {
            format!("[{called}: {label}]")
        }
    }

    fn arguments(&self, arguments: &str) -> String {
        let text = arguments.trim();
        if text.is_empty() || text == "{}" {
            return "[no arguments]".to_owned();
        }
        let cleaned = self.clean(text);
        let counter = self.style.counter;
        // A token is a byte at least.
        if cleaned.len() <= ARGUMENT_TOKENS as usize || counter.count(&cleaned) <= ARGUMENT_TOKENS {
            return cleaned;
        }
        match serde_json::from_str::<Value>(&cleaned) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => {
                outline(&value, ARGUMENT_TOKENS, counter)
            }
            _ => capped(&cleaned, ARGUMENT_TOKENS, counter),
        }
    }
}

/// How a call ended, as far as its result says so. The protocol has no field for it; these are the
/// forms that tools and agents use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Result,
    Error,
    Denied,
}

/// Longest result that is read as JSON to learn how it ended: one that reports a failure is short.
const ENDING_BYTES: usize = 64 * 1024;

impl Ending {
    fn word(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error => "error",
            Self::Denied => "denied",
        }
    }

    fn of(text: &str) -> Self {
        let text = text.trim_start();
        if text.starts_with('{') && text.len() <= ENDING_BYTES {
            return serde_json::from_str(text).map_or(Self::Result, |value| Self::told(&value));
        }
        let starts = |word: &str| {
            text.get(..word.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        if [
            "error:",
            "traceback (most recent call last)",
            "<tool_use_error>",
        ]
        .into_iter()
        .any(starts)
        {
            Self::Error
        } else if [
            "permission denied by",
            "the user doesn't want to",
            "user rejected",
            "denied:",
        ]
        .into_iter()
        .any(starts)
        {
            Self::Denied
        } else {
            Self::Result
        }
    }

    fn told(value: &Value) -> Self {
        let says = |key: &str| value.get(key);
        let yes = |key: &str| says(key).and_then(Value::as_bool) == Some(true);
        if yes("denied") {
            return Self::Denied;
        }
        let failed = says("error").is_some_and(|error| match error {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(true) | Value::Number(_) => true,
        });
        // A number under `error` is a code, and 0 says that all is well.
        let code = says("error")
            .and_then(Value::as_f64)
            .is_some_and(|code| code == 0.0);
        if yes("is_error") || yes("isError") || failed && !code {
            return Self::Error;
        }
        Self::Result
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
