//! Where the block stands: in every placement, against every strict provider, and what is kept of the
//! prompt cache's prefix.

use diarist_provider::{CallerKind, Options, RecordedRequest, Rules, signature_for};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::memory::rig::Rig;
use crate::memory::tools::SampleConversation;
use crate::support::depth;

const TURNS: usize = 16;

async fn rig(placement: &str) -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "4000"),
        ("UPSTREAM__PLACEMENT", placement),
    ];
    Rig::with(Options::default(), &settings).await
}

/// Where the block stands: message and content part.
fn block(body: &Value) -> Option<(usize, Option<usize>)> {
    let opening = "<diarist-log";
    let messages = body["messages"].as_array()?;
    messages.iter().enumerate().find_map(|(at, message)| {
        if let Some(text) = message["content"].as_str() {
            return text.contains(opening).then_some((at, None));
        }
        let parts = message["content"].as_array()?;
        let part = parts.iter().position(|part| {
            part["text"]
                .as_str()
                .is_some_and(|text| text.contains(opening))
        })?;
        Some((at, Some(part)))
    })
}

fn placed(body: &Value) -> &'static str {
    match block(body) {
        None => "nowhere",
        Some((0, _)) => "append_to_system",
        Some((_, Some(_))) => "segments",
        Some(_) => "system_message",
    }
}

type Demand = fn(&mut Rules);

/// Every strict mode, alone.
const MODES: [(&str, Demand); 6] = [
    ("none", |_| {}),
    ("alternate", |rules| rules.alternate = true),
    ("single_system", |rules| rules.single_system = true),
    ("system_first", |rules| rules.system_first = true),
    ("template", |rules| rules.template = true),
    ("signature", |rules| rules.signature = true),
];

/// The steps of a placement that is refused: each tried once, the original each time.
fn steps(placement: &str, mode: &str) -> (Vec<&'static str>, &'static str) {
    match (placement, mode) {
        ("segments", "single_system" | "template") => {
            (vec!["segments", "system_message"], "append_to_system")
        }
        ("system_message", "single_system" | "template") => {
            (vec!["system_message"], "append_to_system")
        }
        ("segments", _) => (vec![], "segments"),
        // The provider's host is this machine.
        ("append_to_system" | "auto", _) => (vec![], "append_to_system"),
        ("off", _) => (vec![], "nowhere"),
        _ => (vec![], "system_message"),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn every_placement_works_with_every_strict_provider() {
    let placements = [
        "auto",
        "system_message",
        "append_to_system",
        "segments",
        "off",
    ];
    for (at, placement) in placements.into_iter().enumerate() {
        let rig = rig(placement).await;
        // The plain form plays half of the modes with each placement, in turn the one half and the other.
        let is_played = |mode: usize| depth::is_long() || mode % 2 == at % 2;
        let modes = MODES.into_iter().enumerate();
        for (_, (mode, demand)) in modes.filter(|(mode, _)| is_played(*mode)) {
            rig.provider.rules(|rules| {
                *rules = Rules::default();
                demand(rules);
            });
            // A model of its own: what was learned of another says nothing.
            let conversation = SampleConversation {
                model: Box::leak(format!("gpt-{mode}").into_boxed_str()),
                ..SampleConversation::new(&format!("{placement}-{mode}"))
            };
            let from = rig.got().len();
            for turn in 1..=TURNS {
                let mut body = conversation.body(turn);
                body["response_format"] = json!({"type": "json_object"});
                body["messages"][0]["content"] = json!("Answer in JSON.");
                let answer = rig.send(&body).await;
                assert_eq!(answer.status, 200, "{placement} {mode}: {}", answer.text());
                let content = &answer.json()["choices"][0]["message"]["content"];
                assert!(content.as_str().is_some_and(|content| !content.is_empty()));
                rig.quiet().await;
            }
            let got = rig.got().split_off(from);
            let (tried, left) = steps(placement, mode);
            let refused: Vec<_> = got
                .iter()
                .filter(|entry| !entry.is_accepted())
                .map(|entry| placed(&entry.json().unwrap()))
                .collect();
            assert_eq!(refused, tried, "{placement} {mode}");
            // After each refusal the client's own bytes, and then the next placement.
            for at in got
                .iter()
                .enumerate()
                .filter(|(_, e)| !e.is_accepted())
                .map(|(at, _)| at)
            {
                assert_eq!(placed(&got[at + 1].json().unwrap()), "nowhere");
                assert!(got[at + 1].is_accepted());
            }
            let last = got.last().unwrap().json().unwrap();
            assert_eq!(placed(&last), left, "{placement} {mode}");
            keeps_the_prefix(&got, &format!("{placement} {mode}"));
        }
    }
}

/// INV-PREFIX, on the bytes: of two requests one after the other in the same placement, the later one
/// begins with all of the earlier that the client keeps, unless the block has changed; then it still
/// begins with all up to the end of the old observations.
fn keeps_the_prefix(got: &[Arc<RecordedRequest>], what: &str) {
    let accepted: Vec<_> = got.iter().filter(|entry| entry.is_accepted()).collect();
    let (mut kept, mut appended) = (0, 0);
    for pair in accepted.windows(2) {
        let [earlier, later] = [&pair[0].body, &pair[1].body];
        let bodies = [pair[0].json().unwrap(), pair[1].json().unwrap()];
        if placed(&bodies[0]) != placed(&bodies[1]) {
            continue;
        }
        let common = earlier
            .iter()
            .zip(later.iter())
            .take_while(|(a, b)| a == b)
            .count();
        let [old, new] = bodies.map(|body| text(&body));
        if old == new {
            // All messages of the earlier one; behind them the client's own end of its array.
            let end =
                earlier.len() - r#"],"model":"","response_format":{"type":"json_object"}}"#.len();
            assert!(common + 64 >= end, "{what}: {common} of {end}");
            kept += 1;
        } else {
            let unchanged = old
                .chars()
                .zip(new.chars())
                .take_while(|(a, b)| a == b)
                .count();
            let observations = old.find("<current-task>").unwrap_or(old.len());
            assert!(
                unchanged >= observations,
                "{what}: {unchanged} of {observations}"
            );
            appended += 1;
        }
    }
    assert!(kept > 0, "{what}");
    let blocks = accepted
        .last()
        .is_some_and(|last| block(&last.json().unwrap()).is_some());
    assert_eq!(
        appended > 0,
        blocks,
        "{what}: {appended} blocks were added to"
    );
}

fn text(body: &Value) -> String {
    let Some((at, _)) = block(body) else {
        return String::new();
    };
    match &body["messages"][at]["content"] {
        Value::String(text) => text.clone(),
        parts => parts
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
    }
}

/// The templates of gpt-oss, Phi-4 and others read the first system message only, and raise no error about a second one.
#[tokio::test(flavor = "multi_thread")]
async fn by_default_a_model_that_reads_one_system_message_gets_the_block() {
    let rig = rig("auto").await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    let sent: Vec<Value> = rig.forwarded();
    let blocks: Vec<_> = sent.iter().filter_map(block).collect();
    assert!(blocks.len() > 2, "{} blocks", blocks.len());
    assert!(blocks.iter().all(|place| *place == (0, None)), "{blocks:?}");
    let own = |body: &Value| body["messages"][0]["content"].as_str().unwrap().to_owned();
    let client = own(&conversation.body(1));
    assert!(sent.iter().all(|body| own(body).starts_with(&client)));
    assert!(
        rig.got().iter().all(|entry| entry.is_accepted()),
        "nothing is refused"
    );
}

/// Signed tool calls of the current turn come back as they were issued, wherever the block stands.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn signed_calls_of_the_current_turn_stay_as_they_were_issued() {
    for placement in ["system_message", "append_to_system", "segments"] {
        let rig = rig(placement).await;
        rig.provider.rules(|rules| {
            *rules = Rules::strict();
            rules.single_system = placement == "append_to_system";
            rules.template = rules.single_system;
            rules.signature = true;
        });
        let mut messages = vec![
            json!({"role": "system", "content": "Use the tools."}),
            json!({"role": "user", "content": "Read all of them."}),
        ];
        let mut active = false;
        for round in 0..20 {
            let id = format!("call_{round}");
            messages.push(
                json!({"role": "assistant", "content": null, "tool_calls": [{
                "id": id, "type": "function",
                "function": {"name": "read", "arguments": format!("{{\"file\":{round}}}")},
                "extra_content": {"google": {"thought_signature": signature_for(&id)}}}]}),
            );
            let content = format!("File {round}. {}", "one line of it ".repeat(60));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            let answer = rig
                .send(&json!({"model": "gpt-test", "messages": messages}))
                .await;
            assert_eq!(answer.status, 200, "{placement}: {}", answer.text());
            active |= answer.memory() == "active";
            rig.quiet().await;
        }
        assert!(active, "{placement}");
        assert!(
            rig.provider
                .record_for(CallerKind::Actor)
                .iter()
                .all(|entry| entry.is_accepted())
        );
        assert_eq!(placed(&rig.last().json().unwrap()), placement);
    }
}
