//! Every key: its name, kind, default and meaning, in one table.
//!
//! The table is the only definition. It produces [`RawConfig`] (the values as written), the layer of
//! defaults, the list of known keys and the reference file, so these cannot differ. It knows how values are
//! spelled; `validate` and `memory` check what they mean.

use std::time::Duration;

use secrecy::SecretString;

use super::layers::Layers;
use super::parse::{BoolOrList, NumberOrFalse, Section, Setting, SettingVisitor};
use super::problem::Problem;
use super::spec::{KeySpec, SampleValue, SectionSpec, Sections};
use super::tables::{JsonTable, RawModels, TableList};
use crate::jobs::ArchivePolicy;
use crate::memory::IdleTrigger;

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
        /// The values as written: read as their kinds, not yet checked.
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

            impl Section for $Section {
                fn visit(&mut self, visitor: &mut impl SettingVisitor) {
                    $(visitor.visit(
                        concat!($section, ".", stringify!($name)),
                        &mut self.$name,
                    );)+
                }
            }
        )+

        /// The table.
        pub(super) const SECTIONS: Sections = Sections(&[$(
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
        )+]);

        impl RawConfig {
            /// Reads every key from the layers. A value of the wrong kind is added to `problems` and
            /// replaced by its default, so that the other keys can still be checked.
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
        /// Address and port that clients use (the data port). Port 0 takes a free one. If it is not a loopback
        /// address, requests without a credential get no memory.
        listen: String = Default(r#""127.0.0.1:8484""#),
        /// Address and port of /healthz, /readyz and /metrics (the admin port).
        admin: String = Default(r#""127.0.0.1:8485""#),
        /// Token for the admin port: Authorization: Bearer. Without it /metrics is closed and /readyz tells only
        /// its status. If it is not set, this is so beyond loopback, and programs on this machine read all.
        admin_token: Option<SecretString> = Example(r#""a-long-random-text""#),
        /// Names by which clients reach a loopback listener, beside localhost and 127.0.0.1: for example the name
        /// that a reverse proxy on this machine passes on. A request for another name gets 421.
        hosts: Vec<String> = Default("[]"),
        /// Largest chat-completions body, in bytes (32 MiB). A larger one gets 413. Bodies of other paths have
        /// no limit.
        max_body_bytes: u64 = Default("33554432"),
        /// Memory for the bodies of all chat completions in progress, in bytes (256 MiB). A request beyond it is
        /// forwarded unread, without memory; if it does not say its length, it gets 503. Bodies of 256 KiB or
        /// more use at most a quarter of it if the upstream has not accepted their credential yet.
        max_buffered_bytes: u64 = Default("268435456"),
        /// Time a client has to send the head of a request. It also closes idle HTTP/1 connections.
        header_timeout: Duration = Default(r#""60s""#),
        /// Time a connection may pass without any byte in either direction, or an answer over HTTP/2 without its
        /// client reading. Models that think may pause for minutes.
        idle_timeout: Duration = Default(r#""5m""#),
        /// Time to connect to the upstream, TLS included.
        connect_timeout: Duration = Default(r#""10s""#),
        /// Time from the end of the request to the first line of the upstream's response.
        response_timeout: Duration = Default(r#""10m""#),
        /// Time that open answers have after SIGTERM. Then they are cut. "0s" cuts at once.
        drain_timeout: Duration = Default(r#""30s""#),
        /// Open client connections. One more gets 503.
        max_connections: u64 = Default("4096"),
        /// Requests in progress. One more gets 429. A chat completion counts when its body is in. One connection
        /// may have as many as it leaves free for others. While none is free, an answer over HTTP/2 that its client
        /// has not read for 15 seconds is reset to make room.
        max_requests: u64 = Default("1024"),
        /// Requests in progress of one address that is not of this machine; a network of IPv6 (/64) is one
        /// address. One more gets 429. Behind a load balancer all requests come from its address: write the
        /// same number as max_requests.
        max_requests_per_address: u64 = Default("512"),
        /// Time a client has to send the body of a chat completion, and a second more for each min_body_rate
        /// bytes that have come. After it the request gets 408.
        body_timeout: Duration = Default(r#""60s""#),
        /// Least rate of such a body in bytes a second (32 KiB), after body_timeout.
        min_body_rate: u64 = Default("32768"),
    }

    /// The provider, and the place of memory in requests to it.
    ["upstream"] upstream: RawUpstream {
        /// Base URL of the provider, usually with /v1 at its end. /v1/… of the data port goes to this path. Any
        /// other path goes to the same host, at the same path.
        base_url: String = Default(r#""https://api.openai.com/v1""#),
        /// Where the observations stand in the request. "system_message": a message of their own, after the
        /// client's first system messages. "append_to_system": at the end of the client's last leading system
        /// message, or a message of their own if there is none. "segments": a message of their own with one content
        /// part for each observation. "off": they are not sent. "auto": "system_message" if the upstream is OpenAI,
        /// Anthropic, DeepSeek or xAI, else "append_to_system", because many models read one system message
        /// only. If a model refuses the place, Diarist uses the next one down for an hour: segments,
        /// system_message, append_to_system.
        placement: String = Default(r#""auto""#),
        /// Whether the end of the observations gets one of the client's marks for the prompt cache ("cache_control",
        /// "prompt_cache_breakpoint"), if those that the client set are on messages that the observations replace.
        cache_marks: bool = Default("true"),
        /// Whether a request with observations gets a "prompt_cache_key", the same for the whole conversation, if the
        /// client sets neither that nor "user". Providers route requests by it to where their prompt is cached. "auto":
        /// if the upstream is OpenAI, Azure OpenAI or Mistral. "always": until the upstream refuses. "never": not at all.
        prompt_cache_key: String = Default(r#""auto""#),
        /// Whether the observations get a breakpoint for the prompt cache ("prompt_cache_breakpoint") behind their log, if
        /// the client sets no mark and no "prompt_cache_options". GPT-5.6 and later models store a prompt up to
        /// breakpoints only; with this one an activation reads the older observations from the cache. "auto": for these
        /// models of OpenAI and Azure OpenAI. "always": for every model, until the upstream refuses. "never": not at all.
        cache_breakpoint: String = Default(r#""auto""#),
        /// Which header a request with observations gets, with the same hash for the whole conversation, if the client
        /// sends neither this header nor "session_id". Providers route requests by it to where their prompt is cached.
        /// "auto": the one that the upstream documents: x-grok-conv-id for xAI, x-session-affinity for Fireworks,
        /// x-session-id for OpenRouter. "never": none. Otherwise the name of a header that begins with "x-", for a router
        /// of your own.
        session_affinity: String = Default(r#""auto""#),
    }

    /// The database.
    ["store"] store: RawStore {
        /// The database: a path such as "/var/lib/diarist/diarist.db", the same as a URL
        /// ("sqlite:///var/lib/diarist/diarist.db"), or "sqlite::memory:", which forgets everything at exit.
        /// Unset: diarist/diarist.db in the data folder of the platform; on Linux that is $XDG_DATA_HOME or
        /// ~/.local/share. A URL is not percent-decoded.
        url: Option<String> = Example(r#""sqlite:///var/lib/diarist/diarist.db""#),
        /// The secret that keys every hash in the database, at least 32 bytes. Better kept in the environment:
        /// DIARIST__STORE__PEPPER. Unset: pepper_file holds it.
        pepper: Option<SecretString> = Example(r#""a random secret of 32 bytes or more""#),
        /// The file that holds the pepper. If neither the file nor the database exists, the start makes it with a
        /// random pepper. Keep a copy apart from the copies of the database: without it, their memory is lost.
        /// Unset: the path of the database with ".pepper" behind it.
        pepper_file: Option<String> = Example(r#""/etc/diarist/pepper""#),
        /// Conversations without a request for this long are deleted with their observations. One that goes on
        /// later begins anew. Unset: none is deleted because of its age.
        retention: Option<Duration> = Example(r#""90d""#),
        /// The most bytes that the conversations of one account may take in the database. When they take more, those
        /// without a request for the longest time are deleted with their observations, until a tenth is free. Choose
        /// much more than one conversation takes. Unset or 0: no limit.
        max_account_bytes: Option<u64> = Example("1000000000"),
        /// Observations and reflections that wait for a model are deleted with their text if their conversation
        /// has had no request for this long. Its next request queues them again.
        job_retention: Duration = Default(r#""7d""#),
    }

    /// The audit: one JSON line for each request, each model call of memory, each observation and reflection that is stored,
    /// and each deletion by an operator.
    ["audit"] audit: RawAudit {
        /// File of the audit. "-" is standard output (logs go to standard error). "off" writes no audit.
        path: String = Default(r#""-""#),
        /// Size in bytes beyond which a new file begins. The old one gets the name with ".1" at its end, the one
        /// before it ".2", and so on. At least 100000. Unset: never.
        max_file_bytes: Option<u64> = Example("100000000"),
        /// Age of the first line beyond which a new file begins. Unset: never.
        max_file_age: Option<Duration> = Example(r#""7d""#),
        /// How many old files stay, if Diarist rotates. The oldest one is deleted.
        keep_files: u64 = Default("10"),
        /// How long lines of the audit are also kept in the database, where "diarist audit --store" reads them. Without
        /// memory, or with memory.read_only, nothing is written there. Unset: none are stored; those of before stay.
        store_retention: Option<Duration> = Example(r#""30d""#),
        /// Whether Diarist asks for token counts in streams if the client does not. "auto": if the upstream is
        /// known to support it. "always": until the upstream refuses, or compresses such a stream all the same.
        /// "never": not at all. Never at openrouter.ai, which reports them anyway. The client does not see the extra
        /// event.
        ask_usage: String = Default(r#""auto""#),
        /// Share of conversations that go without memory, so that "diarist audit" can compare both groups. From 0
        /// to 0.5. A conversation stays in its group. It goes without memory only if it has none yet.
        holdout: f64 = Default("0.0"),
        /// Rules of a prompt cache that Diarist does not know, or knows otherwise. They change what the audit
        /// says about the cache, and nothing else. An entry has model, with * for any text and ? for one
        /// character, and what differs: minimum_tokens (a shorter prompt is never cached), step_tokens (hits come
        /// in multiples of it), lifetime (after this pause a prompt may be gone), look_back (the cache reads up to marks,
        /// and a mark finds what is at most so many blocks before it). The first entry that matches counts. Write a
        /// list as here, or a section [[audit.cache_rules]] for each entry:
        /// { model = "qwen*", minimum_tokens = 16, step_tokens = 16, lifetime = "1h" }.
        cache_rules: TableList = Default("[]"),
        /// Prices that "diarist audit" counts with, and that decide when memory pays (memory.policy), in dollars per
        /// million tokens: a model, and its price for uncached tokens, cached ones, the answer, and ones written to the
        /// cache (without it: as uncached). They win over those that are built in. One of the list is
        /// "own-model=0.2,0.02,0.8".
        prices: Vec<String> = Default("[]"),
    }

    /// Spans and metrics over OTLP (HTTP with protobuf).
    ["otlp"] otlp: RawOtlp {
        /// Base URL of the collector; /v1/traces and /v1/metrics follow it. Unset: OTEL_EXPORTER_OTLP_ENDPOINT, and
        /// nothing is exported if that is not set either.
        endpoint: Option<String> = Example(r#""http://localhost:4318""#),
        /// Headers of each export, as in OTEL_EXPORTER_OTLP_HEADERS: name=value, with commas between several. Better
        /// kept in the environment: DIARIST__OTLP__EXPORT_HEADERS.
        export_headers: Option<SecretString> = Example(r#""authorization=Bearer ...""#),
        /// Whether spans are exported. OTEL_TRACES_EXPORTER=none switches them off, too.
        traces: bool = Default("true"),
        /// Whether metrics of the GenAI conventions are exported. OTEL_METRICS_EXPORTER=none switches them off, too.
        metrics: bool = Default("true"),
        /// Whether requests to the upstream name Diarist's span as their parent (traceparent, tracestate). Without it,
        /// these headers pass as the client sent them.
        propagate: bool = Default("false"),
        /// Which names attributes and metrics have. "gen_ai_latest_experimental": those of the newest GenAI
        /// conventions. Unset: OTEL_SEMCONV_STABILITY_OPT_IN, and names that most programs know today if that is not
        /// set either.
        semconv_opt_in: Option<String> = Example(r#""gen_ai_latest_experimental""#),
    }

    /// What names a conversation, and whose it is. A name groups requests. A name alone gives no access to
    /// memory.
    ["identity"] identity: RawIdentity {
        /// Headers that may hold the name of the conversation. The first usable one counts; x-diarist-thread
        /// always comes first. "known" stands for the built-in list of clients that Diarist knows: add names
        /// before or after it, or leave it out. Not in the list are x-portkey-trace-id and x-litellm-trace-id,
        /// since some clients change them with each request.
        headers: Vec<String> = Default(r#"["known"]"#),
        /// Fields of the body that may hold this name, looked at after the headers. A dot goes one level down.
        /// "known" stands for: session_id; conversation, or its id; session_id, conversation_id, chat_id in
        /// metadata; litellm_session_id; the session in the metadata.user_id of Claude Code. Not among them is
        /// prompt_cache_key, since some clients use one for many conversations.
        body_fields: Vec<String> = Default(r#"["known"]"#),
        /// Headers in which a client says that this request is a side task (a title, tags), such as {{TASK}} of
        /// Open WebUI in a header of your own. Such a request reads memory and writes none. Rules
        /// (memory.rules) come first.
        task_headers: Vec<String> = Default(r#"["x-diarist-task", "x-openwebui-task"]"#),
        /// Headers whose values tell tenants apart. "*" begins an ending, as in "*-api-key". The first header of
        /// this list that a request has is its account, to which shares and budgets belong. "known" stands for
        /// authorization, api-key, x-api-key, ocp-apim-subscription-key, x-auth-token, x-access-token, x-api-token,
        /// private-token, x-goog-iam-authorization-token, *-api-key, *-subscription-key, *-auth, *-authorization;
        /// and for cookie, which counts only in a request without any other credential. The header of
        /// identity.resource never counts.
        credentials: Vec<String> = Default(r#"["known"]"#),
        /// Tenants that one account may begin in an hour. A client can make many of one key, with headers that
        /// its upstream ignores. Beyond it the requests of new ones pass without memory.
        new_tenants_per_hour: u64 = Default("100"),
    }

    /// Which user of your application is talking. Conversations share memory only for users that are named
    /// here. The header x-diarist-resource, which any client can write, only separates users.
    ["identity.resource"] resource: RawResource {
        /// Header that names the user of your application. Unset: no user is trusted.
        header: Option<String> = Example(r#""x-openwebui-user-jwt""#),
        /// Who sets this header. "trusted-proxy": a proxy in front of Diarist, which removes what clients write
        /// there. "application": a server of yours, and nobody else reaches the data port. "signed": anybody;
        /// the value is a JWT that Diarist verifies with the keys below. If it is invalid, the request passes
        /// without memory.
        set_by: Option<String> = Example(r#""signed""#),
        /// Secret of signed names (HS256, HS384, HS512), at least 16 bytes. For Open WebUI: the value of its
        /// FORWARD_USER_INFO_HEADER_JWT_SECRET. Better kept in the environment:
        /// DIARIST__IDENTITY__RESOURCE__SECRET.
        secret: Option<SecretString> = Example(r#""a secret of 16 bytes or more""#),
        /// File with the public keys of signed names, PEM or JWKS, instead of secret. SIGHUP reads it again.
        keys_file: Option<String> = Example(r#""/etc/diarist/jwks.json""#),
        /// Allowed algorithms, such as "RS256". Empty: all that fit the keys. "none" is never allowed.
        algorithms: Vec<String> = Default("[]"),
        /// Required iss claim. Unset: any issuer.
        issuer: Option<String> = Example(r#""open-webui""#),
        /// Required aud claim. Unset: a token with an aud claim is refused.
        audience: Option<String> = Example(r#""diarist""#),
        /// Claim that names the user.
        claim: String = Default(r#""sub""#),
        /// Allowed difference of clocks, at most 10 minutes. A token without exp is refused.
        leeway: Duration = Default(r#""30s""#),
    }

    /// Tokens (JWT) in the Authorization header whose subject is the tenant, so that a token that is
    /// renewed every hour keeps its memory. An invalid token is treated as an ordinary key: it gets only
    /// the memory made with that same key.
    ["identity.token"] token: RawToken {
        /// Secret of JWTs in Authorization, at least 16 bytes. If secret and keys_file are both unset, Diarist
        /// looks at no token.
        secret: Option<SecretString> = Example(r#""a secret of 16 bytes or more""#),
        /// File with the public keys of these tokens, PEM or JWKS, instead of secret. SIGHUP reads it again.
        keys_file: Option<String> = Example(r#""/etc/diarist/jwks.json""#),
        /// Allowed algorithms, such as "RS256". Empty: all that fit the keys. "none" is never allowed.
        algorithms: Vec<String> = Default("[]"),
        /// Required iss claim. Unset: any issuer.
        issuer: Option<String> = Example(r#""https://login.example.com/""#),
        /// Required aud claim. Unset: a token with an aud claim is refused.
        audience: Option<String> = Example(r#""diarist""#),
        /// Claim that names the tenant.
        claim: String = Default(r#""sub""#),
        /// Allowed difference of clocks, at most 10 minutes. A token without exp is refused.
        leeway: Duration = Default(r#""30s""#),
    }

    /// Memory. model, base_url and api_key set here are for both phases.
    ["memory"] memory: RawMemory {
        /// Whether there is memory. false makes Diarist a plain proxy and creates no database.
        enabled: bool = Default("true"),
        /// When memory is made and used. "published": at the thresholds of [memory.observation] and
        /// [memory.reflection]. "cost_aware": when it pays by the prices in [memory.cost]. "auto": "cost_aware" for
        /// models of known price; "published" for all others, and where message_tokens, block_after or
        /// share_token_budget is changed.
        policy: String = Default(r#""auto""#),
        /// Who shares a memory. "thread": each conversation has its own. "resource": conversations of one user
        /// also share what they learned; this needs identity.resource.
        scope: String = Default(r#""thread""#),
        /// With scope = "resource": how much of the block may come from other conversations. Below 1: a
        /// fraction of observation_tokens.
        other_conversations: f64 = Default("0.1"),
        /// Time zone of dates and times in observations: an IANA name such as "Europe/Oslo", or "system", the
        /// zone of this machine. A request may name its own zone with x-diarist-timezone.
        timezone: String = Default(r#""system""#),
        /// Whether the Observer is told about pauses of ten minutes and more.
        temporal_markers: bool = Default("false"),
        /// How long the text of messages stays in the database, with secrets removed. "until_observed": only
        /// while it waits for the Observer. "always", or a duration such as "720h": all messages that at least
        /// two requests contained. `threads show --why` shows kept text, and what a client drops before it was
        /// observed can still be observed from it.
        keep_messages: ArchivePolicy = Default(r#""until_observed""#),
        /// Model of the Observer and the Reflector; not together with the model of a phase. A cheap model pays.
        /// Unset: a phase without a model uses that of the other phase if both call the same endpoint,
        /// otherwise the model of the conversation. A table names models by the tokens of the whole prompt,
        /// each bound included, such as { "20000" = "gpt-5-nano", "200000" = "gpt-5-mini" }; a prompt beyond
        /// the last bound goes to the last model.
        model: Option<RawModels> = Example(r#""gpt-5-nano""#),
        /// Endpoint for both phases. Set it together with api_key. Unset: the upstream, with the credential of
        /// the conversation.
        base_url: Option<String> = Example(r#""https://api.openai.com/v1""#),
        /// Key for base_url. Better kept in the environment: DIARIST__MEMORY__API_KEY.
        api_key: Option<SecretString> = Example(r#""sk-...""#),
        /// Limit of prompt and answer tokens that memory's own model calls may use for one account on one UTC
        /// day. Then its jobs wait until the next day. Requests are not affected. Unset: no limit.
        daily_tokens: Option<u64> = Example("5000000"),
        /// The same limit for all accounts together. Unset: no limit.
        daily_tokens_total: Option<u64> = Example("50000000"),
        /// Folder for failed model calls of memory, to look at with `diarist reproduce`. The files contain text
        /// of your users with secrets removed, and never a credential. The newest 50 stay. Unset: none are
        /// kept.
        bundles: Option<String> = Example(r#""/var/lib/diarist/bundles""#),
        /// Whether thresholds follow the provider's own count of tokens. Diarist counts with one tokenizer, and most
        /// models count a little differently; `diarist audit` shows by how much. true: once enough is known of a
        /// model, its thresholds are sizes as its provider counts them.
        calibrate_tokens: bool = Default("false"),
        /// Whether raw messages may use the tokens that observations do not use. With few observations, more
        /// raw messages are kept.
        share_token_budget: bool = Default("false"),
        /// Use existing memory, but do not add to it. No request header and no rule changes this; an override
        /// does.
        read_only: bool = Default("false"),
        /// Which requests have memory. A rule has path, model or header (with value), with * for any text and ?
        /// for one character, and memory = "off", "read" (existing memory is sent, nothing is remembered) or
        /// "on". The first rule that matches counts; the header x-diarist-memory of a request comes before all
        /// rules. Write a list as here, or a section [[memory.rules]] for each rule:
        /// { header = "x-task", value = "title*", memory = "read" }.
        rules: TableList = Default("[]"),
        /// Other settings for some models or upstreams. An override has model, upstream (its host) or both,
        /// with * for any text and ? for one character, and the keys that differ: share_token_budget,
        /// read_only, and every key of observation and reflection except base_url and api_key. Only the
        /// narrowest matching override counts: model and upstream before model before upstream, then the longer
        /// pattern. A pattern of wildcards alone does not count. Write a list as here, or a section
        /// [[memory.overrides]] for each: { model = "*-mini", observation = { message_tokens = 15000,
        /// instruction = "Be brief." } }.
        overrides: TableList = Default("[]"),
        /// What happens if a request is still too long for its model after Diarist has applied all
        /// observations. "pass": the client gets the refusal. "observe": Diarist observes more while the client
        /// waits, then sends the request again. "trim": Diarist leaves out the oldest messages and adds a note
        /// that says so.
        overflow: String = Default(r#""pass""#),
        /// Longest wait of a client with overflow = "observe", however many clients wait for the same
        /// conversation.
        overflow_timeout: Duration = Default(r#""1m""#),
        /// What proves that a shortened request belongs to a known conversation. "strict": nothing; a request
        /// gets only notes about messages it contains. "names": its name, if no other conversation has it, and an
        /// answer of the provider that only this conversation has. "content": such an answer; without the name,
        /// more messages around it must be equal.
        evidence: String = Default(r#""content""#),
    }

    /// The Observer: turns older messages into observations.
    ["memory.observation"] observation: RawObservation {
        /// Model of the Observer, or a table as in memory.model. Not together with memory.model.
        model: Option<RawModels> = Example(r#""gpt-5-nano""#),
        /// Endpoint of the Observer. Set it together with api_key.
        base_url: Option<String> = Example(r#""https://api.openai.com/v1""#),
        /// Key for base_url.
        api_key: Option<SecretString> = Example(r#""sk-...""#),
        /// Size of the raw messages at which observations replace the oldest ones (the activation).
        message_tokens: u64 = Default("30000"),
        /// Size of the piece that the Observer reads at one time, in the background. Below 1: a fraction of
        /// message_tokens. Otherwise a number of tokens below message_tokens.
        buffer_tokens: f64 = Default("0.2"),
        /// Whether each turn is observed when it has ended, however short it is. This costs one Observer call
        /// for each turn.
        buffer_on_idle: bool = Default("false"),
        /// How much an activation removes. Up to 1: the fraction of message_tokens to remove. From 1000: the
        /// tokens of recent messages to keep. Values between are errors.
        buffer_activation: f64 = Default("0.8"),
        /// Above this size an activation removes messages even if fewer remain than buffer_activation asks for.
        /// Below 100: a multiple of message_tokens. Otherwise a number of tokens, at least message_tokens.
        block_after: f64 = Default("1.2"),
        /// Activate early after a pause of this length: it costs nothing if the cache of the provider is cold
        /// then. A duration, "auto" (5 minutes to 24 hours, by provider and model), or false. A bare number from
        /// 1000 is milliseconds. Unset: "auto" where costs decide, otherwise false.
        activate_after_idle: Option<IdleTrigger> = Example(r#""auto""#),
        /// Activate early if the client changes the model, because the cache of the other model is cold. The
        /// first request after a restart does not count.
        activate_on_model_change: bool = Default("false"),
        /// Sampling temperature, 0 to 2. Diarist leaves it out for a model that refuses it.
        temperature: f64 = Default("0.3"),
        /// Limit of one answer of the Observer, in tokens. Unset: the limit of the model, or that of a gateway,
        /// which can be as low as 1,000 to 4,000. If an answer is cut, Diarist asks again for half of the
        /// messages.
        max_output_tokens: Option<u64> = Example("16000"),
        /// Common parameters: temperature, max_output_tokens, top_p, min_p, top_k, seed, stop,
        /// presence_penalty, frequency_penalty, reasoning_effort, verbosity, service_tier. Diarist leaves out
        /// what a model refuses. In the environment, write a JSON object.
        model_settings: Option<JsonTable> = Example(r#"{ top_p = 0.9, reasoning_effort = "low" }"#),
        /// Fields for the body of each call, sent as they are. A field replaces Diarist's own field of the same
        /// name.
        provider_options: Option<JsonTable> = Example(r#"{ thinking = { type = "disabled" } }"#),
        /// Longest time of one call.
        timeout: Duration = Default(r#""2m""#),
        /// Your own words on what to record or leave out. They are added to the prompt.
        instruction: Option<String> = Example(r#""Record every ticket number verbatim.""#),
        /// Most tokens of history in one call, at least 1000. A longer range takes several calls and stays one
        /// chunk. Diarist lowers it for a model that refuses a prompt as too long.
        max_input_tokens: u64 = Default("60000"),
        /// How much of the earlier observations the Observer sees, so that it does not repeat them. 0: nothing.
        /// false: all, up to max_input_tokens.
        previous_observer_tokens: NumberOrFalse = Default("2000"),
        /// Whether the Observer writes "current_task" and "suggested_response". If neither phase writes a hint,
        /// the model gets none.
        continuation_hints: BoolOrList = Default("true"),
        /// Which files the Observer sees: "auto" (images and PDF), true, false, or a list of media types such
        /// as "image/*". A model that refuses files gets none. The text always says that a file was there.
        observe_attachments: BoolOrList = Default(r#""auto""#),
        /// Tags of blocks that a client adds to each user message by itself. The Observer does not see the text
        /// from <name> to </name>, each alone on its line and outside of code; the model does. Do not list a
        /// tag with text that the client sends only once: "system-reminder" may hold the rules of a project,
        /// "environment_details" the output of a terminal. An empty list hides nothing.
        omit_blocks: Vec<String> = Default(r#"["reminderInstructions"]"#),
        /// Whether the Observer sees the system prompt of the application, as background.
        observe_system: bool = Default("false"),
        /// Whether the Observer writes a title, shown by `diarist threads`.
        thread_title: bool = Default("false"),
    }

    /// The Reflector: condenses observations that have become too long.
    ["memory.reflection"] reflection: RawReflection {
        /// Model of the Reflector, or a table as in memory.model. Not together with memory.model.
        model: Option<RawModels> = Example(r#""gpt-5-mini""#),
        /// Endpoint of the Reflector. Set it together with api_key.
        base_url: Option<String> = Example(r#""https://api.openai.com/v1""#),
        /// Key for base_url.
        api_key: Option<SecretString> = Example(r#""sk-...""#),
        /// Size of the observations at which a reflection (a shorter log) replaces them.
        observation_tokens: u64 = Default("40000"),
        /// Fraction of observation_tokens at which the Reflector starts in the background; above 0, at most 1.
        buffer_activation: f64 = Default("0.5"),
        /// Above this size code shortens the log, if no model did. It removes old lines of low priority first.
        /// Below 100: a multiple of observation_tokens. Otherwise a number of tokens, at least
        /// observation_tokens.
        block_after: f64 = Default("1.2"),
        /// Share of the names, numbers, dates, quotes, paths, links and identifiers in important or completed
        /// lines that a reflection may lose. If it loses more, Diarist asks again, then adds the missing items
        /// itself.
        max_loss: f64 = Default("0.05"),
        /// As memory.observation.activate_after_idle. It does not follow the setting there.
        activate_after_idle: Option<IdleTrigger> = Example(r#""auto""#),
        /// As memory.observation.activate_on_model_change. It does not follow the setting there.
        activate_on_model_change: bool = Default("false"),
        /// Sampling temperature, 0 to 2. Diarist leaves it out for a model that refuses it.
        temperature: f64 = Default("0"),
        /// As memory.observation.model_settings.
        model_settings: Option<JsonTable> = Example("{ max_output_tokens = 20000 }"),
        /// As memory.observation.provider_options.
        provider_options: Option<JsonTable> = Example(r#"{ thinking = { type = "disabled" } }"#),
        /// Longest time of one call.
        timeout: Duration = Default(r#""5m""#),
        /// Your own words on what to keep or leave out. They are added to the prompt.
        instruction: Option<String> = Example(r#""Keep every ticket number.""#),
        /// As memory.observation.continuation_hints.
        continuation_hints: BoolOrList = Default("true"),
    }

    /// Prices where costs decide (see memory.policy). All are multiples of the price of one uncached prompt token of
    /// the conversation's model. Unset prices are those of audit.prices, or of the models that Diarist knows.
    ["memory.cost"] cost: RawCost {
        /// Price of a prompt token from the cache. For a model of unknown price: what its provider publishes, or
        /// 0.1.
        cache_read: Option<f64> = Example("0.1"),
        /// Price of a prompt token that the cache did not hold. For a model of unknown price: what its provider
        /// publishes, or 1.
        cache_write: Option<f64> = Example("1.25"),
        /// Price of a prompt token of the Observer and the Reflector. If it is not known: 1, as dear as the
        /// conversation's model.
        observer_input: Option<f64> = Example("0.1"),
        /// Price of a token of their answers. If it is not known: five times observer_input.
        observer_output: Option<f64> = Example("0.5"),
        /// How much dearer than without memory a conversation may become, as a share of its cost without.
        max_loss: f64 = Default("0.1"),
        /// Size of the raw messages at which memory is made and used whatever it costs. Keep it below what your
        /// models read, less system prompt and answer. At least memory.observation.message_tokens.
        history_limit: u64 = Default("100000"),
    }

    /// What is removed from messages before the Observer reads them.
    ["memory.redact"] redact: RawRedact {
        /// Kinds of secrets that are removed before a message is stored or shown to the Observer: "api_key",
        /// "token", "password", "secret", "private_key". An empty list removes none.
        kinds: Vec<String> = Default(r#"["api_key", "token", "password", "secret", "private_key"]"#),
        /// Your own regular expressions. A match becomes "[redacted: pattern]".
        patterns: Vec<String> = Default("[]"),
    }
}
