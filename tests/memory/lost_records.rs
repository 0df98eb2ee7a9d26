//! What is lost is said: exchanges that are not recorded, audit lines that are not written. And the audit
//! names whose request it was, also where memory is off.

use serde_json::json;
use sqlx::Connection as _;

use crate::memory::rig::Rig;
use crate::memory::tools::SampleConversation;

#[tokio::test(flavor = "multi_thread")]
async fn dropped_exchanges_are_reported() {
    let rig = Rig::small().await;
    assert_eq!(rig.part("recording").await["status"], "up");
    // Somebody else writes to the database and does not end: the recorder waits.
    let mut database = rig.database().await;
    let writing = database.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let before = rig.metric("diarist_exchanges_dropped_total").await;
    for number in 0..24 {
        let long = "long ".repeat(200_000);
        let first = json!({"role": "user", "content": format!("{number} {long}")});
        let second = json!({"role": "user", "content": "And?"});
        let answer = json!({"role": "assistant", "content": "Yes."});
        for messages in [json!([first]), json!([first, answer, second])] {
            let body = json!({"model": "gpt-test", "messages": messages});
            assert_eq!(rig.send(&body).await.status, 200);
        }
    }
    let part = rig.wait_part("recording", "degraded").await;
    let error = part["error"].as_str().unwrap();
    assert!(error.contains("recorded"), "{error}");
    assert!(rig.metric("diarist_exchanges_dropped_total").await > before);
    drop(writing);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_owner_and_model_where_memory_is_off() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let on = rig.send(&conversation.body(1)).await;
    let on = rig.audit_entry(&on).await;
    let off = [("x-diarist-memory", "off")];
    let header = rig
        .send_as("Bearer sk-test", &off, &conversation.body(1))
        .await;
    let header = rig.audit_entry(&header).await;
    rig.set("MEMORY__ENABLED", "false");
    rig.restart().await;
    let disabled = rig.send(&conversation.body(1)).await;
    let disabled = rig.audit_entry(&disabled).await;
    for (line, reason) in [(&header, "asked"), (&disabled, "disabled")] {
        assert_eq!(
            (&line["memory"], &line["reason"]),
            (&json!("off"), &json!(reason))
        );
        assert_eq!(
            (&line["tenant"], &line["model"]),
            (&on["tenant"], &json!("gpt-test"))
        );
        assert_eq!(line["messages_received"], 2);
    }
    assert_ne!(on["tenant"], "");
}
