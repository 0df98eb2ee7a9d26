//! What the Observer is shown and asked for, as the operator decides, read from the provider's record.

use diarist_provider::{Behaviour, CallerKind, Options, Provider, Reply, Rules, ScriptInput};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

pub async fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut all = vec![
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
    ];
    all.extend_from_slice(settings);
    Rig::with(Options::default(), &all).await
}

/// The messages of every accepted call of the Observer.
pub fn calls(rig: &Rig) -> Vec<Value> {
    let record = rig.provider.record_for(CallerKind::Observer);
    let bodies = record.iter().filter(|call| call.is_accepted());
    bodies
        .map(|call| call.json().unwrap()["messages"].clone())
        .collect()
}

/// A conversation in which the second message of the user shows a picture and a table.
fn illustrated(turn: usize) -> Value {
    let mut body = SampleConversation::new("ada").body(turn);
    let shown = json!([
        {"type": "text", "text": "Here they are. Which of the two is newer?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}, "cache_control": {"type": "ephemeral"}},
        {"type": "file", "file": {"filename": "table.csv", "file_data": "data:text/csv;base64,YSxi"}},
    ]);
    if turn > 1 {
        body["messages"][3]["content"] = shown;
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_observer_gets_allowed_attachments_and_the_names_of_others() {
    for (setting, image, table) in [
        ("auto", true, false),
        ("true", true, true),
        ("text/*", false, true),
        ("[]", false, false),
        ("false", false, false),
    ] {
        let rig = rig(&[("MEMORY__OBSERVATION__OBSERVE_ATTACHMENTS", setting)]).await;
        for turn in 1..=ACTIVE {
            assert_eq!(rig.send(&illustrated(turn)).await.status, 200);
            rig.quiet().await;
        }
        let mut checked = 0;
        for messages in calls(&rig) {
            let content = &messages[1]["content"];
            let parts = content.as_array().cloned().unwrap_or_default();
            let text = content
                .as_str()
                .or_else(|| parts[0]["text"].as_str())
                .unwrap();
            let history = text.split("<history-").nth(1).unwrap();
            if !history.contains("[Image #1: image/png]") {
                assert!(content.is_string());
                continue;
            }
            checked += 1;
            assert!(history.contains("[File #1: table.csv]"), "{history}");
            let names = |part: &Value| part["type"] == "text" && part["text"] == "[Image #1]:";
            let mut pairs = parts.iter().zip(parts.iter().skip(1));
            let shown = pairs.find(|(name, _)| names(name));
            assert_eq!(shown.is_some(), image, "{setting}");
            if let Some((_, image)) = shown {
                let bare = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
                assert_eq!(*image, bare);
            }
            assert_eq!(
                parts.iter().any(|part| part["type"] == "file"),
                table,
                "{setting}"
            );
            let unseen = match (image, table) {
                (true, true) => None,
                (true, false) => Some("Not shown to you: [File #1]."),
                (false, true) => Some("Not shown to you: [Image #1]."),
                (false, false) => Some("Not shown to you: [Image #1], [File #1]."),
            };
            assert!(
                unseen.is_none_or(|words| text.ends_with(words)),
                "{setting}: {text}"
            );
            assert!(unseen.is_some() || !text.contains("Not shown to you"));
        }
        assert_eq!(checked, 1, "{setting}");
        // The bytes went with the chunk.
        assert_eq!(rig.number("SELECT count(*) FROM jobs").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redacted_text_is_neither_sent_to_the_observer_nor_stored() {
    let rig = rig(&[
        ("MEMORY__REDACT__PATTERNS", r"ada@canary\d+"),
        ("MEMORY__REDACT__KINDS", "[]"),
    ])
    .await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    assert_eq!(answer.memory(), "active");
    let calls = calls(&rig);
    assert!(
        calls
            .iter()
            .any(|call| call.to_string().contains("[redacted: pattern]"))
    );
    assert!(
        calls
            .iter()
            .all(|call| !call.to_string().contains(&conversation.canary()))
    );
    let held = "SELECT count(*) FROM parts WHERE text LIKE '%canary%'";
    assert_eq!(rig.number(held).await, 0);
}

/// A conversation whose client puts what its editor shows behind what the user says, and in a message of its
/// own where a tool was asked for.
fn beside_editor(turn: usize) -> Value {
    let mut body = SampleConversation::new("ada").body(turn);
    let users = body["messages"].as_array_mut().unwrap().iter_mut();
    for (at, message) in users.filter(|entry| entry["role"] == "user").enumerate() {
        let block = format!(
            "<environment_details>\n# Open tabs\nsrc/secret_{at}.rs\nCost: $0.{at}123\n</environment_details>"
        );
        message["content"] = match at % 3 {
            0 => format!("{}\n\n{block}", message["content"].as_str().unwrap()).into(),
            1 => {
                json!([{"type": "text", "text": message["content"]}, {"type": "text", "text": block}])
            }
            _ => json!(block),
        };
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn omitted_client_blocks_are_forwarded_and_not_observed() {
    const TAB: &str = "src/secret_";
    for (setting, shown) in [("environment_details", false), ("[]", true)] {
        let rig = rig(&[("MEMORY__OBSERVATION__OMIT_BLOCKS", setting)]).await;
        for turn in 1..=ACTIVE {
            let body = beside_editor(turn);
            assert_eq!(rig.send(&body).await.status, 200);
            rig.quiet().await;
            let last = body["messages"].as_array().unwrap().last().unwrap().clone();
            let forwarded = rig.forwarded();
            let sent = forwarded.last().unwrap()["messages"].as_array().unwrap();
            assert_eq!(sent.last(), Some(&last), "what is raw is the client's");
        }
        let calls = calls(&rig);
        assert!(!calls.is_empty());
        for call in &calls {
            let history = call[1]["content"].as_str().unwrap();
            let history = history.split_once("<history-").unwrap().1;
            assert_eq!(history.contains(TAB), shown, "{history}");
            assert_eq!(
                history.contains("environment_details]"),
                !shown,
                "{history}"
            );
        }
        let is_shown = |words: &str| calls.iter().any(|call| call.to_string().contains(words));
        assert!(is_shown("wants ada in turn 1.") && is_shown("wants ada in turn 2."));
        // What it is measured by is what it was shown.
        let measured = "SELECT count(*) FROM parts WHERE retention ->> '$.path' IS NOT NULL";
        assert_eq!(rig.number(measured).await > 0, shown);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_system_prompt_is_sent_to_the_observer_only_if_configured() {
    for (setting, shown) in [("false", false), ("true", true)] {
        let rig = rig(&[("MEMORY__OBSERVATION__OBSERVE_SYSTEM", setting)]).await;
        rig.play_turns(&SampleConversation::new("ada"), 1..=ACTIVE)
            .await;
        let calls = calls(&rig);
        assert!(!calls.is_empty(), "the Observer was not called");
        for call in calls {
            let user = call[1]["content"].as_str().unwrap();
            let (before, history) = user.split_once("<history-").unwrap();
            assert!(!history.contains("patient assistant"));
            assert_eq!(before.contains("<application-"), shown);
            assert_eq!(
                before.contains("You are a patient assistant."),
                shown,
                "{before}"
            );
        }
    }
}

/// What stands in the fence of the earlier observations, line by line.
fn earlier(call: &Value) -> Vec<String> {
    let user = call[1]["content"].as_str().unwrap();
    let fenced = user.split("<earlier-").nth(1).unwrap_or_default();
    let fenced = fenced.split("\n</earlier-").next().unwrap();
    fenced.lines().skip(1).map(str::to_owned).collect()
}

/// A part of the log as it is stored: its number, what it covers, and its lines.
struct Stored {
    id: i64,
    reflection: bool,
    from: i64,
    to: i64,
    lines: Vec<String>,
}

/// The parts of the one conversation of a test, which has no branches.
async fn stored(rig: &Rig) -> Vec<Stored> {
    let mut database = rig.database().await;
    let rows: Vec<(i64, String, i64, i64, String)> =
        sqlx::query_as("SELECT id, kind, from_count, to_count, text FROM parts ORDER BY id")
            .fetch_all(&mut database)
            .await
            .unwrap();
    let stored = rows.into_iter().map(|(id, kind, from, to, text)| Stored {
        id,
        reflection: kind == "reflection",
        from,
        to,
        lines: text.lines().map(str::to_owned).collect(),
    });
    stored.collect()
}

/// The log as it stood before `chunk`: the newest reflection and the chunks behind it.
fn log_before<'a>(parts: &'a [Stored], chunk: &Stored) -> Vec<&'a Stored> {
    let (mut log, mut at) = (Vec::new(), chunk.from);
    let older = |part: &&Stored| part.id < chunk.id;
    while let Some(part) = parts
        .iter()
        .filter(older)
        .filter(|part| part.to == at)
        .max_by_key(|part| part.reflection)
    {
        log.insert(0, part);
        at = part.from;
    }
    log
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_setting_limits_the_earlier_observations_in_the_observer_prompt() {
    for setting in ["0", "2000", "false"] {
        let rig = rig(&[("MEMORY__OBSERVATION__PREVIOUS_OBSERVER_TOKENS", setting)]).await;
        rig.play_turns(&SampleConversation::new("ada"), 1..=2 * ACTIVE)
            .await;
        let parts = stored(&rig).await;
        let chunks: Vec<&Stored> = parts.iter().filter(|part| !part.reflection).collect();
        let calls = calls(&rig);
        assert_eq!(calls.len(), chunks.len(), "one call for each");
        let mut condensed = 0;
        for (call, chunk) in calls.iter().zip(chunks) {
            let shown = earlier(call);
            if setting == "0" || chunk.from == 0 {
                assert!(shown.is_empty(), "{setting}: {shown:?}");
                continue;
            }
            let log = log_before(&parts, chunk);
            let ends = log.last().unwrap();
            // The line that was written last stands last, whatever is left out before it.
            let before = parts.iter().filter(|part| part.to == ends.to);
            let last = |part: &Stored| part.lines.last() == shown.last();
            assert!(before.into_iter().any(last), "{setting}: {shown:?}");
            if setting == "false" {
                let days = |line: &&String| !line.starts_with("Date:");
                let whole = log.iter().flat_map(|part| &part.lines).filter(days);
                let same = whole.eq(shown.iter().filter(days));
                condensed += usize::from(same && log[0].reflection);
            }
        }
        if setting == "false" {
            assert!(
                condensed > 2,
                "the newest reflection stands for what it condenses"
            );
        }
    }
}

/// A conversation whose every turn names things that stand nowhere else.
fn harbour(turn: usize, system: &str) -> Value {
    let mut messages = vec![json!({"role": "system", "content": system})];
    for n in 1..=turn {
        let named: String = (0..40)
            .map(|k| format!("item{n}x{k} lies there. "))
            .collect();
        messages.push(json!({"role": "user", "content": named}));
        if n < turn {
            messages.push(json!({"role": "assistant", "content": format!("Noted, {n}.")}));
        }
    }
    json!({"model": "gpt-test", "messages": messages})
}

/// Background gives way before the history does: a log and a prompt that are longer than the Observer's
/// window leave every range whole.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn background_is_shortened_before_the_history_in_the_observer_prompt() {
    let long: String = (0..1_500).map(|n| format!("Rule {n} holds. ")).collect();
    for (key, value, system) in [
        ("PREVIOUS_OBSERVER_TOKENS", "false", "Be brief."),
        ("OBSERVE_SYSTEM", "true", long.as_str()),
    ] {
        let observer = Provider::start(Options {
            rules: Rules {
                window: Some(7_000),
                ..Rules::default()
            },
            ..Options::default()
        })
        .await
        .unwrap();
        // Notes as long as what they are made of, so that the log grows.
        observer.script(CallerKind::Observer, |ask: &ScriptInput<'_>| {
            let shown = ask.texts_by_role("user").concat();
            let history = shown.split("<history-").nth(1).unwrap_or_default();
            let items = history
                .split_whitespace()
                .filter(|word| word.starts_with("item"));
            let notes: String = items
                .map(|item| format!("* 🟡 User named {item}.\n"))
                .collect();
            Reply::text(format!("<observations>\n{notes}</observations>"))
        });
        let base_url = observer.base_url();
        let rig = rig(&[
            (&format!("MEMORY__OBSERVATION__{key}"), value),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "60000"),
            ("MEMORY__OBSERVATION__BASE_URL", &base_url),
            ("MEMORY__OBSERVATION__API_KEY", "sk-memory"),
        ])
        .await;
        for turn in 1..=30 {
            assert_eq!(rig.send(&harbour(turn, system)).await.status, 200);
            rig.quiet().await;
        }
        let by_code = "SELECT count(*) FROM parts WHERE model = 'code'";
        assert_eq!(rig.number(by_code).await, 0, "{key}");
        let record = observer.record_for(CallerKind::Observer);
        let pieces = record.iter().filter(|call| {
            let body = call.json().unwrap();
            body["messages"][1]["content"]
                .as_str()
                .unwrap()
                .contains("Part 1 of ")
        });
        assert_eq!(pieces.count(), 0, "{key}: no range was cut");
        let refused = record.iter().filter(|call| !call.is_accepted()).count();
        assert!(
            (1..=5).contains(&refused),
            "{key}: {refused} of {}",
            record.len()
        );
        let last = record.last().unwrap().json().unwrap()["messages"].clone();
        match key {
            // The end of the log is what is left of it.
            "PREVIOUS_OBSERVER_TOKENS" => assert!(earlier(&last).len() > 10),
            _ => assert!(last.to_string().contains("Rule 0 holds.")),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_and_reflector_prompts_end_with_the_configured_instruction() {
    let rig = rig(&[
        ("MEMORY__OBSERVATION__INSTRUCTION", "Keep every recipe."),
        ("MEMORY__REFLECTION__INSTRUCTION", "Keep every ticket."),
    ])
    .await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=20)
        .await;
    for (part, words) in [
        (CallerKind::Observer, "Keep every recipe."),
        (CallerKind::Reflector, "Keep every ticket."),
    ] {
        let record = rig.provider.record_for(part);
        assert!(!record.is_empty(), "{part:?}");
        for call in record {
            let system = call.json().unwrap()["messages"][0]["content"].clone();
            assert!(
                system.as_str().unwrap().trim_end().ends_with(words),
                "{part:?}"
            );
        }
    }
}

/// Whether what was sent last ends with these hints; the rules of the block name their tags as well.
fn sent(rig: &Rig) -> [bool; 2] {
    let body = rig.last().json().unwrap()["messages"].to_string();
    [
        r"<current-task>\nPrimary",
        r"<suggested-response>\nContinue",
    ]
    .map(|hint| body.contains(hint))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn hints_are_requested_and_sent_as_configured() {
    let (task, response) = ("<current-task>", "<suggested-response>");
    for (observation, reflection, asks, sends) in [
        ("true", "true", [true, true], [true, true]),
        ("current_task", "false", [true, false], [true, false]),
        ("false", "true", [false, false], [false, false]),
        ("false", "false", [false, false], [false, false]),
    ] {
        let rig = rig(&[
            ("MEMORY__OBSERVATION__CONTINUATION_HINTS", observation),
            ("MEMORY__REFLECTION__CONTINUATION_HINTS", reflection),
            // A reflection has no hints; it would hide those of the chunks.
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "40000"),
        ])
        .await;
        // The scripted Observer writes both whether it is asked or not.
        let answer = rig
            .play_turns(&SampleConversation::new("ada"), 1..=ACTIVE)
            .await;
        assert_eq!(answer.memory(), "active");
        for call in calls(&rig) {
            let system = call[0]["content"].as_str().unwrap();
            assert_eq!(
                [system.contains(task), system.contains(response)],
                asks,
                "{observation}"
            );
        }
        assert_eq!(sent(&rig), sends, "{observation}");
    }
}

/// Once nobody asks for hints, that of an old chunk is not sent any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_hint_is_not_sent_when_both_hint_settings_are_off() {
    for (phase, expected) in [("true", true), ("false", false)] {
        let mut rig = rig(&[
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "3000"),
            ("MEMORY__OBSERVATION__BUFFER_TOKENS", "1600"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "40000"),
        ])
        .await;
        let conversation = SampleConversation::new("ada");
        let mut turn = 0;
        // A chunk is there, and no snapshot yet; it will be the last one the Observer writes.
        while rig
            .number("SELECT count(*) FROM parts WHERE current_task IS NOT NULL")
            .await
            == 0
        {
            turn += 1;
            rig.play_turns(&conversation, turn..=turn).await;
        }
        assert_eq!(rig.number("SELECT count(*) FROM snapshots").await, 0);
        let silent = Behaviour {
            silent: true,
            ..Behaviour::default()
        };
        rig.provider.inject(CallerKind::Observer, silent);
        rig.set("MEMORY__OBSERVATION__CONTINUATION_HINTS", "false");
        rig.set("MEMORY__REFLECTION__CONTINUATION_HINTS", phase);
        rig.set("SERVER__DRAIN_TIMEOUT", "1s");
        rig.restart().await;
        while !rig
            .last()
            .json()
            .unwrap()
            .to_string()
            .contains("<diarist-log")
        {
            turn += 1;
            assert!(turn < 20);
            let before = rig.number("SELECT count(*) FROM requests").await;
            rig.send(&conversation.body(turn)).await;
            let recorded = "SELECT count(*) FROM requests";
            rig.until(recorded, |now| now != before).await;
        }
        assert_eq!(
            sent(&rig),
            [expected, expected],
            "reflection.continuation_hints = {phase}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_observer_prompt_contains_the_hints_of_the_chunk_before() {
    for (setting, task, response) in [
        ("true", true, true),
        ("false", false, false),
        ("[\"current_task\"]", true, false),
    ] {
        let rig = rig(&[("MEMORY__OBSERVATION__CONTINUATION_HINTS", setting)]).await;
        rig.play_turns(&SampleConversation::new("ada"), 1..=ACTIVE)
            .await;
        let record = rig.provider.record_for(CallerKind::Observer);
        assert!(record.len() > 2);
        for (at, call) in record.iter().enumerate() {
            let body = call.json().unwrap();
            let user = body["messages"][1]["content"].as_str().unwrap();
            let stood = user
                .split("\n<before-")
                .nth(1)
                .map(|rest| rest.split("</before-").next().unwrap());
            // What the chunk before said of it, which is the answer before.
            let reply_text = at.checked_sub(1).map(|before| {
                let reply = record[before].reply.clone().unwrap();
                reply["content"].as_str().unwrap().to_owned()
            });
            let section = |name: &str| {
                let text = reply_text
                    .as_deref()?
                    .split(&format!("<{name}>\n"))
                    .nth(1)?;
                text.split(&format!("\n</{name}>")).next()
            };
            for (wanted, label, name) in [
                (task, "Task", "current-task"),
                (response, "Response", "suggested-response"),
            ] {
                let expected = section(name).map(|words| format!("{label}: {words}"));
                let shown = stood.is_some_and(|stood| stood.contains(&format!("{label}: ")));
                assert_eq!(shown, wanted && at > 0, "{setting}, call {at}: {user}");
                if shown {
                    assert!(stood.unwrap().contains(&expected.unwrap()), "{user}");
                }
            }
        }
    }
}
