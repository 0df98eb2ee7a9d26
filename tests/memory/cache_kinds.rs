//! The verdicts about the caches of DeepSeek and of GPT-5.6, whose rules the scripted provider simulates: what the
//! provider did is what the audit says, and the cause is what was done to the prompt.

use diarist_provider::{CacheKind, Options};
use serde_json::{Value, json};

use crate::memory::rig::{Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation};

/// How many tokens less than expected still count as all.
const STEP: u64 = 128;

async fn rig(kind: CacheKind, settings: &[(&str, &str)]) -> Rig {
    let rig = Rig::with(Options::default(), settings).await;
    rig.provider.rules(|rules| rules.cache = kind);
    rig
}

/// Sends it; its audit line, which must be in agreement with what the provider did.
async fn line(rig: &Rig, body: &Value) -> Value {
    let answer = rig.send(body).await;
    rig.quiet().await;
    let line = rig.audit_entry(&answer).await;
    let usage = rig.last().prompt_usage.unwrap();
    assert_eq!(line["prompt_tokens"], usage.prompt_tokens, "{line}");
    assert_eq!(line["cached_tokens"], usage.cached_tokens, "{line}");
    let raw = &line["usage"];
    let reported = match usage.kind {
        CacheKind::Steps | CacheKind::Breakpoints => &raw["prompt_tokens_details"]["cached_tokens"],
        CacheKind::Units => &raw["prompt_cache_hit_tokens"],
        CacheKind::Marks => &raw["cache_read_input_tokens"],
    };
    assert_eq!(*reported, usage.cached_tokens, "{line}");
    let written = usage.written_tokens().map_or(Value::Null, Value::from);
    assert_eq!(line["cache_write_tokens"], written, "{line}");
    let cached = u64::from(usage.cached_tokens);
    let agrees = match line["verdict"].as_str() {
        Some("miss") => cached == 0,
        Some("partial") => cached > 0,
        Some("warm") => line["expected_cached_tokens"].as_u64() <= Some(cached + STEP),
        _ => true,
    };
    assert!(agrees, "{line}");
    line
}

fn verdict(line: &Value) -> (&str, Option<&str>) {
    (
        line["verdict"].as_str().unwrap(),
        line["verdict_cause"].as_str(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deepseek_cache_is_warm_from_the_second_turn() {
    let rig = rig(CacheKind::Units, &[]).await;
    let conversation = SampleConversation {
        model: "deepseek/deepseek-chat",
        ..SampleConversation::new("ada")
    };
    assert_eq!(
        verdict(&line(&rig, &conversation.body(1)).await).0,
        "cold_start"
    );
    for turn in 2..=6 {
        assert_eq!(
            verdict(&line(&rig, &conversation.body(turn)).await),
            ("warm", None),
            "turn {turn}"
        );
    }
    let mut body = conversation.body(7);
    body["messages"][6]["content"] = json!("What was said here is different now.");
    assert_eq!(
        verdict(&line(&rig, &body).await),
        ("partial", Some("message_changed"))
    );
    rig.provider.forget_prompts();
    assert_eq!(
        verdict(&line(&rig, &body).await),
        ("miss", Some("provider"))
    );
}

/// Only all that was sent before is read: a change anywhere in it leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn with_breakpoints_a_changed_message_loses_the_whole_cache() {
    let rig = rig(CacheKind::Breakpoints, &[]).await;
    let conversation = SampleConversation {
        model: "openai/gpt-5.6",
        ..SampleConversation::new("ada")
    };
    line(&rig, &conversation.body(10)).await;
    for turn in 11..=12 {
        assert_eq!(
            verdict(&line(&rig, &conversation.body(turn)).await),
            ("warm", None),
            "turn {turn}"
        );
    }
    // Back to where a request ended, with another question.
    let mut body = conversation.body(12);
    let newest = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
    newest["content"] = json!(format!(
        "Back to here. {}",
        "And now to something else. ".repeat(60)
    ));
    let forked = line(&rig, &body).await;
    assert_eq!(verdict(&forked), ("partial", Some("forked")), "{forked}");
    let mut body = conversation.body(13);
    body["messages"][16]["content"] = json!("What was said here is different now.");
    assert_eq!(
        verdict(&line(&rig, &body).await),
        ("miss", Some("message_changed"))
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn with_breakpoints_every_activation_is_audited_as_a_cache_miss() {
    let rig = rig(CacheKind::Breakpoints, &SMALL).await;
    let conversation = SampleConversation {
        model: "openai/gpt-5.6",
        ..SampleConversation::new("ada")
    };
    let mut snapshot = Value::Null;
    let mut causes = Vec::new();
    for turn in 1..=ACTIVE * 3 {
        let line = line(&rig, &conversation.body(turn)).await;
        let changed = line["snapshot"] != snapshot;
        snapshot = line["snapshot"].clone();
        match verdict(&line) {
            (_, Some("below_minimum")) | ("cold_start", _) => {}
            (verdict, Some(cause)) if changed => {
                causes.push((verdict.to_owned(), cause.to_owned()));
            }
            (verdict, cause) => assert_eq!(
                (verdict, cause, changed),
                ("warm", None, false),
                "turn {turn}: {line}"
            ),
        }
    }
    let activation = ("miss".to_owned(), "activation".to_owned());
    assert!(causes.contains(&activation), "{causes:?}");
    assert!(
        causes.iter().all(|(verdict, _)| verdict == "miss"),
        "{causes:?}"
    );
}
