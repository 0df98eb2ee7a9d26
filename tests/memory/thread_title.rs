//! The title that an Observer gives a conversation: stored, shown to the next Observer, sent nowhere else.

use diarist_provider::{CallerKind, Observer, Reply, Script as _, ScriptInput};
use serde_json::json;

use crate::memory::observer_prompt::{calls, rig};
use crate::memory::tools::SampleConversation;

/// A script that observes and gives the conversation this title.
fn entitling(title: &'static str) -> impl Fn(&ScriptInput<'_>) -> Reply + Send + Sync {
    move |ask| {
        let mut reply = Observer::default().reply(ask);
        let content = reply.content.unwrap_or_default();
        reply.content = Some(format!("{content}\n<thread-title>{title}</thread-title>"));
        reply
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_valid_thread_title_is_stored_and_never_forwarded() {
    let mut rig = rig(&[("MEMORY__OBSERVATION__THREAD_TITLE", "true")]).await;
    let named = |title: &str| match title {
        "" => "SELECT count(*) FROM lineages WHERE title IS NULL",
        "first" => "SELECT count(*) FROM lineages WHERE title = 'Lamps of Zadar'",
        _ => "SELECT count(*) FROM lineages WHERE title = 'Lamps and boats'",
    };
    let conversation = SampleConversation::new("ada");
    // Two characters are none.
    rig.provider.script(CallerKind::Observer, entitling("ab"));
    rig.play_turns(&conversation, 1..=4).await;
    assert_eq!(rig.number(named("")).await, 1);
    rig.provider
        .script(CallerKind::Observer, entitling("\"Lamps of Zadar\""));
    rig.play_turns(&conversation, 5..=8).await;
    assert_eq!(rig.number(named("first")).await, 1);
    // The Observer is told the title so far, in a fence.
    rig.provider
        .script(CallerKind::Observer, entitling("Lamps and boats"));
    rig.play_turns(&conversation, 9..=16).await;
    assert_eq!(rig.number(named("second")).await, 1);
    let observer_calls = calls(&rig);
    assert!(observer_calls.iter().any(|call| {
        let user = call[1]["content"].as_str().unwrap();
        user.contains("<title-") && user.contains("\nLamps of Zadar\n</title-")
    }));
    // A fork of it has none, and no request of anybody's carries one.
    rig.provider
        .script(CallerKind::Observer, Observer::default());
    let mut fork = conversation.body(16);
    let messages = fork["messages"].as_array_mut().unwrap();
    messages.truncate(20);
    messages.push(json!({"role": "user", "content": "Something else altogether, please."}));
    rig.send(&fork).await;
    rig.quiet().await;
    assert!(
        rig.got()
            .iter()
            .all(|entry| !String::from_utf8_lossy(&entry.body).contains("Lamps"))
    );
    // Off again, nobody is asked for one.
    rig.set("MEMORY__OBSERVATION__THREAD_TITLE", "false");
    rig.restart().await;
    let before = calls(&rig).len();
    rig.play_turns(&conversation, 17..=24).await;
    let after = calls(&rig).split_off(before);
    assert!(!after.is_empty());
    assert!(
        after
            .iter()
            .all(|call| !call.to_string().contains("thread-title"))
    );
    assert_eq!(rig.number(named("second")).await, 1, "it stays");
}
