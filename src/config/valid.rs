//! The valid configuration: plain typed values with nothing left to check, default or resolve.
//!
//! Fractions are tokens by now, text is addresses and URLs, and `Option` means a choice ("none"),
//! never "not looked at yet". Built by `validate` alone; read by `app`, which maps it into rooms.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use jiff::tz::TimeZone;
use jsonwebtoken::{Algorithm, DecodingKey};
use regex::Regex;
use secrecy::SecretString;
use url::Url;

use super::reload::ConfigValues;

/// Everything an operator decides.
#[derive(Debug, Clone)]
pub struct Config {
    pub server: ServerSettings,
    pub upstream: UpstreamSettings,
    /// Where memory is kept.
    pub database: Database,
    /// Where audit lines go.
    pub audit: AuditTarget,
    /// Whether streams are asked for their usage on the client's behalf.
    pub ask_usage: AskUsage,
    pub identity: IdentitySettings,
    pub memory: MemorySettings,
    /// What all of this was read from, to be compared with another.
    pub(super) values: ConfigValues,
}

/// Listeners, limits and timeouts.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The data port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The admin port; port 0 takes a free one.
    pub admin: SocketAddr,
    /// Largest body read for memory, in bytes.
    pub max_body_bytes: usize,
    /// For the head of a request.
    pub header_timeout: Duration,
    /// Without a byte moving on a connection.
    pub idle_timeout: Duration,
    /// For a connection to the upstream, TLS included.
    pub connect_timeout: Duration,
    /// From the end of a request to the head of its response.
    pub response_timeout: Duration,
    /// For open streams after SIGTERM.
    pub drain_timeout: Duration,
    /// Connections held at once.
    pub max_connections: usize,
    /// Requests in flight at once.
    pub max_requests: usize,
}

/// Where requests go, and how memory is put into them.
#[derive(Debug, Clone)]
pub struct UpstreamSettings {
    /// HTTP or HTTPS with a host; no user, query or fragment; no slash at the end of a longer path.
    pub base_url: Url,
    pub placement: Placement,
}

/// Where observations stand in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// `SystemMessage`, stepping down when the model refuses it.
    Auto,
    /// A message of its own after the client's leading system messages.
    SystemMessage,
    /// At the end of the client's last leading system message.
    AppendToSystem,
    /// A message of its own with a content part for each segment.
    Segments,
    /// Nowhere.
    Off,
}

/// Which database holds memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// An SQLite file, by its path.
    Sqlite(PathBuf),
    /// SQLite in memory: gone at exit.
    SqliteInMemory,
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite://{}", path.display()),
            Self::SqliteInMemory => f.write_str("sqlite::memory:"),
        }
    }
}

/// Where audit lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    Off,
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

/// Whether streams are asked for their usage on the client's behalf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskUsage {
    /// Where the upstream is known to take the question.
    Auto,
    Never,
    /// Until it is refused.
    Always,
}

/// Who is talking.
#[derive(Debug, Clone)]
pub struct IdentitySettings {
    /// Names of headers, and `known` for those that are.
    pub headers: Vec<String>,
    /// Paths into the body, likewise.
    pub body_fields: Vec<String>,
    /// Headers that name a task beside the conversation.
    pub task_headers: Vec<HeaderName>,
    /// How users of the application are known, where the operator vouches for it.
    pub resource: Option<ResourceIdentity>,
    /// Tokens whose subject is the tenant.
    pub token: Option<TokenVerification>,
}

/// Where a user of the application is named.
#[derive(Debug, Clone)]
pub struct ResourceIdentity {
    pub header: HeaderName,
    pub set_by: SetBy,
}

/// Who writes a header that users are known by.
#[derive(Debug, Clone)]
pub enum SetBy {
    /// A proxy that takes away what clients write there.
    TrustedProxy,
    /// A server of the operator's, the only one that reaches the data port.
    Application,
    /// Whoever it is: it holds a token that is verified.
    Signed(TokenVerification),
}

/// Which tokens are believed, and what they say.
#[derive(Debug, Clone)]
pub struct TokenVerification {
    /// Never empty.
    pub keys: Vec<VerificationKey>,
    pub issuer: Option<String>,
    pub audience: Option<String>,
    /// The claim that names somebody; not empty.
    pub claim: String,
    pub leeway: Duration,
}

/// A key, and by which algorithms of its kind.
#[derive(Debug, Clone)]
pub struct VerificationKey {
    /// By which a token names it.
    pub id: Option<String>,
    pub key: DecodingKey,
    /// All of the key's own family; never empty.
    pub algorithms: Vec<Algorithm>,
}

/// How long the words of messages are kept beyond the jobs that carry them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepMessages {
    UntilObserved,
    Always,
    /// Above 0.
    For(Duration),
}

/// Memory: whether, and by which numbers.
#[derive(Debug, Clone)]
pub struct MemorySettings {
    pub enabled: bool,
    /// Where a request names no zone.
    pub timezone: TimeZone,
    pub temporal_markers: bool,
    /// How long the words of messages are kept.
    pub keep_messages: KeepMessages,
    /// Tokens that model calls may cost a tenant on a UTC day; above 0.
    pub daily_tokens: Option<u64>,
    /// Tokens that what is told of a user's other conversations may take in a block, above 0; `None`
    /// where the scope is the thread.
    pub other_conversations: Option<u32>,
    /// Where model calls that came to nothing are kept.
    pub bundles: Option<PathBuf>,
    pub thresholds: Thresholds,
    /// Made otherwise for some, the narrowest first; the first that matches counts.
    pub overrides: Vec<Override>,
    /// Observations are sent and never made.
    pub read_only: bool,
    /// Which requests have memory; the first that matches counts.
    pub rules: Vec<Rule>,
    pub overflow: Overflow,
    /// How long a client waits where `overflow` is `Observe`; above 0.
    pub overflow_timeout: Duration,
    pub evidence: EvidenceLevel,
    pub observation: ObservationSettings,
    pub reflection: ReflectionSettings,
    pub redact: Redact,
}

/// What is taken out of messages before the Observer reads them.
#[derive(Debug, Clone)]
pub struct Redact {
    pub kinds: Vec<SecretKind>,
    /// Compiled; none matches the empty text.
    pub patterns: Vec<Regex>,
}

/// A kind of secret known by its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretKind {
    ApiKey,
    Token,
    Password,
    Secret,
    PrivateKey,
}

/// Which hints are asked for and used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinuationHints {
    pub current_task: bool,
    pub suggested_response: bool,
}

/// Which images and files the Observer is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachments {
    /// Images and PDF.
    Auto,
    All,
    /// Those of these media types; `type/*` and `*` stand for many. Lower case.
    Only(Vec<String>),
}

/// The numbers decisions are made by, all in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Raw messages at which observations take their place; above 0.
    pub message_tokens: u32,
    /// New messages observed at a time; above 0, below `message_tokens`.
    pub buffer_tokens: u32,
    /// Whether each turn is observed once it has ended.
    pub buffer_on_idle: bool,
    /// Recent messages that stay raw at an activation; below `message_tokens`.
    pub retention_floor: u32,
    /// Raw messages from which clearing enough comes before the floor; at least `message_tokens`.
    pub message_limit: u32,
    /// Observations at which a reflection takes their place; above 0.
    pub observation_tokens: u32,
    /// Observations from which one is made; above 0, at most `observation_tokens`.
    pub reflect_from: u32,
    /// Observations from which a poor reflection is better than none; at least `observation_tokens`.
    pub observation_limit: u32,
    /// Whether raw messages may use what observations leave of both budgets.
    pub share_token_budget: bool,
    /// When observations are used before `message_tokens`.
    pub early_activation: EarlyActivation,
    /// When a reflection is used before `observation_tokens`.
    pub early_reflection: EarlyActivation,
}

/// How memory is made for some conversations. Patterns have `*` for any text and `?` for one character.
#[derive(Debug, Clone)]
pub struct Override {
    /// Of the conversation's model; `None` is any.
    pub model: Option<String>,
    /// Of the upstream's host; `None` is any. One of the two is there.
    pub upstream: Option<String>,
    /// Whether memory is only read for them.
    pub read_only: bool,
    pub thresholds: Thresholds,
    pub observation: ObservationSettings,
    pub reflection: ReflectionSettings,
}

impl Override {
    /// Whether both are for the same.
    pub(super) fn same_target(&self, other: &Self) -> bool {
        let target = |item: &Self| {
            let lower = |text: &Option<String>| text.as_deref().map(str::to_lowercase);
            (lower(&item.model), lower(&item.upstream))
        };
        target(self) == target(other)
    }

    /// The narrower, the greater: model and upstream, model alone, upstream alone; then by how many
    /// characters stand for themselves. A pattern that is all wildcards names nothing.
    pub(super) fn specificity(&self) -> (usize, usize) {
        let literal = |text: &Option<String>| {
            let text = text.as_deref().unwrap_or_default();
            text.chars().filter(|c| !matches!(c, '*' | '?')).count()
        };
        let (model, upstream) = (literal(&self.model), literal(&self.upstream));
        let named_fields = 2 * usize::from(model > 0) + usize::from(upstream > 0);
        (named_fields, model + upstream)
    }
}

/// Moments at which the provider's prompt cache is lost anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyActivation {
    pub idle: ActivateAfterIdle,
    /// When another model is asked than before.
    pub model_change: bool,
}

/// How long a conversation has to be idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivateAfterIdle {
    Never,
    After(Duration),
    /// As long as the provider keeps the prompt.
    Auto,
}

/// A rule: what it does not name matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// A pattern, as the ones below.
    pub path: Option<String>,
    pub model: Option<String>,
    pub header: Option<http::HeaderName>,
    /// Of that header; never without it.
    pub value: Option<String>,
    pub memory: MemoryMode,
}

/// What memory may do for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryMode {
    Off,
    /// Send, and remember nothing.
    Read,
    On,
}

/// What is done for a request that does not fit its model, beyond applying what is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    Pass,
    Observe,
    Trim,
}

/// Which evidence lets a request be told what it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvidenceLevel {
    /// None.
    Strict,
    /// The name of one conversation.
    Names,
    /// That, or what the request holds.
    Content,
}

/// The Observer.
#[derive(Debug, Clone)]
pub struct ObservationSettings {
    pub phase: PhaseSettings,
    /// The operator's own words for the prompt.
    pub instruction: Option<String>,
    /// Most tokens of history in one call.
    pub max_input_tokens: u32,
    /// Tokens of earlier observations that are shown; `None` shows all.
    pub previous_observer_tokens: Option<u32>,
    pub continuation_hints: ContinuationHints,
    pub observe_attachments: Attachments,
    /// Tags of the blocks in user messages that are not shown.
    pub omit_blocks: Vec<String>,
    /// Whether the application's system prompt is shown.
    pub observe_system: bool,
    /// Whether a title is asked for.
    pub thread_title: bool,
}

/// The Reflector.
#[derive(Debug, Clone)]
pub struct ReflectionSettings {
    pub phase: PhaseSettings,
    /// The operator's own words for the prompt.
    pub instruction: Option<String>,
    pub continuation_hints: ContinuationHints,
    /// The share of the items of high priority that a reflection may lose, 0 to 1.
    pub max_loss: f64,
}

/// How one phase asks its model.
#[derive(Debug, Clone)]
pub struct PhaseSettings {
    /// `None`: the conversation's own model.
    pub model: Option<Models>,
    /// `None`: the conversation's own way to the upstream, with its own credential.
    pub endpoint: Option<Endpoint>,
    /// 0 to 2.
    pub temperature: f64,
    /// Most tokens written per call; `None` leaves it to the model.
    pub max_output_tokens: Option<u32>,
    /// Further parameters of the call, under the names chat completions has for them.
    pub parameters: serde_json::Map<String, serde_json::Value>,
    /// Fields of the body as the operator wrote them.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// For one call.
    pub timeout: Duration,
}

/// Which model is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Models {
    One(String),
    /// By the most tokens a prompt may have, ascending; never empty.
    Tiers(Vec<(u32, String)>),
}

/// A place of its own to ask at.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// As [`Upstream::base_url`].
    pub base_url: Url,
    /// Sent as a bearer token; fit for a header.
    pub api_key: SecretString,
}

impl Config {
    /// What an operator may want to know about this valid configuration, in whole sentences.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        let mut hint = |condition: bool, text: &str| {
            if condition {
                hints.push(text.to_owned());
            }
        };
        let memory = self.memory.enabled;
        hint(
            !memory,
            "Memory is off (memory.enabled = false): Diarist is a plain proxy.",
        );
        hint(
            memory && self.upstream.placement == Placement::Off,
            "Observations are made but never sent (upstream.placement = \"off\").",
        );
        hint(
            memory && self.memory.observation.phase.model.is_none(),
            "The Observer uses each conversation's own model. A cheap one pays (memory.model, or \
             memory.observation.model): with an expensive model, memory can cost twice what it saves \
             on a conversation of 60,000 tokens.",
        );
        hint(
            memory && self.memory.read_only,
            "Memory is only read (memory.read_only = true): nothing new is remembered.",
        );
        hint(
            memory && self.database == Database::SqliteInMemory,
            "The database is in memory: everything is forgotten at exit.",
        );
        hint(
            memory && !self.server.listen.ip().is_loopback(),
            "The data port is open beyond this machine: requests without a credential get no memory.",
        );
        hint(
            !self.server.admin.ip().is_loopback(),
            "The admin port is open beyond this machine and asks for no password.",
        );
        hints
    }
}
