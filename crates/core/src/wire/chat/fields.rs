//! One message as written: its fields, read once and borrowed from the body.
//!
//! A value that is certainly no chat message is an error. The meaning of the fields is decided by
//! [`super::fingerprint`] and [`super::plain_text`], which both read this form.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::parse_error::{ParseError, read};
use super::string;
use super::text::{Text, Tree, is_cache_marker};
use crate::history::Role;
use crate::wire::scan::Walk;

/// The fields of a message.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pub(super) role: Role,
    /// The client's spelling of the role: `developer` is a system message too.
    pub(super) raw_role: Text<'a>,
    pub(super) content: Content<'a>,
    pub(super) name: Option<Text<'a>>,
    pub(super) refusal: Option<Text<'a>>,
    pub(super) tool_calls: Vec<ToolCall<'a>>,
    pub(super) function_call: Option<Function<'a>>,
    pub(super) audio: Tree<'a>,
    pub(super) answers: Option<Answer<'a>>,
    /// Fields that this version does not know, without empty ones. Not kept for assistant messages:
    /// clients may or may not send back the further fields of an answer.
    pub(super) unknown: Vec<(Text<'a>, Tree<'a>)>,
    /// Whether the message, or a part of its content, has a mark for the provider's cache.
    pub(super) has_cache_mark: bool,
}

/// The value of `content`.
#[derive(Debug, Default)]
pub(super) enum Content<'a> {
    #[default]
    Nothing,
    Text(Text<'a>),
    /// Parts; each is an object.
    Parts(Vec<Tree<'a>>),
}

/// How a result names its call.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// `tool_call_id`.
    Call(Text<'a>),
    /// The function's name, in the legacy role `function`.
    Function(Text<'a>),
}

/// A member of `tool_calls`. Other fields (`index`, `type`, cache markers) are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct ToolCall<'a> {
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    pub(super) function: Option<Function<'a>>,
    pub(super) custom: Option<Custom<'a>>,
}

/// A call of a function.
#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    /// JSON as text, if the model wrote any.
    pub(super) arguments: Option<Text<'a>>,
}

/// A call of a tool that takes free text.
#[derive(Debug, Deserialize)]
pub(super) struct Custom<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    pub(super) input: Option<Text<'a>>,
}

impl<'a> Fields<'a> {
    /// Reads the message that begins at `at`, and returns where it ends.
    pub(super) fn read(text: &'a str, at: usize) -> Result<(Self, usize), ParseError> {
        let mut members = Walk::object(text, at).ok_or(ParseError::MessageNotAnObject)?;
        let mut raw_fields = RawFields::default();
        while let Some(key) = members.key()? {
            let key = string::decode(&text[key]).ok_or(ParseError::InvalidJson)?;
            raw_fields.member(key, &text[members.value()?])?;
        }
        Ok((raw_fields.into_fields()?, members.at()))
    }
}

/// Fields that mean nothing here: settings for the provider, and the model's thinking, which clients
/// drop, empty or add as they like.
fn is_ignored_field(key: &str) -> bool {
    is_cache_marker(key)
        || matches!(
            key,
            "type"
                | "index"
                | "reasoning"
                | "reasoning_content"
                | "reasoning_details"
                | "reasoning_text"
                | "reasoning_opaque"
                | "thinking"
                | "thinking_blocks"
        )
}

/// A message whose role is not known yet.
#[derive(Default)]
struct RawFields<'a> {
    present: [bool; KNOWN_FIELDS.len()],
    role: Option<Text<'a>>,
    content: Content<'a>,
    name: Option<Text<'a>>,
    refusal: Option<Text<'a>>,
    tool_calls: Option<Vec<ToolCall<'a>>>,
    function_call: Option<Function<'a>>,
    audio: Option<Tree<'a>>,
    tool_call_id: Option<Text<'a>>,
    unknown: BTreeMap<Text<'a>, &'a str>,
    has_cache_mark: bool,
}

/// Known fields. If one stands twice, no two readers agree on the message.
const KNOWN_FIELDS: [&str; 8] = [
    "role",
    "content",
    "name",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
    "tool_call_id",
];

impl<'a> RawFields<'a> {
    fn member(&mut self, key: Cow<'a, str>, json: &'a str) -> Result<(), ParseError> {
        if let Some(index) = KNOWN_FIELDS.iter().position(|field| *field == key)
            && std::mem::replace(&mut self.present[index], true)
        {
            return Err(ParseError::DuplicateKey);
        }
        match &*key {
            "role" => self.role = read(json)?,
            "content" => self.content = Content::read(json)?,
            "name" => self.name = read(json)?,
            "refusal" => self.refusal = read(json)?,
            "tool_calls" => self.tool_calls = read(json)?,
            "function_call" => self.function_call = read(json)?,
            "audio" => self.audio = read(json)?,
            "tool_call_id" => self.tool_call_id = read(json)?,
            key if is_ignored_field(key) => {
                self.has_cache_mark |= is_cache_marker(key) && json != "null";
                read::<IgnoredAny>(json)?;
            }
            _ => {
                // The last one counts, but all must be JSON.
                if let Some(earlier) = self.unknown.insert(Text(key), json) {
                    read::<IgnoredAny>(earlier)?;
                }
            }
        }
        Ok(())
    }

    fn into_fields(self) -> Result<Fields<'a>, ParseError> {
        let raw_role = self.role.ok_or(ParseError::UnknownRole)?;
        let role = match &*raw_role {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" | "function" => Role::Tool,
            _ => return Err(ParseError::UnknownRole),
        };
        let answers = match (&*raw_role, &self.tool_call_id, &self.name) {
            ("tool", Some(id), _) => Some(Answer::Call(id.clone())),
            ("function", _, Some(name)) => Some(Answer::Function(name.clone())),
            ("tool" | "function", ..) => return Err(ParseError::WrongType),
            _ => None,
        };
        let tool_calls = self.tool_calls.unwrap_or_default();
        let has_calls = !tool_calls.is_empty() || self.function_call.is_some();
        let malformed = |call: &ToolCall<'_>| call.function.is_none() && call.custom.is_none();
        if has_calls && role != Role::Assistant || tool_calls.iter().any(malformed) {
            return Err(ParseError::WrongType);
        }
        let mut unknown = Vec::new();
        for (key, json) in self.unknown {
            if role == Role::Assistant {
                read::<IgnoredAny>(json)?;
                continue;
            }
            let mut value: Tree<'a> = read(json)?;
            value.strip();
            if !value.is_empty() {
                unknown.push((key, value));
            }
        }
        let stray = self.tool_call_id.filter(|id| !id.is_empty());
        if let (Some(id), "system" | "developer" | "user" | "function") = (stray, &*raw_role) {
            unknown.push((Text("tool_call_id".into()), Tree::Text(id)));
        }
        Ok(Fields {
            has_cache_mark: self.has_cache_mark || self.content.has_cache_mark(),
            role,
            raw_role,
            content: self.content,
            name: self.name.filter(|name| !name.is_empty()),
            refusal: self.refusal.filter(|refusal| !refusal.is_empty()),
            tool_calls,
            function_call: self.function_call,
            audio: self.audio.unwrap_or(Tree::Null),
            answers,
            unknown,
        })
    }
}

impl<'a> Content<'a> {
    fn has_cache_mark(&self) -> bool {
        let Self::Parts(parts) = self else {
            return false;
        };
        parts.iter().any(|part| match part {
            Tree::Map(members) => members
                .iter()
                .any(|(key, value)| is_cache_marker(key) && *value != Tree::Null),
            _ => false,
        })
    }

    fn read(json: &'a str) -> Result<Self, ParseError> {
        if json.starts_with('"') {
            let text = string::decode(json).ok_or(ParseError::InvalidJson)?;
            return Ok(Self::Text(Text(text)));
        }
        match read(json)? {
            Tree::Null => Ok(Self::Nothing),
            Tree::List(parts) if parts.iter().all(|part| matches!(part, Tree::Map(_))) => {
                Ok(Self::Parts(parts))
            }
            _ => Err(ParseError::WrongType),
        }
    }
}
