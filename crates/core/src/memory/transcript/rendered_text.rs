//! The texts of one message: its pieces with labels, redacted and shortened.
//!
//! Counts over a whole range where that is needed: attachments, and tool calls and results that were
//! shown already. Called by [`super::format_transcript`].

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::tz::TimeZone;
use serde_json::Value;

use super::blocks;
use super::outline::outline;
use super::truncate::truncate_middle;
use crate::history::{AttachmentKind, MessagePiece, PlainText, Role};
use crate::memory::prompt::first_chars;
use crate::memory::redact::Redactor;
use crate::memory::render;
use crate::tokens::TokenCounter;

/// Tokens of a tool result that are shown, as published.
pub const RESULT_TOKENS: u32 = 5_000;
/// Tokens of the arguments of a tool call that are shown, as published.
pub const ARGUMENT_TOKENS: u32 = 2_000;

/// Characters of a tool's or a participant's name that are shown.
const NAME_CHARS: usize = 80;
/// Characters of a file name that are shown.
const LABEL_CHARS: usize = 120;

/// How a range of messages is written.
#[derive(Clone, Copy)]
pub struct TranscriptStyle<'a> {
    /// The time zone in which days begin.
    pub zone: &'a TimeZone,
    /// Measures results and arguments against their limits.
    pub counter: &'a dyn TokenCounter,
    /// Replaces secrets.
    pub redactor: &'a Redactor,
    /// Tags of blocks that clients put into user messages; these blocks are left out.
    pub omit_blocks: &'a [String],
}

impl std::fmt::Debug for TranscriptStyle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Style")
            .field("zone", &self.zone)
            .field("redactor", &self.redactor)
            .field("omit_blocks", &self.omit_blocks)
            .finish_non_exhaustive()
    }
}

/// A text with its label.
pub(super) struct LabelledText {
    pub(super) label: String,
    pub(super) text: String,
}

struct ToolCallState {
    name: String,
    arguments: String,
    /// The result that was shown last.
    result: Option<String>,
}

/// Reads the messages of one range in order.
pub(super) struct MessageReader<'a> {
    style: &'a TranscriptStyle<'a>,
    calls: HashMap<String, ToolCallState>,
    names: AttachmentNames,
}

/// Counts attachments over the whole range, each kind by itself.
#[derive(Default)]
pub(super) struct AttachmentNames {
    images: usize,
    sounds: usize,
    files: usize,
}

impl AttachmentNames {
    /// The name of the next attachment of this kind.
    pub(super) fn next(&mut self, kind: AttachmentKind) -> String {
        let (word, count) = match kind {
            AttachmentKind::Image => ("Image", &mut self.images),
            AttachmentKind::Audio => ("Audio", &mut self.sounds),
            AttachmentKind::File => ("File", &mut self.files),
        };
        *count += 1;
        format!("{word} #{count}")
    }
}

/// The label for the speaker of a message: `User`, `User maria`, `Assistant`.
pub(super) fn speaker_label(spoken: &PlainText) -> String {
    let role = match spoken.role {
        Role::System => "System",
        Role::User => "User",
        Role::Assistant => "Assistant",
        Role::Tool => "Tool result",
    };
    match spoken
        .name
        .as_deref()
        .map(clean_name)
        .filter(|n| !n.is_empty())
    {
        Some(name) => format!("{role} {name}"),
        None => role.to_owned(),
    }
}

impl<'a> MessageReader<'a> {
    pub(super) fn new(style: &'a TranscriptStyle<'a>) -> Self {
        Self {
            style,
            calls: HashMap::new(),
            names: AttachmentNames::default(),
        }
    }

    /// `text` without secrets.
    fn clean(&self, text: &str) -> String {
        self.style.redactor.clean(text)
    }

    /// `text` without the blocks that clients put into user messages.
    fn without_blocks<'t>(&self, role: Role, text: &'t str) -> Cow<'t, str> {
        match role {
            Role::User => blocks::replace_blocks(text, self.style.omit_blocks).into(),
            _ => text.into(),
        }
    }

    /// The texts of a message. None for an empty message, for a reminder of Diarist, and for
    /// calls and results that were shown before.
    pub(super) fn read(&mut self, spoken: &PlainText) -> Vec<LabelledText> {
        let mut texts = Vec::new();
        let mut label = speaker_label(spoken);
        let mut words: Vec<String> = Vec::new();
        // The result whose text is being collected.
        let mut result: Option<String> = None;
        for piece in &spoken.pieces {
            match piece {
                MessagePiece::Text(text) => {
                    if !["", render::REMINDER, render::BRIDGE].contains(&text.trim()) {
                        words.push(self.clean(self.without_blocks(spoken.role, text).trim()));
                    }
                }
                MessagePiece::Refusal(text) => {
                    words.push(format!("[declined] {}", self.clean(text)));
                }
                MessagePiece::Unknown(json) => {
                    let json = self.clean(json);
                    words.push(truncate_middle(&json, ARGUMENT_TOKENS, self.style.counter));
                }
                MessagePiece::Attachment { kind, label, .. } => {
                    words.push(self.attachment_text(*kind, label));
                }
                MessagePiece::Call {
                    id,
                    name,
                    arguments,
                } => {
                    self.flush(&mut texts, &label, &mut words, result.take());
                    texts.extend(self.read_call(id, name, arguments));
                }
                MessagePiece::Result { id } => {
                    self.flush(&mut texts, &label, &mut words, result.take());
                    label = self.result_label(id);
                    result = Some(id.clone());
                }
            }
        }
        self.flush(&mut texts, &label, &mut words, result);
        texts
    }

    fn flush(
        &mut self,
        texts: &mut Vec<LabelledText>,
        label: &str,
        words: &mut Vec<String>,
        result: Option<String>,
    ) {
        let text = std::mem::take(words).join("\n");
        let Some(id) = result else {
            if !text.is_empty() {
                texts.push(LabelledText {
                    label: label.to_owned(),
                    text,
                });
            }
            return;
        };
        let status = ResultStatus::from_text(&text);
        let shown_text = match status {
            _ if !text.is_empty() => truncate_middle(&text, RESULT_TOKENS, self.style.counter),
            _ => "[empty result]".to_owned(),
        };
        if let Some(call) = self.calls.get_mut(&id) {
            if call.result.as_ref() == Some(&shown_text) {
                return;
            }
            call.result = Some(shown_text.clone());
        }
        texts.push(LabelledText {
            label: label.replacen("result", status.label(), 1),
            text: shown_text,
        });
    }

    /// A tool call, unless it repeats one that still waits for its result. An equal id alone is no
    /// repetition: some models number their calls from the start in every round.
    fn read_call(&mut self, id: &str, tool: &str, arguments: &str) -> Option<LabelledText> {
        let name = clean_name(tool);
        let arguments_text = self.format_arguments(arguments);
        let key = if id.is_empty() { tool } else { id };
        let is_repeated = self.calls.get(key).is_some_and(|call| {
            call.result.is_none() && call.name == name && call.arguments == arguments_text
        });
        if is_repeated && !id.is_empty() {
            return None;
        }
        let call = ToolCallState {
            name: name.clone(),
            arguments: arguments_text.clone(),
            result: None,
        };
        self.calls.insert(key.to_owned(), call);
        Some(LabelledText {
            label: format!("Tool call {name}"),
            text: arguments_text,
        })
    }

    fn result_label(&self, id: &str) -> String {
        match self.calls.get(id) {
            Some(call) => format!("Tool result {}", call.name),
            None => format!("Tool result {}", clean_name(id))
                .trim_end()
                .to_owned(),
        }
    }

    fn attachment_text(&mut self, kind: AttachmentKind, label: &str) -> String {
        let attachment_name = self.names.next(kind);
        let label = self.clean(label).replace(['[', ']'], " ");
        let label = single_line(&label, LABEL_CHARS);
        if label.is_empty() {
            format!("[{attachment_name}]")
        } else {
            format!("[{attachment_name}: {label}]")
        }
    }

    fn format_arguments(&self, arguments: &str) -> String {
        let text = arguments.trim();
        if text.is_empty() || text == "{}" {
            return "[no arguments]".to_owned();
        }
        let cleaned = self.clean(text);
        let counter = self.style.counter;
        // A token has at least one byte.
        if cleaned.len() <= ARGUMENT_TOKENS as usize || counter.count(&cleaned) <= ARGUMENT_TOKENS {
            return cleaned;
        }
        match serde_json::from_str::<Value>(&cleaned) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => {
                outline(&value, ARGUMENT_TOKENS, counter)
            }
            _ => truncate_middle(&cleaned, ARGUMENT_TOKENS, counter),
        }
    }
}

/// How a tool call ended, as far as its result says so. The protocol has no field for it; these are the
/// forms that tools and agents use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultStatus {
    Result,
    Error,
    Denied,
}

/// The largest result that is parsed as JSON to learn how it ended. Results that report a failure are
/// short.
const MAX_STATUS_BYTES: usize = 64 * 1024;

impl ResultStatus {
    fn label(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error => "error",
            Self::Denied => "denied",
        }
    }

    fn from_text(text: &str) -> Self {
        let text = text.trim_start();
        if text.starts_with('{') && text.len() <= MAX_STATUS_BYTES {
            return serde_json::from_str(text)
                .map_or(Self::Result, |value| Self::from_json(&value));
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

    fn from_json(value: &Value) -> Self {
        let field = |key: &str| value.get(key);
        let is_true = |key: &str| field(key).and_then(Value::as_bool) == Some(true);
        if is_true("denied") {
            return Self::Denied;
        }
        let failed = field("error").is_some_and(|error| match error {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(true) | Value::Number(_) => true,
        });
        // A number under `error` is a code, and 0 means success.
        let is_zero_code = field("error")
            .and_then(Value::as_f64)
            .is_some_and(|code| code == 0.0);
        if is_true("is_error") || is_true("isError") || failed && !is_zero_code {
            return Self::Error;
        }
        Self::Result
    }
}

/// A name on one line, without a colon that could end its label.
fn clean_name(text: &str) -> String {
    single_line(&text.replace(':', "."), NAME_CHARS)
}

fn single_line(text: &str, limit: usize) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let joined = words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    first_chars(&joined, limit).to_owned()
}
