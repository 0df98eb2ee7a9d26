//! What clients call their conversations, their sub-agents and their side calls, over sockets.

use diarist_provider::{Behaviour, CallerKind, Options};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

const SMALL: [(&str, &str); 2] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
];

const ME: &str = "Bearer sk-test";

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_reports_the_source_of_the_thread_name_and_ignored_names() {
    let rig = Rig::with(
        Options::default(),
        &[
            ("IDENTITY__HEADERS", "x-room,known"),
            ("IDENTITY__BODY_FIELDS", r#"["known"]"#),
        ],
    )
    .await;
    let conversation = SampleConversation::new("ada");
    let mut body = conversation.body(1);
    body["metadata"] = json!({"chat_id": "chat-7"});
    body["user"] = json!("somebody");
    let headers = [("x-session-id", "a b"), ("x-acme-session-id", "short")];
    let answer = rig.send_as(ME, &headers, &body).await;
    assert_eq!(answer.headers["x-diarist-thread"], "chat-7");
    // Lines stand in the order in which answers ended, which is settled a moment after the client has them.
    rig.audited(1).await;
    assert_eq!(rig.last().body, body.to_string(), "forwarded as it came");
    rig.send_as(ME, &[("x-room", "r1"), ("x-session-id", "s1")], &body)
        .await;
    rig.audited(2).await;
    rig.send(&conversation.body(1)).await;
    rig.quiet().await;
    let lines = rig.audited(3).await;
    assert_eq!(lines[0]["thread"], "chat-7");
    assert_eq!(lines[0]["thread_by"], "body.metadata.chat_id");
    assert_eq!(
        lines[0]["ignored"],
        "x-session-id:malformed x-acme-session-id:malformed"
    );
    assert_eq!(
        (&lines[1]["thread"], &lines[1]["thread_by"]),
        (&json!("r1"), &json!("x-room"))
    );
    assert_eq!(lines[2]["thread_by"], "content");
    assert_eq!(lines[2].get("ignored"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agent_is_a_conversation_of_its_own() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let parent = [("x-session-id", "ses_parent")];
    rig.play_turns_as(ME, &parent, &conversation, 1..=3).await;
    let requests = "SELECT requests FROM lineages WHERE thread_key = 'ses_parent'";
    let before = rig.number(requests).await;

    // A sub-agent that starts with what was said so far and goes its own way, under its own name.
    let own = [
        ("x-session-id", "ses_child"),
        ("x-parent-session-id", "ses_parent"),
    ];
    // One that says nothing but whom it works for.
    let none = [
        ("x-session-id", "ses_parent"),
        ("x-parent-session-id", "ses_parent"),
    ];
    for (headers, question) in [
        (own, "Look into the harbour."),
        (none, "Look into the tower."),
    ] {
        let mut body = conversation.body(2);
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": "Another answer."}));
        messages.push(json!({"role": "user", "content": question}));
        for _ in 0..2 {
            assert_eq!(rig.send_as(ME, &headers, &body).await.status, 200);
            rig.quiet().await;
        }
    }
    assert_eq!(
        rig.number(requests).await,
        before,
        "nothing is written into the parent"
    );
    assert_eq!(rig.number("SELECT count(*) FROM lineages").await, 3);
    let own = "SELECT requests FROM lineages WHERE thread_key = 'ses_child'";
    assert_eq!(rig.number(own).await, 2);
    let lines = rig.audited(7).await;
    assert_eq!(lines[3]["thread"], "ses_child");
    assert_eq!(lines[5]["thread_by"], "content");
    assert_eq!(lines[5]["ignored"], "x-session-id:parent", "{}", lines[5]);
}

/// A sub-agent that is shown a window of the conversation it works for, and asked something of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agent_with_the_name_of_its_parent_is_read_only() {
    let rig = Rig::with(Options::default(), &SMALL).await;
    rig.gives_its_answers();
    let conversation = SampleConversation::new("ada");
    let parent = [("x-session-id", "ses_parent")];
    rig.play_turns_as(ME, &parent, &conversation, 1..=ACTIVE)
        .await;
    let everything = "SELECT (SELECT count(*) FROM nodes) + (SELECT sum(times) FROM requests)
                           + (SELECT count(*) FROM lineages) + (SELECT sum(requests) FROM lineages)
                           + (SELECT count(*) FROM views) + (SELECT count(*) FROM jobs)";
    let before = rig.number(everything).await;
    // The name of what it works for is not its own.
    let child = [
        ("x-session-id", "ses_parent"),
        ("x-parent-session-id", "ses_parent"),
    ];
    let named = [
        ("x-session-id", "ses_child"),
        ("x-parent-session-id", "ses_parent"),
    ];
    let mut body = conversation.body(ACTIVE);
    let messages = body["messages"].as_array_mut().unwrap();
    // The system message stays, the oldest six turns go.
    messages.drain(1..13);
    messages.push(json!({"role": "assistant", "content": "Let me have that looked into."}));
    messages.push(json!({"role": "user", "content": "Look into the harbour."}));
    let answer = rig.send_as(ME, &child, &body).await;
    assert!(
        answer.memory().ends_with("mode=read"),
        "{}",
        answer.memory()
    );
    rig.quiet().await;
    assert_eq!(rig.number(everything).await, before);
    let line = rig.audited(ACTIVE + 1).await.pop().unwrap();
    assert_eq!(
        (&line["mode"], &line["mode_by"]),
        (&json!("read"), &json!("child")),
        "{line}"
    );
    // Under a name of its own it is another conversation, and told nothing that it does not hold.
    let answer = rig.send_as(ME, &named, &body).await;
    assert_eq!(answer.memory(), "watching");
    rig.quiet().await;
    let before = rig.number(everything).await;
    // The same window, sent by the conversation itself, is taken down.
    rig.send_as(ME, &parent, &body).await;
    rig.quiet().await;
    assert!(rig.number(everything).await > before);
}

/// Side calls of a client that says nothing of them: no longer request carries their words again.
#[tokio::test(flavor = "multi_thread")]
async fn an_unnamed_side_call_is_not_observed() {
    let rig = Rig::with(Options::default(), &SMALL).await;
    let conversation = SampleConversation::new("ada");
    let chat = [("x-openwebui-chat-id", "chat-1")];
    for turn in 1..=ACTIVE {
        rig.play_turns_as(ME, &chat, &conversation, turn..=turn)
            .await;
        let shown = conversation
            .messages(turn)
            .iter()
            .map(Value::to_string)
            .collect::<String>();
        let question = format!(
            "### Task: a title of this, sidecall{turn}.\n<chat_history>{shown}</chat_history>"
        );
        let title =
            json!({"model": "gpt-test", "messages": [{"role": "user", "content": question}]});
        for _ in 0..2 {
            assert_eq!(rig.send_as(ME, &chat, &title).await.status, 200);
            rig.quiet().await;
        }
    }
    let calls = rig.provider.record_for(CallerKind::Observer);
    assert!(calls.len() > 1);
    for call in calls {
        assert!(!String::from_utf8_lossy(&call.body).contains("sidecall"));
    }
    let answer = rig
        .play_turns_as(ME, &chat, &conversation, ACTIVE + 1..=ACTIVE + 1)
        .await;
    assert_eq!(answer.memory(), "active");
    // So many of them under one name do not make a crowd of it.
    assert_eq!(answer.headers["x-diarist-thread"], "chat-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_task_named_by_the_client_reads_memory_and_stores_nothing() {
    let rig = Rig::with(Options::default(), &SMALL).await;
    let conversation = SampleConversation::new("ada");
    let chat = ("x-openwebui-chat-id", "chat-1");
    rig.play_turns_as(
        ME,
        &[chat, ("x-openwebui-task", "")],
        &conversation,
        1..=ACTIVE,
    )
    .await;
    let everything = "SELECT (SELECT count(*) FROM nodes) + (SELECT sum(times) FROM requests)
                           + (SELECT count(*) FROM lineages) + (SELECT sum(requests) FROM lineages)
                           + (SELECT count(*) FROM parts)";
    let before = (
        rig.number(everything).await,
        rig.provider.record_for(CallerKind::Observer).len(),
    );
    let mut body = conversation.body(ACTIVE);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "An answer."}));
    messages.push(json!({"role": "user", "content": "### Task: give this a title."}));
    for task in ["title_generation", "tags_generation"] {
        let answer = rig
            .send_as(ME, &[chat, ("x-openwebui-task", task)], &body)
            .await;
        assert_eq!(answer.memory(), "active; mode=read");
        rig.quiet().await;
    }
    let after = (
        rig.number(everything).await,
        rig.provider.record_for(CallerKind::Observer).len(),
    );
    assert_eq!(after, before);
    let line = rig.audited(ACTIVE + 2).await.pop().unwrap();
    assert_eq!(
        (&line["mode"], &line["mode_by"]),
        (&json!("read"), &json!("task"))
    );
}

/// Ten thousand of them, before the program itself: `tests/tenants/strangers.rs`.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_the_upstream_refuses_leave_no_row() {
    let rig = Rig::small().await;
    rig.provider
        .inject(CallerKind::Actor, Behaviour::failing(401));
    let conversation = SampleConversation::new("ada");
    for number in 0..200 {
        let key = format!("Bearer sk-random-{number}");
        let named = format!("thread-{number}");
        let headers = [("x-diarist-thread", named.as_str())];
        let answer = rig
            .send_as(&key, &headers, &conversation.body(1 + number % 3))
            .await;
        assert_eq!(answer.status, 401);
    }
    rig.quiet().await;
    let mut database = rig.database().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
           AND name NOT LIKE '%fts%' AND name NOT LIKE '_sqlx%' AND name <> 'pepper'",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert!(tables.len() > 10, "{tables:?}");
    for table in tables {
        let rows: i64 =
            sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}")))
                .fetch_one(&mut database)
                .await
                .unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    assert_eq!(
        rig.audited(200).await[0]["tenant"].as_str().unwrap().len(),
        12
    );
}

/// One id for all users of an application.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_shared_by_many_conversations_is_ignored() {
    let mut rig = Rig::small().await;
    let shared = [("x-session-id", "static-id")];
    for user in 0..12 {
        let conversation = SampleConversation::new(&format!("user{user}"));
        rig.play_turns_as(ME, &shared, &conversation, 1..=2).await;
    }
    let named = "SELECT count(*) FROM lineages WHERE thread_key = 'static-id'";
    assert_eq!(rig.number(named).await, 8);
    assert_eq!(rig.number("SELECT count(*) FROM lineages").await, 12);
    let lines = rig.audited(24).await;
    // The ninth conversation finds it out; from then on it is nobody's name.
    assert_eq!(lines[16]["thread_by"], "x-session-id");
    for line in &lines[17..] {
        assert_eq!(line["thread_by"], "content");
        assert_eq!(line["ignored"], "x-session-id:many_conversations");
    }
    // A process that starts knows it as well, before anybody finds it out again.
    rig.restart().await;
    rig.play_turns_as(ME, &shared, &SampleConversation::new("user12"), 1..=1)
        .await;
    let line = rig.audited(25).await.pop().unwrap();
    assert_eq!(line["ignored"], "x-session-id:many_conversations");
    let listed = std::process::Command::new(assert_cmd::cargo::cargo_bin!("diarist"))
        .env_clear()
        .env("HOME", rig.folder.path())
        .args([
            "threads",
            "--database",
            &format!("sqlite://{}", rig.file().display()),
        ])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("use the name static-id: it no longer names one"),
        "{listed}"
    );

    // Another credential's name is another name.
    let other = rig
        .play_turns_as(
            "Bearer sk-other",
            &shared,
            &SampleConversation::new("eve"),
            1..=1,
        )
        .await;
    assert_eq!(other.headers["x-diarist-thread"], "static-id");
}
