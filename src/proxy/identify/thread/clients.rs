//! One request of each client and gateway, as captured or as documented: which value becomes the name of the
//! conversation. The other values that it sends (agents, request ids, users) must not.

use super::tests::named_by;
use super::*;

const UUID: &str = "01a1f852-19a8-7743-9dbb-616cdf6b2b32";
const USER: &str = "5e3b91a4-0000-4000-8000-000000000001";

#[derive(Clone, Copy)]
struct Sent {
    client: &'static str,
    headers: &'static [(&'static str, &'static str)],
    /// Fields of the body beside `messages`.
    fields: &'static str,
    /// Place and value of the conversation's name; `None` if the client sends none.
    named: Option<(&'static str, &'static str)>,
    child: bool,
}

const fn sent(
    client: &'static str,
    headers: &'static [(&'static str, &'static str)],
    fields: &'static str,
    named: Option<(&'static str, &'static str)>,
) -> Sent {
    Sent {
        client,
        headers,
        fields,
        named,
        child: false,
    }
}

const fn child(sent: Sent) -> Sent {
    Sent {
        child: true,
        ..sent
    }
}

const CODEX: (&str, &str) = ("user-agent", "codex_exec/0.169.0 (Debian 12.0.0; x86_64)");

const CLIENT_REQUESTS: &[Sent] = &[
    sent(
        "Mastra's gateway",
        &[("x-thread-id", "thread-7"), ("x-resource-id", USER)],
        "",
        Some(("x-thread-id", "thread-7")),
    ),
    sent(
        "Supermemory's router",
        &[("x-sm-conversation-id", "conv-7"), ("x-sm-user-id", USER)],
        r#""user":"somebody""#,
        Some(("x-sm-conversation-id", "conv-7")),
    ),
    sent(
        "Open WebUI",
        &[
            ("x-openwebui-chat-id", UUID),
            ("x-openwebui-message-id", "b5ce1537"),
            ("x-openwebui-user-id", USER),
            ("x-openwebui-user-name", "Ada"),
            ("x-openwebui-user-email", "ada@example.com"),
            ("x-openwebui-user-role", "user"),
            ("user-agent", "Python/3.11 aiohttp/3.14.5"),
        ],
        "",
        Some(("x-openwebui-chat-id", UUID)),
    ),
    sent(
        "Open WebUI, signed",
        &[
            ("x-openwebui-chat-id", UUID),
            (
                "x-openwebui-user-jwt",
                "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln",
            ),
        ],
        "",
        Some(("x-openwebui-chat-id", UUID)),
    ),
    sent(
        "LibreChat, as its documentation has it",
        &[("x-conversation-id", UUID), ("x-user-id", USER)],
        "",
        Some(("x-conversation-id", UUID)),
    ),
    sent(
        "opencode",
        &[
            ("x-session-id", "ses_e07becb45ffeGI67jJZFQmq3T5"),
            ("x-session-affinity", "ses_e07becb45ffeGI67jJZFQmq3T5"),
            (
                "user-agent",
                "opencode/1.18.33 ai-sdk/provider-utils/4.0.23",
            ),
        ],
        r#""prompt_cache_key":"ses_e07becb45ffeGI67jJZFQmq3T5""#,
        Some(("x-session-id", "ses_e07becb45ffeGI67jJZFQmq3T5")),
    ),
    child(sent(
        "opencode, a sub-agent",
        &[
            ("x-session-id", "ses_child00000000000000000000"),
            ("x-parent-session-id", "ses_e07becb45ffeGI67jJZFQmq3T5"),
        ],
        "",
        Some(("x-session-id", "ses_child00000000000000000000")),
    )),
    sent(
        "opencode at its own gateway",
        &[
            ("x-opencode-session", "ses_7"),
            ("x-opencode-project", "p1"),
            ("x-opencode-request", "r1"),
            ("x-opencode-client", "cli"),
        ],
        "",
        Some(("x-opencode-session", "ses_7")),
    ),
    sent(
        "Codex",
        &[
            CODEX,
            ("session-id", UUID),
            ("thread-id", UUID),
            ("x-client-request-id", UUID),
            (
                "x-codex-window-id",
                "01a1f852-19a8-7743-9dbb-616cdf6b2b32:0",
            ),
            ("originator", "codex_exec"),
        ],
        r#""prompt_cache_key":"01a1f852-19a8-7743-9dbb-616cdf6b2b32""#,
        Some(("thread-id", UUID)),
    ),
    sent(
        "Codex, older builds",
        &[CODEX, ("conversation_id", UUID), ("session_id", UUID)],
        "",
        Some(("conversation_id", UUID)),
    ),
    sent(
        "Codex behind LiteLLM",
        &[
            ("user-agent", "litellm/1.106.2"),
            (
                "x-codex-turn-metadata",
                r#"{"session_id":"s-1","thread_id":"t-1","agent_name":"/root","request_kind":"turn"}"#,
            ),
        ],
        "",
        Some(("x-codex-turn-metadata", "t-1")),
    ),
    child(sent(
        "Codex, on an errand of its own",
        &[CODEX, ("session-id", UUID), ("x-openai-subagent", "review")],
        "",
        None,
    )),
    sent(
        "Claude Code",
        &[
            ("x-claude-code-session-id", UUID),
            ("user-agent", "claude-cli/2.1"),
        ],
        "",
        Some(("x-claude-code-session-id", UUID)),
    ),
    sent(
        "Claude Code behind a gateway",
        &[("user-agent", "claude-cli/2.1")],
        r#""metadata":{"user_id":"user_0f_account__session_01a1f852-19a8-7743-9dbb-616cdf6b2b32"}"#,
        Some(("body.metadata.user_id", UUID)),
    ),
    sent(
        "Cline at its own provider",
        &[("x-task-id", "1763650000000"), ("user-agent", "Cline/3.2")],
        "",
        Some(("x-task-id", "1763650000000")),
    ),
    sent(
        "Cline at OpenRouter",
        &[("http-referer", "https://cline.bot"), ("x-title", "Cline")],
        r#""session_id":"1763650000000""#,
        Some(("body.session_id", "1763650000000")),
    ),
    sent("Cline elsewhere", &[("user-agent", "ai/7.0.173")], "", None),
    sent(
        "Roo at its own provider",
        &[("x-roo-task-id", UUID)],
        "",
        Some(("x-roo-task-id", UUID)),
    ),
    sent(
        "Roo at Codex' endpoint",
        &[
            ("session_id", UUID),
            ("user-agent", "roo-code/3.30.0 (linux; x64) node/22"),
        ],
        "",
        Some(("session_id", UUID)),
    ),
    sent(
        "Kilo at its own gateway",
        &[
            ("x-kilocode-taskid", UUID),
            ("x-kilocode-organizationid", "org"),
            ("x-kilocode-projectid", "project"),
        ],
        "",
        Some(("x-kilocode-taskid", UUID)),
    ),
    sent(
        "LiteLLM",
        &[
            ("x-litellm-session-id", UUID),
            ("x-litellm-trace-id", "t-1"),
        ],
        "",
        Some(("x-litellm-session-id", UUID)),
    ),
    sent(
        "LiteLLM, in the body",
        &[],
        r#""litellm_session_id":"conv-7","metadata":{"trace_id":"t-1"}"#,
        Some(("body.litellm_session_id", "conv-7")),
    ),
    sent(
        "Helicone",
        &[
            ("helicone-session-id", UUID),
            ("helicone-session-name", "trip"),
            ("helicone-session-path", "/abstract"),
            ("helicone-user-id", USER),
        ],
        "",
        Some(("helicone-session-id", UUID)),
    ),
    sent(
        "Portkey, whose traces are not conversations",
        &[
            ("x-portkey-trace-id", UUID),
            ("x-portkey-metadata", r#"{"_user":"ada"}"#),
        ],
        "",
        None,
    ),
    sent(
        "OpenRouter",
        &[],
        r#""session_id":"chat-7","user":"ada""#,
        Some(("body.session_id", "chat-7")),
    ),
    sent(
        "xAI",
        &[("x-grok-conv-id", UUID)],
        "",
        Some(("x-grok-conv-id", UUID)),
    ),
    sent(
        "Fireworks",
        &[("x-session-affinity", "chat-7")],
        r#""user":"ada""#,
        Some(("x-session-affinity", "chat-7")),
    ),
    sent(
        "Merge",
        &[("x-merge-thread-id", UUID)],
        "",
        Some(("x-merge-thread-id", UUID)),
    ),
    sent(
        "a vendor of tomorrow",
        &[("x-acme-session-id", UUID)],
        "",
        Some(("x-acme-session-id", UUID)),
    ),
    sent(
        "OpenAI's conversations",
        &[],
        r#""conversation":{"id":"conv_7"}"#,
        Some(("body.conversation.id", "conv_7")),
    ),
    sent(
        "an application's metadata",
        &[],
        r#""metadata":{"conversation_id":"conv-7","tier":"gold"}"#,
        Some(("body.metadata.conversation_id", "conv-7")),
    ),
    sent(
        "OpenAI's own fields, which name a person or a prompt",
        &[("x-client-request-id", UUID)],
        r#""user":"ada","safety_identifier":"ada","prompt_cache_key":"v7","previous_response_id":"r1""#,
        None,
    ),
];

#[test]
fn each_client_request_gives_the_expected_conversation_name() {
    for sent in CLIENT_REQUESTS {
        let found = named_by(&Sources::default(), sent.headers, sent.fields);
        let named = found.source.as_deref().zip(found.key.as_deref());
        assert_eq!(named, sent.named, "{}: {found:?}", sent.client);
        assert_eq!(found.child, sent.child, "{}", sent.client);
    }
}

/// Values that are not used by default can be configured by the operator.
#[test]
fn the_operator_can_configure_sources_that_are_off_by_default() {
    let sources = Sources::new(
        &["known", "x-portkey-trace-id"],
        &["known", "prompt_cache_key"],
    );
    let trace = named_by(&sources, &[("x-portkey-trace-id", UUID)], "");
    assert_eq!(trace.source.as_deref(), Some("x-portkey-trace-id"));
    let key = named_by(&sources, &[], r#""prompt_cache_key":"chat-7""#);
    assert_eq!(key.source.as_deref(), Some("body.prompt_cache_key"));
    assert_eq!(key.key.as_deref(), Some("chat-7"));
}
