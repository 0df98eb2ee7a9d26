//! The table of places where clients write a name for the conversation, in the order in which they are read.
//!
//! Only facts; [`thread`](mod@super::thread) reads requests by them. The operator's own names come before the
//! table or replace it ([`Sources::new`]). Never in it: `user` and `safety_identifier`, which name a person, and
//! anything computed from the messages.

use http::HeaderName;

/// Where a name may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A header.
    Header(HeaderName),
    /// Any other `x-<vendor>-session-id`.
    AnySession,
    /// A field of the body, with dots between names.
    Body(Box<str>),
}

/// How the name is read from its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extract {
    /// The whole value.
    Whole,
    /// The whole value, if it has the form `^[A-Za-z0-9_-]{8,}$`. Gateways agree on it; it is required where the
    /// header's name alone says little.
    Token,
    /// The part after `_session_`, or the `session_id` of a JSON object: Claude Code writes it so into
    /// `metadata.user_id`. Any other value there names a user of the application.
    ClaudeUser,
    /// The `thread_id` of a JSON object: Codex's turn metadata, which gateways pass on.
    CodexTurn,
}

/// One place, and the clients for which it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub location: Location,
    pub extract: Extract,
    /// Prefixes of the `User-Agent`, in lower case; empty for all clients. For names too common to mean the same
    /// everywhere.
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

/// Our own header: read first, whatever is configured.
const THREAD_HEADER: HeaderName = HeaderName::from_static("x-diarist-thread");

/// The clients that write `session_id` and similar names without a prefix.
const CODEX: &[&str] = &["codex"];
const CODEX_LIKE: &[&str] = &["codex", "cline", "roo"];

/// Headers that are known to name a conversation. `x-portkey-trace-id` and `x-litellm-trace-id` are not among
/// them: tracing writes a new one for each request.
const HEADERS: &[(&str, &[&str])] = &[
    // Used by applications, and by LibreChat's documentation.
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
    // Codex: a sub-agent shares the session and has a thread of its own. The second line has the spelling of
    // older builds, and of Cline and Roo at Codex's endpoint.
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

/// The turn metadata of Codex, for gateways that drop its other headers.
const CODEX_TURN: HeaderName = HeaderName::from_static("x-codex-turn-metadata");

/// Body fields that are known to name a conversation. `prompt_cache_key` is not among them: some applications
/// use one value for all conversations that begin with the same instructions.
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

/// The word that stands for the table in the operator's lists.
pub const KNOWN: &str = "known";

/// All places, in the order in which they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources(Vec<Source>);

impl Default for Sources {
    fn default() -> Self {
        Self::new(&[KNOWN], &[KNOWN])
    }
}

impl Sources {
    /// Our own header, then the operator's lists of names, in which `known` stands for the table. A name that no
    /// header can have is left out.
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

    /// The places in order.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.0.iter()
    }

    /// Whether `header` is listed by name.
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
