//! What Diarist adds for the caches of GPT-5.6 and of providers that route by a header: a breakpoint behind the log of the
//! block, and a header with the conversation's hash. Only where the client leaves it open and the upstream takes it.

use diarist_provider::{CacheKind, CallerKind, Options};
use serde_json::{Value, json};

use crate::memory::rig::{Answer, Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation, refusing};

const BREAKPOINT: &str = "UPSTREAM__CACHE_BREAKPOINT";
const AFFINITY: &str = "UPSTREAM__SESSION_AFFINITY";
const HEADER: &str = "x-session-affinity";

async fn rig(setting: (&'static str, &'static str)) -> Rig {
    Rig::with(Options::default(), &[SMALL[0], SMALL[1], setting]).await
}

/// The texts of the newest request's block, up to its breakpoint and behind it. Without a breakpoint all is behind it.
fn block(rig: &Rig) -> Option<(String, String)> {
    let body = rig.last().json().unwrap();
    let messages = body["messages"].as_array().unwrap().clone();
    let holds = |message: &&Value| message["content"].to_string().contains("<diarist-log");
    let content = messages.iter().find(holds)?["content"].clone();
    let Some(parts) = content.as_array() else {
        return Some((String::new(), content.as_str()?.to_owned()));
    };
    let text = |parts: &[Value]| {
        let texts = parts.iter().map(|part| part["text"].as_str().unwrap());
        texts.collect::<String>()
    };
    let is_marked = |part: &Value| part["prompt_cache_breakpoint"] == json!({"mode": "explicit"});
    let marked = parts.iter().position(is_marked).map_or(0, |at| at + 1);
    assert_eq!(
        parts.iter().filter(|part| is_marked(part)).count(),
        usize::from(marked > 0)
    );
    let (before, behind) = parts.split_at(marked);
    Some((text(before), text(behind)))
}

async fn added(rig: &Rig, answer: &Answer) -> Value {
    rig.audit_entry(answer).await["added"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activation_extends_the_text_before_the_cache_breakpoint() {
    let mut rig = rig((BREAKPOINT, "always")).await;
    let conversation = SampleConversation::new("ada");
    let (mut stored, mut grown) = (Vec::<String>::new(), 0);
    for turn in 1..=ACTIVE * 2 {
        let answer = rig.play_turns(&conversation, turn..=turn).await;
        let line = rig.audit_entry(&answer).await;
        let Some((before, behind)) = block(&rig) else {
            assert_eq!(rig.last().body, conversation.body(turn).to_string());
            assert_eq!(line["added"], Value::Null);
            continue;
        };
        assert_eq!(line["added"], "cache_breakpoint", "turn {turn}");
        assert!(
            before.starts_with("<diarist") && before.contains("ada"),
            "{before}"
        );
        let hints = |text: &str| text.contains("<current-task>\n");
        assert!(!hints(&before), "hints can change: {before}");
        assert!(behind.is_empty() || hints(&behind), "{behind}");
        match stored.last() {
            Some(last) if *last == before => {}
            Some(last) if line["cause"] == "threshold" => {
                assert!(
                    before.starts_with(last.as_str()),
                    "turn {turn}\n{last}\n{before}"
                );
                grown += 1;
                stored.push(before);
            }
            _ => stored.push(before),
        }
    }
    assert!(grown > 0, "the block never grew");
    // The same request is the same bytes, also for another process.
    let sent = rig.last().body.clone();
    rig.restart().await;
    rig.send(&conversation.body(ACTIVE * 2)).await;
    assert_eq!(rig.last().body, sent);
}

/// What an activation costs at a cache that stores up to breakpoints only: with one behind the log, the provider reads what
/// stands before it from its cache.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_activation_reads_the_older_observations_from_the_cache() {
    let mut read = Vec::new();
    for setting in ["always", "never"] {
        let rig = rig((BREAKPOINT, setting)).await;
        rig.provider
            .rules(|rules| rules.cache = CacheKind::Breakpoints);
        // The provider stores no less than 1,024 tokens.
        let rules = "Say what is asked, and nothing else that comes to mind. ".repeat(90);
        let conversation = SampleConversation {
            model: "gpt-5.6",
            system: None,
            ..SampleConversation::new("ada")
        };
        let (mut of_activations, mut of_others, mut activations) = (0, 0, 0);
        for turn in 1..=ACTIVE * 2 {
            let mut body = conversation.body(turn);
            let messages = body["messages"].as_array_mut().unwrap();
            messages.insert(0, json!({"role": "system", "content": rules}));
            let answer = rig.send(&body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            rig.quiet().await;
            let line = rig.audit_entry(&answer).await;
            let cached = line["cached_tokens"].as_u64().unwrap();
            let is_activation = line["changed"] == "observations" && line["cause"] == "threshold";
            if is_activation {
                activations += 1;
                of_activations += cached;
            } else {
                of_others += cached;
            }
        }
        assert!(activations > 2, "{activations}");
        read.push((of_activations, of_others));
    }
    let [with, without] = read[..] else {
        panic!("two rigs")
    };
    println!("read by activations and by others: with a breakpoint {with:?}, without {without:?}");
    assert_eq!(without.0, 0);
    assert!(with.0 > 2_048, "{with:?}");
    assert!(with.1 + 128 >= without.1, "{with:?} {without:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn no_breakpoint_is_added_if_settings_or_client_fields_exclude_it() {
    let mark = json!({"cache_control": {"type": "ephemeral"}});
    for (setting, model, own) in [
        // The scripted provider's host is not OpenAI's.
        ("auto", "gpt-5.6", Value::Null),
        ("never", "gpt-5.6", Value::Null),
        (
            "always",
            "gpt-5.6",
            json!({"prompt_cache_options": {"mode": "implicit"}}),
        ),
        ("always", "gpt-5.6", mark),
    ] {
        let rig = rig((BREAKPOINT, setting)).await;
        rig.provider.rules(|rules| {
            rules.extra_parameters = vec![
                "prompt_cache_options".to_owned(),
                "cache_control".to_owned(),
            ];
        });
        let conversation = SampleConversation {
            model,
            ..SampleConversation::new("ada")
        };
        for turn in 1..=ACTIVE {
            let mut body = conversation.body(turn);
            for (name, value) in own.as_object().into_iter().flatten() {
                body[name] = value.clone();
            }
            let answer = rig.send(&body).await;
            assert_eq!(answer.status, 200);
            rig.quiet().await;
            assert_eq!(added(&rig, &answer).await, Value::Null, "{setting} {own}");
        }
        let (before, behind) = block(&rig).unwrap();
        assert_eq!(before, "", "{setting} {own}");
        assert!(behind.contains("<diarist-log"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_breakpoint_is_not_added_again_and_repetitions_stay_equal() {
    let mut rig = rig((BREAKPOINT, "always")).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let (turn, with) = (ACTIVE, rig.last().body.clone());
    assert_ne!(block(&rig).unwrap().0, "");
    let error = "Unknown parameter: 'messages[1].content[0].prompt_cache_breakpoint'.";
    rig.provider
        .inject_next(CallerKind::Actor, 1, &refusing(400, error));
    let before = rig.got().len();
    let answer = rig.play_turns(&conversation, turn + 1..=turn + 1).await;
    assert_eq!(answer.memory(), "bypass; reason=refused; rung=refused");
    assert_eq!(rig.got().len(), before + 2);
    let answer = rig.play_turns(&conversation, turn + 2..=turn + 2).await;
    assert_eq!(
        (answer.memory(), block(&rig).unwrap().0),
        ("active", String::new())
    );
    assert_eq!(added(&rig, &answer).await, Value::Null);
    let without = rig.last().body.clone();
    // What went out without goes out without, also for a process that knows of no refusal.
    rig.restart().await;
    rig.send(&conversation.body(turn + 2)).await;
    assert_eq!(rig.last().body, without);
    rig.send(&conversation.body(turn)).await;
    assert_eq!(rig.last().body, with);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_header_accompanies_observations_unless_the_client_sends_one() {
    let mut rig = rig((AFFINITY, HEADER)).await;
    // No name that the digits of a hash may contain by chance.
    let conversation = SampleConversation::new("ruth");
    let mut values = Vec::new();
    for turn in 1..=ACTIVE + 2 {
        let answer = rig.play_turns(&conversation, turn..=turn).await;
        let value = rig.last().headers.get(HEADER).cloned();
        assert_eq!(value.is_some(), block(&rig).is_some(), "turn {turn}");
        let expected = value
            .as_ref()
            .map_or(Value::Null, |_| json!("session_affinity"));
        assert_eq!(added(&rig, &answer).await, expected);
        values.extend(value);
    }
    assert!(values.len() > 2, "{values:?}");
    let first = values[0].clone();
    assert!(values.iter().all(|value| *value == first));
    let text = first.to_str().unwrap().to_owned();
    assert!(text.len() <= 64 && !text.contains("ruth"), "{text}");
    rig.restart().await;
    rig.play_turns(&conversation, ACTIVE + 3..=ACTIVE + 3).await;
    assert_eq!(rig.last().headers.get(HEADER), Some(&first));
    // Another conversation has another one; the client's own stays.
    rig.play_turns(&SampleConversation::new("bob"), 1..=ACTIVE)
        .await;
    let other = rig.last().headers.get(HEADER).cloned();
    assert!(other.is_some() && other.as_ref() != Some(&first));
    let own = [(HEADER, "mine")];
    let answer = rig
        .send_as("Bearer sk-test", &own, &conversation.body(ACTIVE + 4))
        .await;
    let values: Vec<_> = rig.last().headers.get_all(HEADER).iter().cloned().collect();
    assert_eq!(
        (answer.memory(), values),
        ("active", vec!["mine".parse().unwrap()])
    );
    assert_eq!(added(&rig, &answer).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_session_header_is_added_for_an_unknown_host_or_if_disabled() {
    for setting in ["auto", "never"] {
        let rig = rig((AFFINITY, setting)).await;
        rig.play_turns(&SampleConversation::new("ada"), 1..=ACTIVE)
            .await;
        assert!(block(&rig).is_some());
        let names = ["x-grok-conv-id", "x-session-affinity", "x-session-id"];
        for name in names {
            assert_eq!(rig.last().headers.get(name), None, "{setting}");
        }
    }
}
