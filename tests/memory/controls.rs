//! What turns memory on and off, and what names a conversation.

use diarist_provider::Options;
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

const SMALL: [(&str, &str); 2] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_memory_off_is_forwarded_unchanged_and_not_stored() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        let off = [("x-diarist-memory", "off")];
        let answer = rig
            .send_as("Bearer sk-test", &off, &conversation.body(turn))
            .await;
        assert_eq!(answer.memory(), "off; reason=asked");
        assert_eq!(rig.last().body, conversation.body(turn).to_string());
    }
    rig.quiet().await;
    assert_eq!(rig.number("SELECT count(*) FROM nodes").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn memory_can_be_switched_off_and_leaves_no_database_behind() {
    let mut settings = SMALL.to_vec();
    settings.push(("MEMORY__ENABLED", "false"));
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        let answer = rig.send(&conversation.body(turn)).await;
        assert_eq!(answer.memory(), "off; reason=disabled");
        assert_eq!(rig.last().body, conversation.body(turn).to_string());
    }
    // Longer than the workers wait between two looks at the queue.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(!rig.file().exists());
    assert_eq!(rig.audited(ACTIVE).await[0]["memory"], "off");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_credential_have_memory_only_on_a_loopback_listener() {
    let conversation = SampleConversation::new("ada");
    let rig = Rig::small().await;
    for turn in 1..=ACTIVE {
        let answer = rig.post(&[], conversation.body(turn).to_string()).await;
        let memory = answer.memory();
        let may_watch = turn < ACTIVE && memory == "watching";
        assert!(memory == "active" || may_watch, "turn {turn}: {memory}");
        rig.quiet().await;
    }

    let mut settings = SMALL.to_vec();
    settings.push(("SERVER__LISTEN", "0.0.0.0:0"));
    let rig = Rig::with(Options::default(), &settings).await;
    let answer = rig.post(&[], conversation.body(1).to_string()).await;
    assert_eq!(answer.memory(), "off; reason=anonymous");
    let answer = rig.send(&conversation.body(1)).await;
    assert_eq!(answer.memory(), "watching");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_headers_are_removed_and_a_thread_name_grants_no_memory() {
    let rig = Rig::small().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    let key = [
        ("x-diarist-thread", "desk-1"),
        ("x-diarist-resource", "user-1"),
        ("x-diarist-anything", "1"),
        ("x-session-id", "theirs"),
    ];
    let answer = rig
        .play_turns_as("Bearer sk-test", &key, &ada, 1..=ACTIVE)
        .await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(answer.headers["x-diarist-thread"], "desk-1");
    for entry in rig.got() {
        let ours = |name: &str| name.starts_with("x-diarist") || name.starts_with("x_diarist");
        assert!(!entry.headers.keys().any(|name| ours(name.as_str())));
        assert_eq!(entry.headers["x-session-id"], "theirs", "not ours to keep");
    }
    // Another conversation under the same key gets nothing of the first.
    let answer = rig.send_as("Bearer sk-test", &key, &bob.body(ACTIVE)).await;
    assert_eq!(answer.memory(), "watching");
    assert_eq!(rig.last().body, bob.body(ACTIVE).to_string());
    // Nor does the same conversation of another resource, or of none.
    for headers in [&[("x-diarist-resource", "user-2")][..], &[]] {
        let answer = rig
            .send_as("Bearer sk-test", headers, &ada.body(ACTIVE))
            .await;
        assert_eq!(answer.memory(), "watching", "{headers:?}");
        assert_eq!(rig.last().body, ada.body(ACTIVE).to_string());
    }
    let lines = rig.audited(ACTIVE).await;
    assert!(
        lines[..ACTIVE]
            .iter()
            .all(|line: &Value| line["thread"] == "desk-1")
    );
}

/// A request without memory is a request to the provider's cache too: its line says what it was.
#[tokio::test(flavor = "multi_thread")]
async fn an_audit_line_without_memory_has_thread_segments_and_verdict() {
    let conversation = SampleConversation::new("ada");
    let named = [("x-diarist-thread", "desk-1")];
    let off = [("x-diarist-memory", "off"), named[0]];
    let disabled = [SMALL[0], SMALL[1], ("MEMORY__ENABLED", "false")];
    for (settings, headers, reason) in [
        (&SMALL[..], &off[..], "asked"),
        (&disabled[..], &named[..], "disabled"),
    ] {
        let rig = Rig::with(Options::default(), settings).await;
        for (turn, verdict) in [(10, "cold_start"), (11, "warm")] {
            let body = conversation.body(turn);
            let answer = rig.send_as("Bearer sk-test", headers, &body).await;
            assert_eq!(answer.headers["x-diarist-thread"], "desk-1");
            let line = rig.audit_entry(&answer).await;
            assert_eq!(line["reason"], reason);
            assert_eq!(
                (&line["thread"], &line["thread_by"]),
                (&json!("desk-1"), &json!("x-diarist-thread"))
            );
            assert_eq!(line["verdict"], verdict, "{line}");
            assert!(line["segments"]["messages"].as_u64() > Some(0), "{line}");
            assert_eq!(line["model"], "gpt-test");
        }
        // A body that memory cannot read names no conversation. Where memory is disabled, it still names its model.
        let odd = json!({"model": "gpt-test", "messages": [7]});
        let answer = rig.send_as("Bearer sk-test", headers, &odd).await;
        let line = rig.audit_entry(&answer).await;
        let model = (reason == "disabled").then_some("gpt-test");
        assert_eq!(
            (&line["model"], &line["thread"], &line["reason"]),
            (&json!(model), &json!(null), &json!(reason))
        );
    }
}

/// Nothing says which conversation it is, so only its size is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_system_messages_alone_has_its_segments() {
    let rig = Rig::small().await;
    let body =
        json!({"model": "gpt-test", "messages": [{"role": "system", "content": "Say yes."}]});
    let answer = rig.send(&body).await;
    let line = rig.audit_entry(&answer).await;
    assert_eq!(line["reason"], "no_history");
    assert_eq!(
        (&line["segments"]["messages"], &line["verdict"]),
        (&json!(0), &json!(null))
    );
    assert!(line["segments"]["system"].as_u64() > Some(0), "{line}");
}
