//! Every key there is: its name, kind, default and meaning, in one table.
//!
//! The table is the only definition. It makes [`RawConfig`] (what was written), the defaults layer,
//! the list of known keys and the reference file, so none of them can drift from another. It knows
//! spelling only; `validate` and `memory` judge what the values mean.

use std::time::Duration;

use secrecy::SecretString;

use super::layers::Layers;
use super::model_settings::{JsonTable, RawModels};
use super::parse::{BoolOrList, NumberOrFalse, RawActivateAfterIdle, Setting};
use super::problem::Problem;
use super::rules::TableList;
use super::valid::KeepMessages;

/// A section of the file and its keys, in the order of the reference.
#[derive(Debug)]
pub(super) struct SectionSpec {
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) keys: &'static [KeySpec],
}

#[derive(Debug)]
pub(super) struct KeySpec {
    /// The dotted path: `memory.observation.model`.
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) sample: SampleValue,
}

/// The TOML literal the reference shows for a key.
#[derive(Debug)]
pub(super) enum SampleValue {
    /// It holds unless something else is written.
    Default(&'static str),
    /// It only shows what a value looks like: absent is a value of its own.
    Example(&'static str),
}

impl KeySpec {
    /// Whether the value may never be printed.
    pub(super) fn is_secret(&self) -> bool {
        matches!(self.name, "api_key" | "secret")
    }
}

/// Every key of every section.
pub(super) fn keys() -> impl Iterator<Item = &'static KeySpec> + Clone {
    SECTIONS.iter().flat_map(|section| section.keys)
}

macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])+
        [$section:literal] $section_field:ident: $Section:ident {
            $(
                $(#[doc = $doc:literal])+
                $name:ident: $kind:ty = $shown:ident($literal:literal),
            )+
        }
    )+) => {
        /// What was written, spelled as its kind but not yet judged.
        #[derive(Debug)]
        pub(super) struct RawConfig {
            $(pub(super) $section_field: $Section,)+
        }

        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone)]
            pub(super) struct $Section {
                $(
                    $(#[doc = $doc])+
                    pub(super) $name: Setting<$kind>,
                )+
            }
        )+

        pub(super) const SECTIONS: &[SectionSpec] = &[$(
            SectionSpec {
                name: $section,
                doc: &[$($section_doc),+],
                keys: &[$(
                    KeySpec {
                        path: concat!($section, ".", stringify!($name)),
                        name: stringify!($name),
                        doc: &[$($doc),+],
                        sample: SampleValue::$shown($literal),
                    },
                )+],
            },
        )+];

        impl RawConfig {
            /// Reads every key from the layers. A value spelled wrongly joins `problems` and its
            /// default stands in, so that the other keys can still be judged.
            pub(super) fn read(layers: &Layers, problems: &mut Vec<Problem>) -> Self {
                Self {$(
                    $section_field: $Section {$(
                        $name: layers.read(concat!($section, ".", stringify!($name)), problems),
                    )+},
                )+}
            }
        }
    };
}

settings! {
    /// Listeners, limits and timeouts.
    ["server"] server: RawServer {
        /// Address of the data port: where clients go instead of to the upstream.
        /// Beyond loopback, requests without a credential pass without memory.
        listen: String = Default(r#""127.0.0.1:8484""#),
        /// Address of the admin port: /healthz, /readyz, /metrics. It asks for no password.
        admin: String = Default(r#""127.0.0.1:8485""#),
        /// Largest chat-completions body that is read for memory, in bytes (32 MiB); a larger one is
        /// answered 413. Other requests stream through and know no limit.
        max_body_bytes: u64 = Default("33554432"),
        /// How long a client may take to send the head of a request, counted from connecting or from
        /// the end of its last answer: it also ends HTTP/1 connections that are kept without a use.
        header_timeout: Duration = Default(r#""60s""#),
        /// How long a connection may stay without a byte moving: between requests, in the middle of a
        /// body, in a WebSocket, or because the other side takes nothing. Models that think pause for minutes.
        idle_timeout: Duration = Default(r#""5m""#),
        /// How long connecting to the upstream may take, TLS included.
        connect_timeout: Duration = Default(r#""10s""#),
        /// How long the upstream may take from the end of the request to the head of its response.
        /// Models that think before they answer take minutes.
        response_timeout: Duration = Default(r#""10m""#),
        /// How long open streams may go on after SIGTERM before they are cut.
        drain_timeout: Duration = Default(r#""30s""#),
        /// Connections held at once on the data port; one more is answered 503.
        max_connections: u64 = Default("4096"),
        /// Requests in flight at once, over all connections; one more is answered 429.
        max_requests: u64 = Default("1024"),
    }

    /// Where requests go, and how memory is put into them.
    ["upstream"] upstream: RawUpstream {
        /// Base URL of the provider. /v1/... on the data port maps onto its path; every other path
        /// goes to the same path at its origin.
        base_url: String = Default(r#""https://api.openai.com/v1""#),
        /// Where observations stand in the request: "system_message" (a message of their own after the
        /// client's leading ones), "append_to_system" (at the end of the client's last leading one),
        /// "segments" (a message of their own, a content part for each), "off" (nowhere), or "auto": system_message,
        /// stepping down by itself when a model refuses it.
        placement: String = Default(r#""auto""#),
    }

    /// Where memory is kept.
    ["store"] store: RawStore {
        /// The database: "sqlite:" and a path, absolute after three slashes, or "sqlite::memory:",
        /// which forgets everything at exit. Unset: diarist/diarist.db in the platform's data folder
        /// ($XDG_DATA_HOME or ~/.local/share on Linux). The path is taken as it stands, not decoded.
        url: Option<String> = Example(r#""sqlite:///var/lib/diarist/diarist.db""#),
    }

    /// The audit: one JSON line per memory request, observation and reflection.
    ["audit"] audit: RawAudit {
        /// The file lines are appended to; "-" is standard output (logs go to standard error), "off"
        /// writes none.
        path: String = Default(r#""-""#),
        /// Whether streams are asked for their usage on the client's behalf, so that the audit has tokens:
        /// "auto" (where the upstream is known to take stream_options, or took it from a client), "never",
        /// or "always" (until it is refused). The event that answers it is taken out of the stream again.
        ask_usage: String = Default(r#""auto""#),
    }

    /// Who is talking: what clients call a conversation, and whose it is. A name groups requests; it
    /// gives no access to memory that their content does not give.
    ["identity"] identity: RawIdentity {
        /// Headers that name a conversation, the first usable one counts; x-diarist-thread comes before
        /// them all. "known" stands for those of the clients Diarist knows: put names before or behind
        /// it, or leave it out. Not among them: x-portkey-trace-id, x-litellm-trace-id, which some
        /// write anew for each request.
        headers: Vec<String> = Default(r#"["known"]"#),
        /// Fields of the body that do, after the headers, with a dot for a field within a field.
        /// "known": session_id; conversation, or its id; session_id, conversation_id, chat_id in
        /// metadata; litellm_session_id; what Claude Code writes into metadata.user_id. Not among them:
        /// prompt_cache_key, which some share between conversations.
        body_fields: Vec<String> = Default(r#"["known"]"#),
        /// Headers in which a client names what it does beside the conversation (a title, tags), such as
        /// Open WebUI's {{TASK}} in a header of your own: what is known of the conversation is sent, and
        /// nothing of the request is remembered. Rules (memory.rules) come first.
        task_headers: Vec<String> = Default(r#"["x-diarist-task", "x-openwebui-task"]"#),
    }

    /// Which user of your application is talking, where you can vouch for it. x-diarist-resource, which any
    /// client can write, parts users from each other; only what is vouched for here may be shared between
    /// the conversations of a user.
    ["identity.resource"] resource: RawResource {
        /// The header that names the user. Unset: nobody is vouched for.
        header: Option<String> = Example(r#""x-openwebui-user-jwt""#),
        /// Who sets it: "trusted-proxy" (a proxy in front of Diarist that takes away what clients write
        /// there), "application" (a server of yours, and nobody else reaches the data port), or "signed"
        /// (whoever it is: the value is a token, a JWT, that is verified by the keys below). Where it is
        /// signed and does not hold, the request passes without memory.
        set_by: Option<String> = Example(r#""signed""#),
        /// The secret such tokens are signed with (HS256, HS384, HS512), at least 16 bytes; for Open WebUI the one
        /// in its FORWARD_USER_INFO_HEADER_JWT_SECRET. Better kept in the environment:
        /// DIARIST__IDENTITY__RESOURCE__SECRET.
        secret: Option<SecretString> = Example(r#""a secret of 16 bytes or more""#),
        /// A file with the public keys they are signed with, in the place of secret: PEM, or a JWKS. SIGHUP
        /// reads it anew.
        keys_file: Option<String> = Example(r#""/etc/diarist/jwks.json""#),
        /// Algorithms that are believed, such as "RS256". Empty: all those of the keys. Never "none".
        algorithms: Vec<String> = Default("[]"),
        /// Who has to have issued the token (its iss). Unset: anybody who has the key.
        issuer: Option<String> = Example(r#""open-webui""#),
        /// Whom it has to be for (its aud). Unset: a token that names an audience is not believed.
        audience: Option<String> = Example(r#""diarist""#),
        /// The claim that names the user.
        claim: String = Default(r#""sub""#),
        /// By how much clocks may differ, 10 minutes at most. A token without exp is not believed.
        leeway: Duration = Default(r#""30s""#),
    }

    /// Tokens (JWT) in the Authorization header whose subject is the tenant, so that a token that is renewed
    /// every hour keeps its memory. What is no such token is a credential as always: hashed, whole. So is a
    /// token that does not hold: the upstream judges it, and it reaches no memory but its own.
    ["identity.token"] token: RawToken {
        /// The secret they are signed with. Unset, and keys_file too: no token is looked at.
        secret: Option<SecretString> = Example(r#""a secret of 16 bytes or more""#),
        /// A file with the public keys they are signed with, in the place of secret: PEM, or a JWKS. SIGHUP
        /// reads it anew.
        keys_file: Option<String> = Example(r#""/etc/diarist/jwks.json""#),
        /// Algorithms that are believed. Empty: all those of the keys. Never "none".
        algorithms: Vec<String> = Default("[]"),
        /// Who has to have issued the token (its iss). Unset: anybody who has the key.
        issuer: Option<String> = Example(r#""https://login.example.com/""#),
        /// Whom it has to be for (its aud). Unset: a token that names an audience is not believed.
        audience: Option<String> = Example(r#""diarist""#),
        /// The claim that names the tenant.
        claim: String = Default(r#""sub""#),
        /// By how much clocks may differ, 10 minutes at most. A token without exp is not believed.
        leeway: Duration = Default(r#""30s""#),
    }

    /// Memory. Model, base_url and api_key set here hold for both phases.
    ["memory"] memory: RawMemory {
        /// Whether there is memory at all; false makes Diarist a plain proxy.
        enabled: bool = Default("true"),
        /// Who shares a memory: "thread" keeps it to one conversation; "resource" also tells each
        /// conversation what the user's others learned, where identity.resource says who the user is.
        scope: String = Default(r#""thread""#),
        /// For scope = "resource": how much of a block may tell of other conversations, the latest and
        /// most important first. Below 1 a fraction of observation_tokens, else a number of tokens.
        other_conversations: f64 = Default("0.1"),
        /// Zone in which days and minutes are told: an IANA name such as "Europe/Oslo", or "system", the
        /// zone of this machine. A request may name its own (header x-diarist-timezone).
        timezone: String = Default(r#""system""#),
        /// Whether the Observer is told of pauses of ten minutes and more.
        temporal_markers: bool = Default("false"),
        /// How long what messages say is kept in the database, with secrets taken out: "until_observed" (a
        /// range that waits for the Observer carries its words, and nothing else is kept), "always", or a
        /// duration such as "720h". Kept words are shown by `threads show --why`, and what a client drops
        /// before it was observed is remembered; without them it is not.
        keep_messages: KeepMessages = Default(r#""until_observed""#),
        /// Model of the Observer and the Reflector; excludes the model of a phase. Unset: a phase that
        /// names none uses the other phase's model if both ask at the same place, else the
        /// conversation's own. A cheap model pays. A table names models by the tokens of the whole prompt,
        /// each bound included, such as { "20000" = "gpt-5-nano", "200000" = "gpt-5-mini" }; a prompt
        /// beyond the last bound takes the last model.
        model: Option<RawModels> = Example(r#""gpt-5-nano""#),
        /// Base URL for both phases; together with api_key or not at all. Unset: the conversation's
        /// own way to the upstream, with its own credential.
        base_url: Option<String> = Example(r#""https://api.openai.com/v1""#),
        /// API key for base_url. Better kept in the environment: DIARIST__MEMORY__API_KEY.
        api_key: Option<SecretString> = Example(r#""sk-...""#),
        /// Tokens that memory's own model calls, prompts and answers, may cost a tenant on a UTC day.
        /// Once they are spent its jobs wait for the next day; requests go on. Unset: no bound.
        daily_tokens: Option<u64> = Example("5000000"),
        /// A folder for calls of the Observer and the Reflector that came to nothing, to look into with
        /// `diarist reproduce`: prompt and answer with secrets taken out, never a credential. They hold
        /// what your users said. The newest 50 stay. Unset: none is kept.
        bundles: Option<String> = Example(r#""/var/lib/diarist/bundles""#),
        /// Whether raw messages may use what observations leave of message_tokens + observation_tokens:
        /// observations take their place the later, the fewer of them there are.
        share_token_budget: bool = Default("false"),
        /// Whether memory is only read: observations are sent where there are some, and nothing is
        /// written, no request recorded, no model called. No header and no rule changes that; an
        /// override says otherwise for its models.
        read_only: bool = Default("false"),
        /// Which requests have memory: in each rule path, model and header (with value) as far as they
        /// matter, * for any text, ? for one character, and memory = "off", "read" (observations are
        /// sent, nothing is remembered) or "on". The first rule that matches counts; the header
        /// x-diarist-memory of a request counts before them. Either a list as here, or a section
        /// [[memory.rules]] for each: { header = "x-task", value = "title*", memory = "read" }.
        rules: TableList = Default("[]"),
        /// Memory made otherwise for some models or upstreams: model and upstream (its host) with * for any
        /// text and ? for one character, then what differs of share_token_budget, read_only, and of observation
        /// and reflection every key but base_url and api_key. Of those that match the narrowest alone
        /// counts: model and upstream before model before upstream, then the longer pattern; one that is
        /// all wildcards names nothing. Either a list as here, or a section [[memory.overrides]] for each:
        /// { model = "*-mini", observation = { message_tokens = 15000, instruction = "Be brief." } }.
        overrides: TableList = Default("[]"),
        /// What is done for a request that does not fit its model, once all observations there are have
        /// been put in the place of its messages: "pass" (the upstream's refusal reaches the client),
        /// "observe" (what is left is observed while the client waits, and the request sent again), or
        /// "trim" (the oldest messages are left out, with a note; nothing is known of them).
        overflow: String = Default(r#""pass""#),
        /// How long a client waits for overflow = "observe", at most, however many ask the same at once.
        overflow_timeout: Duration = Default(r#""1m""#),
        /// Which evidence lets a request be told what it does not hold, where its client dropped or
        /// summarised older messages: "strict" (none: a request is told only what it holds), "names"
        /// (it carries the name of a conversation, and no other conversation has that name) or
        /// "content" (that, or messages that no other conversation holds, an answer of the model
        /// among them). Two different names are always two conversations.
        evidence: String = Default(r#""content""#),
    }

    /// The Observer: turns older messages into observations.
    ["memory.observation"] observation: RawObservation {
        /// Model of the Observer, or a table as there; excludes memory.model.
        model: Option<RawModels> = Example(r#""gpt-5-nano""#),
        /// Base URL for the Observer; together with api_key or not at all.
        base_url: Option<String> = Example(r#""https://api.openai.com/v1""#),
        /// API key for base_url.
        api_key: Option<SecretString> = Example(r#""sk-...""#),
        /// Tokens of raw messages at which observations take their place.
        message_tokens: u64 = Default("30000"),
        /// Tokens of new messages that are observed at a time, in the background: below 1 a fraction
        /// of message_tokens, else a number of tokens; less than message_tokens.
        buffer_tokens: f64 = Default("0.2"),
        /// Whether each turn is observed once it has ended, however short it is, instead of waiting for
        /// buffer_tokens. Costs one call of the Observer a turn.
        buffer_on_idle: bool = Default("false"),
        /// How much goes when observations take the messages' place: up to 1 the fraction of
        /// message_tokens to clear, from 1000 the tokens of recent messages to keep.
        buffer_activation: f64 = Default("0.8"),
        /// From here on, clearing enough comes before keeping the retention floor: below 100 a
        /// multiple of message_tokens, else a number of tokens; at least message_tokens.
        block_after: f64 = Default("1.2"),
        /// Let observations take the messages' place before message_tokens when the conversation has
        /// been idle for so long that the provider's prompt cache is lost anyway: a duration (a bare
        /// number from 1000 is milliseconds), "auto" (as long as this provider keeps the cache of this
        /// model), or false.
        activate_after_idle: RawActivateAfterIdle = Default("false"),
        /// The same when another model is asked than before, whose cache holds nothing yet. Known to the
        /// process that the model before was asked of: the first request after a restart changes nothing.
        activate_on_model_change: bool = Default("false"),
        /// Sampling temperature, 0 to 2. Dropped by itself for a model that refuses it.
        temperature: f64 = Default("0.3"),
        /// Most tokens the Observer may write per call. Unset: the model's own limit, or that of a gateway,
        /// some of which allow 1,000 to 4,000. An answer that is cut by either is asked for again in halves.
        max_output_tokens: Option<u64> = Example("16000"),
        /// Parameters that models share: temperature, max_output_tokens, top_p, min_p, top_k, seed, stop,
        /// presence_penalty, frequency_penalty, reasoning_effort, verbosity, service_tier. One that a
        /// model refuses is left out from then on. In the environment a JSON object.
        model_settings: Option<JsonTable> = Example(r#"{ top_p = 0.9, reasoning_effort = "low" }"#),
        /// Put into the body of each call as it stands, whatever your provider knows; a field of it
        /// replaces Diarist's own of the same name whole.
        provider_options: Option<JsonTable> = Example(r#"{ thinking = { type = "disabled" } }"#),
        /// How long one call may take.
        timeout: Duration = Default(r#""2m""#),
        /// What you want observed, or left out, in your own words; added to the Observer's prompt.
        instruction: Option<String> = Example(r#""Record every ticket number verbatim.""#),
        /// Most tokens of history in one call. A longer range is observed in several calls and stays
        /// one chunk; lowered by itself for a model that says it is still too long, to what it says it takes.
        max_input_tokens: u64 = Default("60000"),
        /// Tokens of earlier observations the Observer is shown, so that it does not repeat them; false
        /// shows the whole log as it stands, up to max_input_tokens, 0 none.
        previous_observer_tokens: NumberOrFalse = Default("2000"),
        /// Whether the Observer says what the conversation is busy with ("current_task") and how it would
        /// go on ("suggested_response"): true, false, or a list of the two. What both phases leave out
        /// is not sent to the model either.
        continuation_hints: BoolOrList = Default("true"),
        /// Which images and files the Observer is shown: "auto" (images and PDF), true, false, or a list
        /// of media types ("image/*"). A model that refuses them is asked without. The place where
        /// one stood is always named.
        observe_attachments: BoolOrList = Default(r#""auto""#),
        /// Blocks that clients put into user messages by themselves and repeat with each, by the name of
        /// their tag. The Observer is not shown what stands from <name> to </name>, each alone on its line and
        /// outside of code; forwarded it is as ever. What a client says once is lost where its tag is listed:
        /// "system-reminder" may hold your project's rules, "environment_details" the output of a terminal.
        /// An empty list leaves nothing out.
        omit_blocks: Vec<String> = Default(r#"["reminderInstructions"]"#),
        /// Whether the Observer is shown the application's system prompt, as background.
        observe_system: bool = Default("false"),
        /// Whether the Observer gives the conversation a title, for `diarist threads`.
        thread_title: bool = Default("false"),
    }

    /// The Reflector: condenses observations that have grown too long.
    ["memory.reflection"] reflection: RawReflection {
        /// Model of the Reflector, or a table as there; excludes memory.model.
        model: Option<RawModels> = Example(r#""gpt-5-mini""#),
        /// Base URL for the Reflector; together with api_key or not at all.
        base_url: Option<String> = Example(r#""https://api.openai.com/v1""#),
        /// API key for base_url.
        api_key: Option<SecretString> = Example(r#""sk-...""#),
        /// Tokens of observations at which a reflection takes their place.
        observation_tokens: u64 = Default("40000"),
        /// Fraction of observation_tokens from which the reflection is made in the background;
        /// above 0, at most 1.
        buffer_activation: f64 = Default("0.5"),
        /// Where no model condenses the log, code shortens it from here on: the oldest observations of
        /// low priority go first. Below 100 a multiple of observation_tokens, else a number of tokens; at
        /// least observation_tokens.
        block_after: f64 = Default("1.2"),
        /// The share of the names, numbers, dates, quotes, paths, links and identifiers in lines marked as
        /// important or done that a reflection may lose, 0 to 1. One that loses more is asked for again
        /// with a list of what is missing; what is missing then is put back.
        max_loss: f64 = Default("0.05"),
        /// Let a reflection that is ready take the observations' place before observation_tokens when
        /// the conversation has been idle for so long: as in memory.observation, which it does not
        /// follow by itself.
        activate_after_idle: RawActivateAfterIdle = Default("false"),
        /// The same when another model is asked than before.
        activate_on_model_change: bool = Default("false"),
        /// Sampling temperature, 0 to 2. Dropped by itself for a model that refuses it.
        temperature: f64 = Default("0"),
        /// As of the Observer.
        model_settings: Option<JsonTable> = Example("{ max_output_tokens = 20000 }"),
        /// As of the Observer.
        provider_options: Option<JsonTable> = Example(r#"{ thinking = { type = "disabled" } }"#),
        /// How long one call may take.
        timeout: Duration = Default(r#""5m""#),
        /// What you want kept, or left out, in your own words; added to the Reflector's prompt.
        instruction: Option<String> = Example(r#""Keep every ticket number.""#),
        /// As memory.observation.continuation_hints.
        continuation_hints: BoolOrList = Default("true"),
    }

    /// What is taken out of messages before the Observer reads them.
    ["memory.redact"] redact: RawRedact {
        /// Kinds of secrets known by their shape: "api_key", "token", "password", "secret",
        /// "private_key". An empty list takes none out.
        kinds: Vec<String> = Default(r#"["api_key", "token", "password", "secret", "private_key"]"#),
        /// Regular expressions for whatever else must not be shown; a match becomes
        /// "[redacted: pattern]".
        patterns: Vec<String> = Default("[]"),
    }
}
