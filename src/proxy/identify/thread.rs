//! Finds the client's name for its conversation: the first usable name among the [`Sources`], its place, and
//! the names that were found but not used.
//!
//! A name groups requests and grants nothing. A sub-agent's request gets its own name or none, never that of
//! the conversation it works for. Called by `read_request` once the body is parsed.

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName};
use serde_json::Value;

use super::sources::{Extract, Location, Source, Sources};
use crate::wire;
use crate::wire::chat::FieldValue;

/// The longest name accepted, in bytes: OpenRouter's limit for its session ids.
const MAX_KEY_BYTES: usize = 256;

/// Headers that name the conversation a sub-agent works for: of opencode and LiteLLM, and of Codex.
static PARENT_HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-parent-session-id"),
    HeaderName::from_static("x-codex-parent-thread-id"),
];

/// Codex names the kind of sub-agent here.
const SUBAGENT_HEADER: HeaderName = HeaderName::from_static("x-openai-subagent");

/// Codex's description of a turn, as JSON.
const TURN_HEADER: HeaderName = HeaderName::from_static("x-codex-turn-metadata");

/// Codex's session headers. A sub-agent shares the session with the conversation it works for.
static SESSION_HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("session-id"),
    HeaderName::from_static("session_id"),
];

/// The client's name for a conversation, as far as a request has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// The name.
    pub key: Option<String>,
    /// Where the name was, for the audit: a header's name, or `body.` and the path of a field.
    pub source: Option<String>,
    /// Names that were found and not used: the place, a colon, and the reason.
    pub ignored: Vec<String>,
    /// The name, if it was dropped because many conversations use it.
    dropped: Option<String>,
    /// Whether a sub-agent sent the request. It must not write into the conversation it works for.
    pub child: bool,
}

impl Thread {
    /// The name as the client sent it, also if it was dropped.
    pub fn sent_key(&self) -> Option<&str> {
        self.key.as_deref().or(self.dropped.as_deref())
    }

    /// Removes the name, because many conversations use it.
    pub fn drop_key(&mut self) {
        self.dropped = self.key.take();
        if let Some(by) = self.source.take() {
            self.ignored.push(format!("{by}:many_conversations"));
        }
    }
}

/// Why a name is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IgnoredReason {
    /// The header occurs more than once, with different values.
    Ambiguous,
    /// Longer than [`MAX_KEY_BYTES`].
    TooLong,
    /// Not visible ASCII, or not the form that the place requires.
    Malformed,
    /// The field is not text.
    NotText,
    /// The name is that of the conversation which the sub-agent works for.
    Parent,
}

impl IgnoredReason {
    fn name(self) -> &'static str {
        match self {
            Self::Ambiguous => "ambiguous",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::NotText => "not_text",
            Self::Parent => "parent",
        }
    }
}

/// Reads the name of the conversation.
pub fn find_thread(headers: &HeaderMap, parsed: &wire::Request, sources: &Sources) -> Thread {
    let sub_agent = SubAgent::from_headers(headers);
    let mut found = Thread {
        child: sub_agent.is_some(),
        ..Thread::default()
    };
    let agent = headers
        .get(USER_AGENT)
        .map(|value| value.as_bytes().to_ascii_lowercase())
        .unwrap_or_default();
    let applies = |source: &&Source| {
        let has_prefix = |with: &&str| agent.starts_with(with.as_bytes());
        source.agents.is_empty() || source.agents.iter().any(has_prefix)
    };
    let lengths = NameLengths::from_headers(headers);
    for source in sources.iter().filter(applies) {
        if matches!(&source.location, Location::Header(name) if !lengths.contains(name)) {
            continue;
        }
        for (label, candidate) in read_source(source, headers, parsed, sources) {
            let key = candidate.and_then(|name| match &sub_agent {
                Some(sub_agent) if sub_agent.parents.contains(&name) => Err(IgnoredReason::Parent),
                _ => Ok(name),
            });
            match key {
                Ok(key) => {
                    found.key = Some(key);
                    found.source = Some(label);
                    return found;
                }
                Err(reason) => found.ignored.push(format!("{label}:{}", reason.name())),
            }
        }
    }
    found
}

/// Which lengths the names of a request's headers have, one bit for each. Most of the table's headers are in no
/// request: to see that here takes a fiftieth of the time of a look-up.
struct NameLengths(u64);

impl NameLengths {
    fn from_headers(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |bits, name| bits | Self::bit(name)))
    }

    /// Whether there may be a header of this `name`.
    fn contains(&self, name: &HeaderName) -> bool {
        self.0 & Self::bit(name) != 0
    }

    fn bit(name: &HeaderName) -> u64 {
        1 << (name.as_str().len() % 64)
    }
}

/// A sub-agent, and the names of the conversation it works for.
struct SubAgent {
    parents: Vec<String>,
}

impl SubAgent {
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let turn = headers
            .get(TURN_HEADER)
            .and_then(|value| json(value.as_bytes()));
        let turn = |name| turn.as_ref().and_then(|turn| turn.get(name)?.as_str());
        // A request of the conversation itself is a `turn`; the other kinds are side tasks (`compaction`, `review`).
        let is_side_task = turn("request_kind").is_some_and(|kind| kind != "turn");
        let is_codex = is_side_task || headers.contains_key(SUBAGENT_HEADER);
        if !is_codex && !PARENT_HEADERS.iter().any(|name| headers.contains_key(name)) {
            return None;
        }
        let named = PARENT_HEADERS
            .iter()
            .chain(SESSION_HEADERS.iter().filter(|_| is_codex))
            .flat_map(|name| headers.get_all(name))
            .filter_map(|value| Some(value.to_str().ok()?.trim()));
        let session = turn("session_id").filter(|_| is_codex);
        Some(Self {
            parents: named.chain(session).map(str::to_owned).collect(),
        })
    }
}

/// The names at one place, or the reasons why they cannot be used, each with the place's label.
fn read_source(
    source: &Source,
    headers: &HeaderMap,
    parsed: &wire::Request,
    sources: &Sources,
) -> Vec<(String, Result<String, IgnoredReason>)> {
    match &source.location {
        Location::Header(name) => {
            let value = header(headers, name, source.extract);
            value
                .map(|value| (name.as_str().to_owned(), value))
                .into_iter()
                .collect()
        }
        Location::AnySession => {
            let mut names: Vec<&HeaderName> = headers
                .keys()
                .filter(|name| is_session(name) && !sources.lists_header(name))
                .collect();
            // The order of headers means nothing.
            names.sort_by_key(|name| name.as_str());
            let found = names.into_iter().filter_map(|name| {
                let value = header(headers, name, source.extract)?;
                Some((name.as_str().to_owned(), value))
            });
            found.collect()
        }
        Location::Body(path) => {
            let value = match parsed.field(path) {
                None => None,
                // The field may hold an object because another source reads one of its members: not worth a report.
                Some(FieldValue::Unusable) => {
                    let within = format!("{path}.");
                    let reads_member = |source: &Source| matches!(&source.location, Location::Body(other) if other.starts_with(&within));
                    (!sources.iter().any(reads_member)).then_some(Err(IgnoredReason::NotText))
                }
                Some(FieldValue::Text(text)) => extract_name(text.as_bytes(), source.extract),
            };
            value
                .map(|value| (format!("body.{path}"), value))
                .into_iter()
                .collect()
        }
    }
}

/// Whether the name has the form `x-<vendor>-session-id`. `x-parent-session-id` names another conversation.
fn is_session(name: &HeaderName) -> bool {
    let vendor = name
        .as_str()
        .strip_prefix("x-")
        .and_then(|name| name.strip_suffix("-session-id"));
    vendor.is_some_and(|vendor| !vendor.is_empty() && vendor.len() < 64 && vendor != "parent")
}

fn header(
    headers: &HeaderMap,
    name: &HeaderName,
    extract: Extract,
) -> Option<Result<String, IgnoredReason>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    if values.any(|other| other != first) {
        return Some(Err(IgnoredReason::Ambiguous));
    }
    extract_name(first.as_bytes(), extract)
}

/// The name in the value of a place; `None` if the value is empty or holds none.
fn extract_name(value: &[u8], extract: Extract) -> Option<Result<String, IgnoredReason>> {
    let value = value.trim_ascii();
    if value.is_empty() {
        return None;
    }
    let member = |name| Some(json(value)?.get(name)?.as_str()?.to_owned());
    let name = match extract {
        Extract::Whole | Extract::Token => String::from_utf8_lossy(value).into_owned(),
        Extract::CodexTurn => member("thread_id")?,
        Extract::ClaudeUser if value.starts_with(b"{") => member("session_id")?,
        Extract::ClaudeUser => {
            let (_, session) = std::str::from_utf8(value).ok()?.rsplit_once("_session_")?;
            session.to_owned()
        }
    };
    if name.len() > MAX_KEY_BYTES {
        return Some(Err(IgnoredReason::TooLong));
    }
    let fits = match extract {
        Extract::Token => {
            let is_token_byte =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            name.len() >= 8 && name.bytes().all(is_token_byte)
        }
        _ => !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()),
    };
    Some(if fits {
        Ok(name)
    } else {
        Err(IgnoredReason::Malformed)
    })
}

fn json(value: &[u8]) -> Option<Value> {
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod clients;
#[cfg(test)]
mod tests;
