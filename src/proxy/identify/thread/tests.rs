use super::*;

const UUID: &str = "01a1f852-19a8-7743-9dbb-616cdf6b2b32";

pub(super) fn named_by(sources: &Sources, headers: &[(&str, &str)], fields: &str) -> Thread {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("a name");
        map.append(name, value.parse().expect("a value"));
    }
    let comma = if fields.is_empty() { "" } else { "," };
    let body = format!(r#"{{"messages":[{{"role":"user","content":"x"}}]{comma}{fields}}}"#);
    let parsed = crate::wire::Request::parse_chat(&body.into()).expect("a request");
    find_thread(&map, &parsed, sources)
}

fn named(headers: &[(&str, &str)], fields: &str) -> Thread {
    named_by(&Sources::default(), headers, fields)
}

fn key(headers: &[(&str, &str)], fields: &str) -> Option<String> {
    named(headers, fields).key
}

fn ignored(headers: &[(&str, &str)], fields: &str) -> Vec<String> {
    named(headers, fields).ignored
}

/// What each client sends, alone.
#[test]
fn every_known_thread_header_names_the_conversation() {
    let codex = ("user-agent", "codex_exec/0.169.0 (Debian 12.0.0)");
    let cline = ("user-agent", "Cline/3.2");
    let headers: &[(&str, &[(&str, &str)])] = &[
        ("x-diarist-thread", &[]),
        ("x-conversation-id", &[]),
        ("x-thread-id", &[]),
        ("x-sm-conversation-id", &[]),
        ("x-openwebui-chat-id", &[]),
        ("x-librechat-conversation-id", &[]),
        ("x-opencode-session", &[]),
        ("x-session-id", &[]),
        ("x-session-affinity", &[]),
        ("thread-id", &[codex]),
        ("conversation_id", &[codex]),
        ("session-id", &[codex]),
        ("session_id", &[codex]),
        ("session_id", &[cline]),
        ("x-claude-code-session-id", &[]),
        ("x-task-id", &[]),
        ("x-roo-task-id", &[]),
        ("x-kilocode-taskid", &[]),
        ("x-litellm-session-id", &[]),
        ("helicone-session-id", &[]),
        ("x-grok-conv-id", &[]),
        ("x-merge-thread-id", &[]),
        ("x-headroom-session-id", &[]),
        ("x-acme-session-id", &[]),
    ];
    for (name, beside) in headers {
        let mut sent = beside.to_vec();
        sent.push((name, UUID));
        let found = named(&sent, "");
        assert_eq!(found.key.as_deref(), Some(UUID), "{name}");
        assert_eq!(found.source.as_deref(), Some(*name));
        assert!(found.ignored.is_empty() && !found.child, "{found:?}");
    }
    let turn = format!(r#"{{"session_id":"s","thread_id":"{UUID}","request_kind":"turn"}}"#);
    let found = named(&[("x-codex-turn-metadata", &turn)], "");
    assert_eq!((found.key.as_deref(), found.child), (Some(UUID), false));
}

#[test]
fn every_known_body_field_names_the_conversation() {
    let claude = format!("user_0123abcd_account__session_{UUID}");
    let json = format!(r#"{{\"device_id\":\"d\",\"session_id\":\"{UUID}\"}}"#);
    let fields = [
        (format!(r#""session_id":"{UUID}""#), "session_id"),
        (format!(r#""conversation":"{UUID}""#), "conversation"),
        (
            format!(r#""conversation":{{"id":"{UUID}"}}"#),
            "conversation.id",
        ),
        (
            format!(r#""metadata":{{"session_id":"{UUID}"}}"#),
            "metadata.session_id",
        ),
        (
            format!(r#""metadata":{{"conversation_id":"{UUID}"}}"#),
            "metadata.conversation_id",
        ),
        (
            format!(r#""metadata":{{"chat_id":"{UUID}"}}"#),
            "metadata.chat_id",
        ),
        (
            format!(r#""litellm_session_id":"{UUID}""#),
            "litellm_session_id",
        ),
        (
            format!(r#""metadata":{{"user_id":"{claude}"}}"#),
            "metadata.user_id",
        ),
        (
            format!(r#""metadata":{{"user_id":"{json}"}}"#),
            "metadata.user_id",
        ),
        (
            format!(r#""metadata":{{"user_id":{{"session_id":"{UUID}"}}}}"#),
            "metadata.user_id.session_id",
        ),
    ];
    for (field, path) in fields {
        let found = named(&[], &field);
        assert_eq!(found.key.as_deref(), Some(UUID), "{field}");
        assert_eq!(found.source, Some(format!("body.{path}")));
        assert!(found.ignored.is_empty(), "{found:?}");
    }
}

#[test]
fn fields_for_users_or_prompts_name_no_conversation() {
    let fields = format!(
        r#""user":"{UUID}","safety_identifier":"{UUID}","prompt_cache_key":"{UUID}",
           "previous_response_id":"{UUID}","metadata":{{"user_id":"{UUID}","user":"{UUID}"}}"#
    );
    let headers = [
        ("x-openwebui-user-id", UUID),
        ("x-sm-user-id", UUID),
        ("x-request-id", UUID),
        ("x-client-request-id", UUID),
        ("x-portkey-trace-id", UUID),
        ("x-litellm-trace-id", UUID),
        ("x-parent-session-id", UUID),
        ("x-session", UUID),
        ("x--session-id", UUID),
        ("session-id", UUID),
        ("thread-id", UUID),
    ];
    let found = named(&headers, &fields);
    assert_eq!((found.key, found.ignored), (None, Vec::new()));
}

#[test]
fn the_first_usable_conversation_name_counts() {
    assert_eq!(
        key(
            &[("x-session-id", "s"), ("x-diarist-thread", "d")],
            r#""session_id":"b""#
        )
        .as_deref(),
        Some("d")
    );
    assert_eq!(
        key(&[("x-session-id", "s")], r#""session_id":"b""#).as_deref(),
        Some("s")
    );
    assert_eq!(
        key(&[("x-session-id", "")], r#""session_id":"b""#).as_deref(),
        Some("b")
    );
    // A header in the list comes before one that only has the form.
    let vendors = [
        ("x-acme-session-id", "acme-0001"),
        ("helicone-session-id", "h"),
    ];
    assert_eq!(key(&vendors, "").as_deref(), Some("h"));
}

#[test]
fn an_invalid_conversation_name_is_skipped_and_reported() {
    let long = "x".repeat(257);
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("x-session-id", "a b")], "x-session-id:malformed"),
        (&[("x-session-id", &long)], "x-session-id:too_long"),
        (
            &[("x-acme-session-id", "short")],
            "x-acme-session-id:malformed",
        ),
        (
            &[("x-acme-session-id", "long/enough")],
            "x-acme-session-id:malformed",
        ),
        (
            &[("x-session-id", "a"), ("x-session-id", "b")],
            "x-session-id:ambiguous",
        ),
    ];
    for (headers, reason) in cases {
        let found = named(headers, r#""session_id":"b""#);
        assert_eq!(found.key.as_deref(), Some("b"), "{reason}");
        assert_eq!(found.ignored, [reason]);
    }
    assert_eq!(
        ignored(&[], r#""session_id":["a"]"#),
        ["body.session_id:not_text"]
    );
    assert_eq!(
        ignored(&[], r#""metadata":{"chat_id":true}"#),
        ["body.metadata.chat_id:not_text"]
    );
    let twice = [("x-session-id", "a"), ("x-session-id", "a")];
    assert_eq!(key(&twice, "").as_deref(), Some("a"));
    assert_eq!(
        key(&[("x-session-id", &long[1..])], "").map(|key| key.len()),
        Some(256)
    );
}

#[test]
fn a_sub_agent_gets_its_own_conversation_name_or_none() {
    let own_thread = named(
        &[("x-session-id", "child"), ("x-parent-session-id", "parent")],
        "",
    );
    assert_eq!(
        (own_thread.key.as_deref(), own_thread.child),
        (Some("child"), true)
    );
    let shared = named(
        &[
            ("x-session-id", "parent"),
            ("x-parent-session-id", "parent"),
        ],
        "",
    );
    assert_eq!((shared.key, shared.child), (None, true));
    assert_eq!(shared.ignored, ["x-session-id:parent"]);

    // Codex: a sub-agent has a thread of its own, in the session of the conversation it works for.
    let codex = ("user-agent", "codex_cli_rs/0.169.0");
    let spawned = [
        codex,
        ("x-openai-subagent", "collab_spawn"),
        ("session-id", "p"),
        ("thread-id", "c"),
    ];
    let spawned = named(&spawned, "");
    assert_eq!((spawned.key.as_deref(), spawned.child), (Some("c"), true));
    let review = [
        codex,
        ("x-openai-subagent", "review"),
        ("session-id", "p"),
        ("thread-id", "p"),
    ];
    let review = named(&review, "");
    assert_eq!((review.key, review.child), (None, true));
    let turn = |kind: &str, thread: &str| {
        let turn = format!(
            r#"{{"session_id":"p","thread_id":"{thread}","request_kind":"{kind}","agent_name":"/root"}}"#
        );
        let found = named(&[("x-codex-turn-metadata", &turn)], "");
        (found.key, found.child)
    };
    assert_eq!(turn("turn", "p"), (Some("p".to_owned()), false));
    assert_eq!(turn("compaction", "p"), (None, true));
    assert_eq!(turn("review", "c"), (Some("c".to_owned()), true));
}

#[test]
fn the_operator_can_add_and_replace_name_sources() {
    let all = [
        ("x-room", "room"),
        ("x-session-id", "s"),
        ("x-diarist-thread", ""),
    ];
    let by = |headers: &[&str], fields: &[&str]| {
        named_by(
            &Sources::new(headers, fields),
            &all,
            r#""prompt_cache_key":"p""#,
        )
        .key
    };
    assert_eq!(
        by(&["x-room", "known"], &["known"]).as_deref(),
        Some("room")
    );
    assert_eq!(by(&["known", "x-room"], &["known"]).as_deref(), Some("s"));
    assert_eq!(
        by(&[], &["prompt_cache_key", "known"]).as_deref(),
        Some("p")
    );
    assert_eq!(by(&[], &["known"]), None);
    let own_thread = named_by(
        &Sources::new::<&str>(&[], &[]),
        &[("x-diarist-thread", "d")],
        "",
    );
    assert_eq!(own_thread.key.as_deref(), Some("d"));
}

/// What is made of the name must not change when others begin to use it.
#[test]
fn a_dropped_name_is_still_reported_as_sent_by_the_client() {
    let mut thread = named(&[("x-diarist-thread", "trip")], "");
    assert_eq!(thread.sent_key(), Some("trip"));
    thread.drop_key();
    assert_eq!((&thread.key, thread.sent_key()), (&None, Some("trip")));
    assert_eq!(named(&[], "").sent_key(), None);
}
