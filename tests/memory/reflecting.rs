//! What a reflection may lose, what happens where there is none, and what an operator can ask for.

use std::process::Command;

use diarist_provider::{
    CallerKind, Conversation, Observer, ObserverStyle, Options, Reflector, Reply, Style,
};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

/// What of a conversation's planted facts a forwarded request no longer says, of those that were said
/// before its newest message.
fn lost(conversation: &Conversation, body: &Value, sent: usize) -> Vec<String> {
    // Quotes are escaped in both alike.
    let text = body["messages"].to_string();
    let gone = |words: &str| !text.contains(json!(words).to_string().trim_matches('"'));
    let facts = conversation.facts.iter().filter(|fact| fact.at < sent);
    facts
        .map(|fact| fact.words.clone())
        .filter(|words| gone(words))
        .collect()
}

/// Thresholds under which a conversation is condensed more than once, and all that its user says of
/// himself has room: where it has not, even the most faithful must leave something out.
async fn roomy() -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "2500"),
    ];
    Rig::with(Options::default(), &settings).await
}

/// Plays `conversation` and counts facts that were missing in any request.
async fn facts_lost(rig: &Rig, conversation: &Conversation) -> usize {
    let mut missing = 0;
    for sent in conversation.requests() {
        let body = conversation.request(sent, "gpt-test", false);
        assert_eq!(rig.send(&body).await.status, 200);
        rig.quiet().await;
        let forwarded = rig.last().json().unwrap();
        missing += lost(conversation, &forwarded, sent).len();
    }
    missing
}

fn reminders(rig: &Rig) -> usize {
    let calls = rig.provider.record_for(CallerKind::Reflector);
    let reminds = |call: &std::sync::Arc<diarist_provider::RecordedRequest>| {
        call.json()
            .is_some_and(|body| body.to_string().contains("<missing-"))
    };
    calls.iter().filter(|call| reminds(call)).count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_reflector_that_drops_facts_is_called_again_with_the_missing_facts() {
    let conversation = Conversation::generate(31, 34, Style::Travel);
    let rig = roomy().await;
    let manner = ObserverStyle::Forgetful;
    let forgetful = Reflector {
        style: manner,
        ..Reflector::default()
    };
    rig.provider.script(CallerKind::Reflector, forgetful);
    assert_eq!(facts_lost(&rig, &conversation).await, 0);
    let written = rig
        .number("SELECT count(*) FROM parts WHERE kind = 'reflection' AND model <> 'code'")
        .await;
    assert!(written > 0, "there were reflections");
    assert!(reminders(&rig) > 0, "what it dropped was noticed");
    let page = rig.metrics().await;
    assert!(
        page.contains("diarist_observation_retention_ratio_bucket"),
        "{page}"
    );
    assert!(rig.metric("diarist_reflections_reminded_total").await >= 1.0);
    // What was kept stands with the part: of what is important, nearly all.
    let lossy = rig
        .number(
            "SELECT count(*) FROM parts WHERE kind = 'reflection' AND model <> 'code'
             AND 100 * (retention ->> '$.high[0]') < 95 * (retention ->> '$.high[1]')",
        )
        .await;
    assert_eq!(lossy, 0);
}

/// Facts that are dropped again and again are put back by code.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn code_restores_facts_that_the_reflector_drops_again() {
    let conversation = Conversation::generate(32, 34, Style::Travel);
    let rig = roomy().await;
    rig.provider.script(
        CallerKind::Reflector,
        |ask: &diarist_provider::ScriptInput<'_>| {
            // Everything but the last few lines is forgotten, whatever it is told.
            let shown = ask.texts_by_role("user").join("\n");
            let lines: Vec<&str> = shown
                .lines()
                .filter(|line| line.starts_with("* "))
                .collect();
            let kept = &lines[lines.len() - lines.len().min(4)..];
            Reply::text(format!(
                "<observations>\n{}\n</observations>",
                kept.join("\n")
            ))
        },
    );
    assert_eq!(facts_lost(&rig, &conversation).await, 0);
    assert!(reminders(&rig) > 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_faithful_observer_loses_no_fact() {
    for style in [Style::Travel, Style::Coding] {
        let conversation = Conversation::generate(33, 34, style);
        let rig = roomy().await;
        rig.provider
            .script(CallerKind::Observer, Observer::default());
        assert_eq!(facts_lost(&rig, &conversation).await, 0, "{style:?}");
    }
}

/// The limit of INV-BOUND for the observations, with a Reflector that only ever fails, or that writes nothing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn without_a_reflector_code_keeps_the_log_within_its_limit() {
    for failing in [true, false] {
        let rig = Rig::small().await;
        if failing {
            let broken = diarist_provider::Behaviour::failing(500);
            rig.provider.inject(CallerKind::Reflector, broken);
        } else {
            let manner = ObserverStyle::Empty;
            rig.provider.script(
                CallerKind::Reflector,
                Reflector {
                    style: manner,
                    ..Reflector::default()
                },
            );
        }
        let conversation = Conversation::generate(34, 70, Style::Travel);
        for sent in conversation.requests() {
            let body = conversation.request(sent, "gpt-test", false);
            assert_eq!(rig.send(&body).await.status, 200);
            if !failing {
                rig.quiet().await;
            }
        }
        if failing {
            // Its calls wait to be tried again, so memory does not come to rest. But when everything is observed, the
            // log is beyond its limit, and code shortens it.
            let waiting = "SELECT count(*) FROM jobs WHERE kind = 'chunk'";
            rig.until(waiting, |jobs| jobs == 0).await;
            let shortened = "SELECT count(*) FROM snapshots AS s
                             JOIN parts AS p ON p.id = s.parts ->> '$[0]'
                             WHERE p.kind = 'reflection' AND p.model = 'code'";
            rig.until_at_least(1, shortened).await;
        }
        let largest = rig.number("SELECT max(tokens) FROM snapshots").await;
        assert!(
            largest <= 1_200,
            "{largest} tokens of observations are sent"
        );
        let by_code = rig
            .number("SELECT count(*) FROM parts WHERE kind = 'reflection' AND model = 'code'")
            .await;
        assert!(by_code > 0);
        if !failing {
            let last = rig.last().json().unwrap().to_string();
            assert!(last.contains("[older observations left out: "), "{last}");
        }
    }
}

/// The binary, on the database of a server that runs.
pub fn threads(rig: &Rig, args: &[&str]) -> (String, bool) {
    let url = format!("sqlite://{}", rig.file().display());
    let output = Command::new(env!("CARGO_BIN_EXE_diarist"))
        .arg("threads")
        .args(args)
        .args(["--database", &url])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.success())
}

async fn with_an_endpoint() -> (Rig, diarist_provider::Provider) {
    let provider = diarist_provider::Provider::start(Options::default())
        .await
        .unwrap();
    let base_url = provider.base_url();
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "4000"),
        ("MEMORY__BASE_URL", base_url.as_str()),
        ("MEMORY__API_KEY", "sk-memory"),
    ];
    (Rig::with(Options::default(), &settings).await, provider)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_reflect_command_writes_a_reflection_that_is_used() {
    let (rig, model) = with_an_endpoint().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE + 3).await;
    assert!(
        model.record_for(CallerKind::Reflector).is_empty(),
        "none is due"
    );
    let (text, done) = threads(&rig, &["reflect", "1", "--focus", "the canary"]);
    assert!(done && text.contains("is queued"), "{text}");
    rig.quiet().await;
    let reflector_calls = model.record_for(CallerKind::Reflector);
    let body = reflector_calls[0].json().unwrap().to_string();
    assert!(body.contains("keep what belongs to it in full: the canary"));
    assert!(!body.contains("eight tenths"), "level 0 comes first");
    // A log is condensed once, whoever asks again: while the reflection waits to be used, and after.
    let (text, done) = threads(&rig, &["reflect", "1", "--focus", "the lid"]);
    assert!(!done && text.contains("nothing new since the last reflection"));
    assert!(
        text.contains("a new focus needs new observations"),
        "{text}"
    );
    let (text, done) = threads(&rig, &["reflect", "1"]);
    assert!(!done && text.contains("nothing new since the last reflection"));
    assert!(!text.contains("a new focus"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(
        model.record_for(CallerKind::Reflector).len(),
        reflector_calls.len()
    );
    // It is used with the next longer request, far below the budget.
    rig.play_turns(&conversation, ACTIVE + 4..=ACTIVE + 5).await;
    let used = rig
        .number("SELECT count(*) FROM snapshots WHERE cause = 'reflection'")
        .await;
    assert_eq!(used, 1);

    // With something new there is another reflection, of what was looked at above all now.
    rig.play_turns(&conversation, ACTIVE + 6..=2 * ACTIVE).await;
    let (text, done) = threads(&rig, &["reflect", "1", "--focus", "the lid"]);
    assert!(done && text.contains("parts is queued"), "{text}");
    rig.quiet().await;
    let body = model.record_for(CallerKind::Reflector)[reflector_calls.len()].json();
    let body = body.unwrap().to_string();
    assert!(body.contains("keep what belongs to it in full: the lid"));

    let (again, known) = threads(&rig, &["reflect", "nobody"]);
    assert!(
        !known && again.contains("no conversation is called"),
        "{again}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_observe_command_observes_every_confirmed_message() {
    let (rig, _model) = with_an_endpoint().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=2).await;
    let observed = || rig.number("SELECT coalesce(max(to_count), 0) FROM parts");
    let (before, recorded) = (
        observed().await,
        rig.number("SELECT count(*) FROM nodes").await,
    );
    let (text, done) = threads(&rig, &["observe", "1"]);
    assert!(done && text.contains("The next request queues"), "{text}");
    rig.play_turns(&conversation, 3..=3).await;
    assert!(before < recorded);
    assert_eq!(
        observed().await,
        recorded,
        "what the request before carried is confirmed and observed"
    );
    // Once is enough.
    assert_eq!(
        rig.number("SELECT max(observe_asked) FROM lineages").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_observation_line_is_traced_back_to_its_messages() {
    let rig = Rig::small().await;
    let conversation = Conversation::generate(35, 40, Style::Travel);
    rig.play(&conversation).await;
    let unknown = rig
        .number("SELECT count(*) FROM parts WHERE json_array_length(origins) = 0")
        .await;
    assert_eq!(unknown, 0, "every part knows where its lines come from");
    let reflected = rig
        .number("SELECT count(*) FROM parts WHERE kind = 'reflection'")
        .await;
    assert!(reflected > 0);

    // Each planted fact leads to a range that holds the message which said it.
    let (shown, _) = threads(&rig, &["show", "1"]);
    let mut walked = 0;
    for fact in &conversation.facts {
        let Some(line) = shown.lines().find(|line| line.contains(&fact.words)) else {
            continue;
        };
        let number = line.split_whitespace().next().unwrap();
        let (text, done) = threads(&rig, &["show", "1", "--why", number]);
        assert!(done, "{text}");
        // Counted from 1, but the leading system message is not counted.
        let place = fact.at.to_string();
        let row = |line: &&str| line.split_whitespace().next() == Some(place.as_str());
        assert!(
            text.lines().any(|line| row(&line)),
            "{place} in\n{text}\n{line}"
        );
        assert!(text.contains("text is not stored"), "{text}");
        walked += 1;
    }
    assert!(walked > 5, "{walked} facts in\n{shown}");
    let (text, done) = threads(&rig, &["show", "1", "--why", "no such words anywhere"]);
    assert!(!done && text.contains("numbers the lines, 1 to "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_show_prints_the_settings_of_each_snapshot() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let tokyo = [("x-diarist-timezone", "Asia/Tokyo")];
    rig.play_turns_as("Bearer sk-test", &tokyo, &conversation, 1..=ACTIVE)
        .await;
    rig.set("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2400");
    rig.restart().await;
    let lima = [("x-diarist-timezone", "America/Lima")];
    rig.play_turns_as(
        "Bearer sk-test",
        &lima,
        &conversation,
        ACTIVE + 1..=2 * ACTIVE,
    )
    .await;
    let (shown, done) = threads(&rig, &["show", "1"]);
    assert!(done, "{shown}");
    let (_, made) = shown.split_once("Made with these settings\n").unwrap();
    let rows: Vec<Vec<&str>> = made
        .lines()
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect();
    let column = |name: &str| {
        let at = rows[0].iter().position(|head| *head == name);
        let at = at.unwrap_or_else(|| panic!("no {name} in\n{shown}"));
        rows[1..].iter().map(|row| row[at]).collect::<Vec<_>>()
    };
    let (first, last) = (0, rows.len() - 2);
    assert!(last > 0, "{shown}");
    assert_eq!(column("timezone")[first], "Asia/Tokyo", "{shown}");
    assert_eq!(column("timezone")[last], "America/Lima", "{shown}");
    assert_eq!(column("message_tokens")[first], "2,000", "{shown}");
    assert_eq!(column("message_tokens")[last], "2,400", "{shown}");
    assert_eq!(column("placement")[first], "system_message", "{shown}");
    let snapshots = rig.number("SELECT count(*) FROM snapshots").await;
    assert!(
        rows.len() as i64 <= snapshots,
        "alike ones share a row: {shown}"
    );
}
