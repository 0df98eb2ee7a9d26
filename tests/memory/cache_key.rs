//! A request with observations has a `prompt_cache_key`: the same for the whole conversation, and only where the client
//! leaves it open and the upstream takes it.

use diarist_provider::{CallerKind, Options};
use serde_json::{Value, json};

use crate::memory::rig::{Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation, refusing};

const ME: &str = "Bearer sk-test";
const KEY: &str = "UPSTREAM__PROMPT_CACHE_KEY";

async fn rig(setting: &str) -> Rig {
    Rig::with(Options::default(), &[SMALL[0], SMALL[1], (KEY, setting)]).await
}

/// The key of the newest request, and where its block stands.
fn key_and_block(rig: &Rig) -> (Option<String>, Option<usize>) {
    let body = rig.last().json().unwrap();
    let holds = |message: &Value| message["content"].to_string().contains("<diarist-log");
    let block = body["messages"].as_array().unwrap().iter().position(holds);
    (body["prompt_cache_key"].as_str().map(str::to_owned), block)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_conversation_with_observations_keeps_one_cache_key() {
    let mut rig = rig("always").await;
    let conversation = SampleConversation::new("ada");
    let mut keys = Vec::new();
    for turn in 1..=ACTIVE + 2 {
        let body = conversation.body(turn);
        let answer = rig.send(&body).await;
        rig.quiet().await;
        let line = rig.audit_entry(&answer).await;
        let (key, block) = key_and_block(&rig);
        assert_eq!(key.is_some(), block.is_some(), "turn {turn}");
        match key {
            Some(key) => keys.push((key, line["added"] == "cache_key")),
            None => assert_eq!(
                (rig.last().body.to_vec(), &line["added"]),
                (body.to_string().into_bytes(), &Value::Null)
            ),
        }
    }
    assert!(
        keys.len() > 2 && keys.iter().all(|it| it == &(keys[0].0.clone(), true)),
        "{keys:?}"
    );
    let key = keys[0].0.clone();
    assert!(key.len() <= 64 && key.is_ascii(), "{key}");
    // The same request is the same bytes, also for another process.
    let sent = rig.last().body.clone();
    rig.restart().await;
    rig.send(&conversation.body(ACTIVE + 2)).await;
    assert_eq!(rig.last().body, sent);
    rig.play_turns(&conversation, ACTIVE + 3..=ACTIVE + 3).await;
    assert_eq!(key_and_block(&rig).0.as_ref(), Some(&key));
    // Others have others: another user, another tenant, and whoever begins alike under another name.
    let mut others = vec![key];
    for (credential, name, conversation) in [
        (ME, "a", SampleConversation::new("bob")),
        ("Bearer other", "a", conversation.clone()),
        ("Bearer other", "b", conversation.clone()),
    ] {
        let named = [("x-diarist-thread", name)];
        rig.play_turns_as(credential, &named, &conversation, 1..=ACTIVE)
            .await;
        others.extend(key_and_block(&rig).0);
    }
    others.sort();
    others.dedup();
    assert_eq!(others.len(), 4, "{others:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn no_cache_key_is_added_if_settings_or_client_fields_exclude_it() {
    for (setting, field) in [
        ("auto", Value::Null),
        ("never", Value::Null),
        ("always", json!({"prompt_cache_key": "mine"})),
        ("always", json!({"prompt_cache_key": null})),
        ("always", json!({"user": "ada"})),
    ] {
        let rig = rig(setting).await;
        let conversation = SampleConversation::new("ada");
        for turn in 1..=ACTIVE {
            let mut body = conversation.body(turn);
            for (name, value) in field.as_object().into_iter().flatten() {
                body[name] = value.clone();
            }
            rig.send(&body).await;
            rig.quiet().await;
        }
        let own = field["prompt_cache_key"].as_str().map(str::to_owned);
        assert_eq!(key_and_block(&rig), (own, Some(1)), "{setting} {field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_cache_key_is_left_out_and_moves_no_block() {
    let mut rig = rig("always").await;
    rig.provider.rules(|rules| rules.refuse_cache_key = true);
    let conversation = SampleConversation::new("ada");
    let mut refused = Vec::new();
    for turn in 1..=ACTIVE + 2 {
        let before = rig.got().len();
        let answer = rig.play_turns(&conversation, turn..=turn).await;
        if rig.got().len() > before + 1 {
            assert_eq!(answer.memory(), "bypass; reason=refused; rung=refused");
            assert_eq!(rig.last().body, conversation.body(turn).to_string());
            refused.push(turn);
        }
    }
    assert_eq!((refused.len(), key_and_block(&rig)), (1, (None, Some(1))));
    // After a restart nobody knows, but what went out without goes out without.
    let sent = rig.last().body.clone();
    rig.restart().await;
    let before = rig.got().len();
    rig.send(&conversation.body(ACTIVE + 2)).await;
    assert_eq!((rig.got().len(), &rig.last().body), (before + 1, &sent));
    rig.play_turns(&conversation, ACTIVE + 3..=ACTIVE + 3).await;
    assert_eq!(rig.got().len(), before + 3, "it is tried again");
}

/// It was never accepted, so it is the likeliest reason.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_without_a_reason_remove_a_never_accepted_cache_key() {
    let mut rig = rig("never").await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.set(KEY, "always");
    rig.restart().await;
    for (turn, requests, expected) in [
        (1, 2, (None, None)),
        (2, 2, (None, None)),
        (3, 1, (None, Some(1))),
    ] {
        if requests == 2 {
            rig.provider
                .inject_next(CallerKind::Actor, 1, &refusing(400, "no"));
        }
        let before = rig.got().len();
        rig.play_turns(&conversation, ACTIVE + turn..=ACTIVE + turn)
            .await;
        assert_eq!(rig.got().len() - before, requests, "{turn}");
        assert_eq!(key_and_block(&rig), expected, "{turn}");
    }
}

/// Without its block it does not fit, so the block goes out again without the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_too_long_original_is_followed_by_the_block_without_cache_key() {
    let mut rig = rig("never").await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=16).await;
    let room = rig.last().prompt_usage.unwrap().prompt_tokens + 700;
    rig.set(KEY, "always");
    rig.restart().await;
    rig.provider.rules(|rules| {
        rules.refuse_cache_key = true;
        rules.window = Some(room);
    });
    let before = rig.got().len();
    let answer = rig.play_turns(&conversation, 17..=17).await;
    assert_eq!(answer.memory(), "active; rung=lowered");
    assert_eq!(
        (rig.got().len(), key_and_block(&rig)),
        (before + 3, (None, Some(1)))
    );
    let answer = rig.play_turns(&conversation, 18..=18).await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(
        (rig.got().len(), key_and_block(&rig)),
        (before + 4, (None, Some(1)))
    );
}
