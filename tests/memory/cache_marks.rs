//! A client that marks an early message for the provider's prompt cache keeps its cache when observations replace
//! that message. The scripted provider caches up to the last mark only, as Anthropic does.

use diarist_provider::{CacheKind, Options};
use serde_json::{Value, json};

use crate::memory::rig::{Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation};

async fn rig(setting: &str) -> Rig {
    let settings = [SMALL[0], SMALL[1], ("UPSTREAM__CACHE_MARKS", setting)];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.cache = CacheKind::Marks);
    rig
}

/// The conversation up to `turn` behind a long system message, with a mark on the first question if `mark`.
fn body(conversation: &SampleConversation, turn: usize, mark: bool) -> Value {
    let mut body = conversation.body(turn);
    body["messages"][0]["content"] = json!("Be patient and answer in full. ".repeat(200));
    if mark {
        let text = body["messages"][1]["content"].take();
        body["messages"][1]["content"] = json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]);
    }
    body
}

/// A turn with memory: the marks that went out, what the audit says was added, the cached tokens, and the snapshot.
type Turn = (usize, Value, u32, Value);

/// The turns while memory is active.
async fn active_turns(rig: &Rig, mark: bool) -> Vec<Turn> {
    let conversation = SampleConversation::new("ada");
    let mut turns = Vec::new();
    for turn in 1..=ACTIVE + 3 {
        let answer = rig.send(&body(&conversation, turn, mark)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.quiet().await;
        let line = rig.audit_entry(&answer).await;
        if line["memory"] == "active" {
            let sent = rig.last();
            let sent_text = sent.json().unwrap().to_string();
            let marks = sent_text.matches("\"cache_control\":{");
            let cached = sent.prompt_usage.unwrap().cached_tokens;
            let snapshot = line["snapshot"].clone();
            turns.push((marks.count(), line["added"].clone(), cached, snapshot));
        }
    }
    assert!(turns.len() > 2, "{turns:?}");
    turns
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_marks_an_early_message_reads_its_cache_after_an_activation() {
    let turns = active_turns(&rig("true").await, true).await;
    for (marks, added, ..) in &turns {
        assert_eq!((*marks, added), (1, &json!("cache_mark")), "{turns:?}");
    }
    // A turn with new observations writes; the next ones with the same observations read.
    let same = turns.windows(2).filter(|pair| pair[0].3 == pair[1].3);
    let cached: Vec<u32> = same.map(|pair| pair[1].2).collect();
    assert!(
        cached.len() > 2 && cached.iter().all(|read| *read >= 1024),
        "{turns:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_cache_mark_is_sent_if_disabled_or_unused_by_the_client() {
    for (setting, mark) in [("false", true), ("true", false)] {
        let turns = active_turns(&rig(setting).await, mark).await;
        for (marks, added, cached, _) in &turns {
            let turn = (*marks, added, *cached);
            assert_eq!(turn, (0, &Value::Null, 0), "{setting} {turns:?}");
        }
    }
}
