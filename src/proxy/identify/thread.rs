//! What a client calls its conversation: the first usable name among the [`Sources`], who gave it, and
//! what was there and could not be used.
//!
//! A name groups requests, it admits to nothing. A sub-agent's request goes under its own name or under
//! none, never under that of the conversation it works for. Called by `remember` once the body is parsed.

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName};
use serde_json::Value;

use super::sources::{Place, Source, Sources, Take};
use crate::wire::chat::{Named, Parsed};

/// The longest name taken, in bytes; OpenRouter allows as many for its session ids.
const LONGEST: usize = 256;

/// Headers that name the conversation a sub-agent works for: opencode and LiteLLM, Codex.
const PARENTS: [&str; 2] = ["x-parent-session-id", "x-codex-parent-thread-id"];

/// Codex says here on which errand it asks.
const SUBAGENT: &str = "x-openai-subagent";

/// Codex' account of a turn, as JSON.
const TURN: &str = "x-codex-turn-metadata";

/// Where Codex writes the session, which a sub-agent shares with what it works for.
const SESSIONS: [&str; 2] = ["session-id", "session_id"];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// The name.
    pub key: Option<String>,
    /// Where it stood, for the audit: a header's name, or `body.` and a field's.
    pub by: Option<String>,
    /// What was there and not used: the place, a colon, and why.
    pub ignored: Vec<String>,
    /// Whether a sub-agent asks, which must not write into what it works for.
    pub child: bool,
}

impl Thread {
    /// The name turned out to stand for many conversations.
    pub fn disown(&mut self) {
        self.key = None;
        if let Some(by) = self.by.take() {
            self.ignored.push(format!("{by}:many_conversations"));
        }
    }
}

/// Why a name is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    /// The header is there more than once, with different values.
    Ambiguous,
    /// Longer than [`LONGEST`].
    TooLong,
    /// Something else than visible ASCII, or not the shape that the place asks for.
    Malformed,
    /// A field that is no text.
    NotText,
    /// It names what the sub-agent works for.
    Parent,
}

impl Bad {
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
pub fn thread(headers: &HeaderMap, parsed: &Parsed, sources: &Sources) -> Thread {
    let child = Child::of(headers);
    let mut found = Thread {
        child: child.is_some(),
        ..Thread::default()
    };
    let agent = headers
        .get(USER_AGENT)
        .map(|value| value.as_bytes().to_ascii_lowercase())
        .unwrap_or_default();
    let applies = |source: &&Source| {
        let begins = |with: &&str| agent.starts_with(with.as_bytes());
        source.agents.is_empty() || source.agents.iter().any(begins)
    };
    for source in sources.iter().filter(applies) {
        for (label, said) in said(source, headers, parsed, sources) {
            let key = said.and_then(|said| match &child {
                Some(child) if child.parents.contains(&said) => Err(Bad::Parent),
                _ => Ok(said),
            });
            match key {
                Ok(key) => {
                    found.key = Some(key);
                    found.by = Some(label);
                    return found;
                }
                Err(bad) => found.ignored.push(format!("{label}:{}", bad.name())),
            }
        }
    }
    found
}

/// A sub-agent, and the names of what it works for.
struct Child {
    parents: Vec<String>,
}

impl Child {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let turn = headers.get(TURN).and_then(|value| json(value.as_bytes()));
        let turn = |name| turn.as_ref().and_then(|turn| turn.get(name)?.as_str());
        // The conversation itself is a `turn`; the rest are Codex' own errands (`compaction`, `review`).
        let errand = turn("request_kind").is_some_and(|kind| kind != "turn");
        let sent = errand || headers.contains_key(SUBAGENT);
        if !sent && !PARENTS.iter().any(|name| headers.contains_key(*name)) {
            return None;
        }
        let named = PARENTS
            .iter()
            .chain(SESSIONS.iter().filter(|_| sent))
            .flat_map(|name| headers.get_all(*name))
            .filter_map(|value| Some(value.to_str().ok()?.trim()));
        let session = turn("session_id").filter(|_| sent);
        Some(Self {
            parents: named.chain(session).map(str::to_owned).collect(),
        })
    }
}

/// What stands at a place: nothing, a name, or something that is none, each with the place's label.
fn said(
    source: &Source,
    headers: &HeaderMap,
    parsed: &Parsed,
    sources: &Sources,
) -> Vec<(String, Result<String, Bad>)> {
    match &source.place {
        Place::Header(name) => {
            let said = header(headers, name, source.take);
            said.map(|said| (name.as_str().to_owned(), said))
                .into_iter()
                .collect()
        }
        Place::AnySession => {
            let mut names: Vec<&HeaderName> = headers
                .keys()
                .filter(|name| is_session(name) && !sources.names(name))
                .collect();
            // The order of headers means nothing.
            names.sort_by_key(|name| name.as_str());
            let said = names.into_iter().filter_map(|name| {
                let said = header(headers, name, source.take)?;
                Some((name.as_str().to_owned(), said))
            });
            said.collect()
        }
        Place::Body(path) => {
            let said = match parsed.named(path) {
                None => None,
                // An object where another source reads one of its members is no mistake.
                Some(Named::Unusable) => {
                    let within = format!("{path}.");
                    let deeper = |source: &Source| matches!(&source.place, Place::Body(other) if other.starts_with(&within));
                    (!sources.iter().any(deeper)).then_some(Err(Bad::NotText))
                }
                Some(Named::Text(text)) => take(text.as_bytes(), source.take),
            };
            said.map(|said| (format!("body.{path}"), said))
                .into_iter()
                .collect()
        }
    }
}

/// A vendor's header by its form. `x-parent-session-id` names another conversation than the request's.
fn is_session(name: &HeaderName) -> bool {
    let vendor = name
        .as_str()
        .strip_prefix("x-")
        .and_then(|name| name.strip_suffix("-session-id"));
    vendor.is_some_and(|vendor| !vendor.is_empty() && vendor.len() < 64 && vendor != "parent")
}

fn header(headers: &HeaderMap, name: &HeaderName, how: Take) -> Option<Result<String, Bad>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    if values.any(|other| other != first) {
        return Some(Err(Bad::Ambiguous));
    }
    take(first.as_bytes(), how)
}

/// The name in what stands at a place; `None` where nothing is said at all.
fn take(value: &[u8], how: Take) -> Option<Result<String, Bad>> {
    let value = value.trim_ascii();
    if value.is_empty() {
        return None;
    }
    let member = |name| Some(json(value)?.get(name)?.as_str()?.to_owned());
    let name = match how {
        Take::Whole | Take::Token => String::from_utf8_lossy(value).into_owned(),
        Take::CodexTurn => member("thread_id")?,
        Take::ClaudeUser if value.starts_with(b"{") => member("session_id")?,
        Take::ClaudeUser => {
            let (_, session) = std::str::from_utf8(value).ok()?.rsplit_once("_session_")?;
            session.to_owned()
        }
    };
    if name.len() > LONGEST {
        return Some(Err(Bad::TooLong));
    }
    let fits = match how {
        Take::Token => {
            let of_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            name.len() >= 8 && name.bytes().all(of_token)
        }
        _ => !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()),
    };
    Some(if fits { Ok(name) } else { Err(Bad::Malformed) })
}

fn json(value: &[u8]) -> Option<Value> {
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod clients;
#[cfg(test)]
mod tests;
