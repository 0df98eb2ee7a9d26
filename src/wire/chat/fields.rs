//! One message as it is written: its fields, read once, borrowed from the body.
//!
//! What is certainly no chat message is an error here. What the fields mean is decided by
//! [`super::meaning`] (fingerprints) and [`super::spoken`] (words), which both read this one form.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::NotParsed;
use super::text::{Text, Tree, is_cache_marker};
use crate::history::Role;

/// The fields of a message.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pub(super) role: Role,
    /// The role as the client spells it: `developer` is a system message too.
    pub(super) spelled: Text<'a>,
    pub(super) content: Content<'a>,
    pub(super) name: Option<Text<'a>>,
    pub(super) refusal: Option<Text<'a>>,
    pub(super) tool_calls: Vec<ToolCall<'a>>,
    pub(super) function_call: Option<Function<'a>>,
    pub(super) audio: Tree<'a>,
    pub(super) answers: Option<Answer<'a>>,
    /// Fields this version does not know, empty ones left out. None on assistant messages: what a
    /// model's answer carries besides comes back as echo, or not.
    pub(super) others: Vec<(Text<'a>, Tree<'a>)>,
}

/// What stands in `content`.
#[derive(Debug, Default)]
pub(super) enum Content<'a> {
    #[default]
    Nothing,
    Text(Text<'a>),
    /// Parts; each is an object.
    Parts(Vec<Tree<'a>>),
}

/// What a result names its call by.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// `tool_call_id`.
    Call(Text<'a>),
    /// The function's name, in the legacy role `function`.
    Function(Text<'a>),
}

/// A member of `tool_calls`. Members it does not name (`index`, `type`, cache markers) are echo.
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
    /// Reads one message; `json` is exactly its bytes.
    pub(super) fn read(json: &'a str) -> Result<Self, NotParsed> {
        if !json.starts_with('{') {
            return Err(NotParsed::MessageNotAnObject);
        }
        let written: Written<'a> = serde_json::from_str(json).map_err(|e| NotParsed::of(&e))?;
        let spelled = written.role.ok_or(NotParsed::UnknownRole)?;
        let role = match &*spelled {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" | "function" => Role::Tool,
            _ => return Err(NotParsed::UnknownRole),
        };
        let answers = match (&*spelled, &written.tool_call_id, &written.name) {
            ("tool", Some(id), _) => Some(Answer::Call(id.clone())),
            ("function", _, Some(name)) => Some(Answer::Function(name.clone())),
            ("tool" | "function", ..) => return Err(NotParsed::WrongType),
            _ => None,
        };
        let tool_calls = written.tool_calls.unwrap_or_default();
        let calls_something = !tool_calls.is_empty() || written.function_call.is_some();
        let malformed = |call: &ToolCall<'_>| call.function.is_none() && call.custom.is_none();
        if calls_something && role != Role::Assistant || tool_calls.iter().any(malformed) {
            return Err(NotParsed::WrongType);
        }
        let mut others = Vec::new();
        if role != Role::Assistant {
            others = unknown(written.others)?;
            if let Some(stray) = written
                .tool_call_id
                .filter(|id| &*spelled != "tool" && !id.is_empty())
            {
                others.push((Text("tool_call_id".into()), Tree::Text(stray)));
            }
        }
        Ok(Self {
            role,
            spelled,
            content: written.content,
            name: written.name.filter(|name| !name.is_empty()),
            refusal: written.refusal.filter(|refusal| !refusal.is_empty()),
            tool_calls,
            function_call: written.function_call,
            audio: written.audio.unwrap_or(Tree::Null),
            answers,
            others,
        })
    }
}

fn unknown<'a>(
    others: BTreeMap<Text<'a>, &'a RawValue>,
) -> Result<Vec<(Text<'a>, Tree<'a>)>, NotParsed> {
    let mut known = Vec::with_capacity(others.len());
    for (key, raw) in others {
        let mut value: Tree<'a> = serde_json::from_str(raw.get()).map_err(|e| NotParsed::of(&e))?;
        value.strip();
        if !value.is_empty() {
            known.push((key, value));
        }
    }
    Ok(known)
}

/// Fields that say nothing: what steers a provider, and what a model thought, which clients drop,
/// empty or add as they like.
fn says_nothing(key: &str) -> bool {
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

#[derive(Default)]
struct Written<'a> {
    role: Option<Text<'a>>,
    content: Content<'a>,
    name: Option<Text<'a>>,
    refusal: Option<Text<'a>>,
    tool_calls: Option<Vec<ToolCall<'a>>>,
    function_call: Option<Function<'a>>,
    audio: Option<Tree<'a>>,
    tool_call_id: Option<Text<'a>>,
    others: BTreeMap<Text<'a>, &'a RawValue>,
}

/// Known fields: twice the same one, and no two readers agree on what was said.
const KNOWN: [&str; 8] = [
    "role",
    "content",
    "name",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
    "tool_call_id",
];

impl<'de: 'a, 'a> Deserialize<'de> for Written<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Written<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut written = Written::default();
                let mut seen = [false; KNOWN.len()];
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if let Some(index) = KNOWN.iter().position(|known| **known == *key)
                        && std::mem::replace(&mut seen[index], true)
                    {
                        return Err(A::Error::duplicate_field(KNOWN[index]));
                    }
                    match &*key {
                        "role" => written.role = Some(map.next_value()?),
                        "content" => written.content = map.next_value()?,
                        "name" => written.name = map.next_value()?,
                        "refusal" => written.refusal = map.next_value()?,
                        "tool_calls" => written.tool_calls = map.next_value()?,
                        "function_call" => written.function_call = map.next_value()?,
                        "audio" => written.audio = map.next_value()?,
                        "tool_call_id" => written.tool_call_id = map.next_value()?,
                        key if says_nothing(key) => {
                            map.next_value::<IgnoredAny>()?;
                        }
                        _ => {
                            let value = map.next_value()?;
                            written.others.insert(key, value);
                        }
                    }
                }
                Ok(written)
            }
        }
        deserializer.deserialize_map(Read)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("null, a string or a list of parts")
            }

            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(Content::Nothing)
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text(text.into())))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text(text.to_owned().into())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element::<Tree<'de>>()? {
                    if !matches!(part, Tree::Map(_)) {
                        return Err(A::Error::custom("a part is an object"));
                    }
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_any(Read)
    }
}
