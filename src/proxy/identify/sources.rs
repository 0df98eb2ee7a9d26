//! Where clients write what they call a conversation: one table, in the order in which it is looked at.
//!
//! Facts only; [`thread`](mod@super::thread) reads requests by it. An operator's own names stand before it or in its
//! place ([`Sources::of`]). Never in it: `user` and `safety_identifier`, which name a person, and anything
//! that is computed from what was said.

use http::HeaderName;

/// Where a name may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A header.
    Header(HeaderName),
    /// Any other `x-<vendor>-session-id`.
    AnySession,
    /// A field of the body, with dots between names.
    Body(Box<str>),
}

/// How the name is taken from what stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extract {
    /// As it is.
    Whole,
    /// `^[A-Za-z0-9_-]{8,}$`, the shape gateways agree on where a header's name says little.
    Token,
    /// What follows `_session_`, or the `session_id` of JSON: Claude Code's way to write it into
    /// `metadata.user_id`. Anything else is a user of the application and none of our business.
    ClaudeUser,
    /// The `thread_id` of JSON: Codex' turn metadata, which gateways pass on.
    CodexTurn,
}

/// One place, and what has to hold for it to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub location: Location,
    pub extract: Extract,
    /// How the `User-Agent` begins, in lower case: names too common to mean the same everywhere.
    pub agents: &'static [&'static str],
}

impl Source {
    fn header(name: HeaderName, extract: Extract, agents: &'static [&'static str]) -> Self {
        Self {
            location: Location::Header(name),
            extract,
            agents,
        }
    }

    fn body(path: &str, extract: Extract) -> Self {
        Self {
            location: Location::Body(path.into()),
            extract,
            agents: &[],
        }
    }
}

/// Ours: before everything else, whatever is configured.
const THREAD_HEADER: HeaderName = HeaderName::from_static("x-diarist-thread");

/// Who writes the bare `session_id` and its like.
const CODEX: &[&str] = &["codex"];
const CODEX_LIKE: &[&str] = &["codex", "cline", "roo"];

/// Headers that are known to name a conversation. `x-portkey-trace-id` and `x-litellm-trace-id` are
/// not among them: tracing writes a new one for each request.
const HEADERS: &[(&str, &[&str])] = &[
    // What applications and LibreChat's documentation use.
    ("x-conversation-id", &[]),
    // Mastra.
    ("x-thread-id", &[]),
    // Supermemory.
    ("x-sm-conversation-id", &[]),
    ("x-openwebui-chat-id", &[]),
    ("x-librechat-conversation-id", &[]),
    // opencode, at its own gateway and elsewhere.
    ("x-opencode-session", &[]),
    // opencode, OpenRouter, LLM Gateway, Merge.
    ("x-session-id", &[]),
    // opencode, Fireworks.
    ("x-session-affinity", &[]),
    // Codex: a sub-agent shares the session and has a thread of its own. The second line is how older
    // builds spell it, and how Cline and Roo do towards Codex' endpoint.
    ("thread-id", CODEX),
    ("conversation_id", CODEX),
    ("session-id", CODEX_LIKE),
    ("session_id", CODEX_LIKE),
    ("x-claude-code-session-id", &[]),
    // Cline, Roo, Kilo.
    ("x-task-id", &[]),
    ("x-roo-task-id", &[]),
    ("x-kilocode-taskid", &[]),
    ("x-litellm-session-id", &[]),
    ("helicone-session-id", &[]),
    // xAI.
    ("x-grok-conv-id", &[]),
    ("x-merge-thread-id", &[]),
];

/// Codex behind a gateway, which drops its other headers.
const CODEX_TURN: HeaderName = HeaderName::from_static("x-codex-turn-metadata");

/// Fields that are known to. `prompt_cache_key` is not among them: some applications use one for all
/// conversations that begin with the same instructions.
const FIELDS: &[(&str, Extract)] = &[
    ("session_id", Extract::Whole),
    ("conversation", Extract::Whole),
    ("conversation.id", Extract::Whole),
    ("metadata.session_id", Extract::Whole),
    ("metadata.conversation_id", Extract::Whole),
    ("metadata.chat_id", Extract::Whole),
    ("litellm_session_id", Extract::Whole),
    ("metadata.user_id.session_id", Extract::Whole),
    ("metadata.user_id", Extract::ClaudeUser),
];

/// The word for the table in a list of the operator's.
pub const KNOWN: &str = "known";

/// The places in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources(Vec<Source>);

impl Default for Sources {
    fn default() -> Self {
        Self::new(&[KNOWN], &[KNOWN])
    }
}

impl Sources {
    /// Our own header, then the operator's lists: names, of which `known` stands for the table. A name
    /// that no header can have is left out.
    pub fn new<S: AsRef<str>>(headers: &[S], fields: &[S]) -> Self {
        let mut all = vec![Source::header(THREAD_HEADER, Extract::Whole, &[])];
        for name in headers {
            match name.as_ref() {
                KNOWN => all.extend(known_headers()),
                name => all.extend(
                    name.parse()
                        .ok()
                        .map(|name| Source::header(name, Extract::Whole, &[])),
                ),
            }
        }
        for path in fields {
            match path.as_ref() {
                KNOWN => all.extend(
                    FIELDS
                        .iter()
                        .map(|(path, extract)| Source::body(path, *extract)),
                ),
                path => all.push(Source::body(path, Extract::Whole)),
            }
        }
        Self(all)
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.0.iter()
    }

    /// Whether a header has a place of its own.
    pub(super) fn lists_header(&self, header: &HeaderName) -> bool {
        self.0
            .iter()
            .any(|source| matches!(&source.location, Location::Header(name) if name == header))
    }
}

fn known_headers() -> impl Iterator<Item = Source> {
    let named = HEADERS.iter().map(|(name, agents)| {
        Source::header(HeaderName::from_static(name), Extract::Whole, agents)
    });
    let by_shape = [
        Source::header(CODEX_TURN, Extract::CodexTurn, &[]),
        Source {
            location: Location::AnySession,
            extract: Extract::Token,
            agents: &[],
        },
    ];
    named.chain(by_shape)
}
