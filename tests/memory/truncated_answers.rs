//! Models of memory whose answers are cut by a limit of their output, whoever set it: what is missing
//! of an answer is never taken for observed.

use diarist_provider::{CallerKind, Options, Reflector, Reply, Script as _, ScriptInput};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

/// A user message of `lines` lines, each with a word that stands nowhere else, and so many short turns.
fn harbour(name: &str, lines: usize, turns: usize) -> Value {
    let book: String = (0..lines)
        .map(|n| {
            format!(
                "{name} {n}: the keeper wrote mark{n}x into the log of the harbour, and slept.\n"
            )
        })
        .collect();
    let mut messages = vec![json!({"role": "user", "content": book})];
    for turn in 0..turns {
        messages.push(json!({"role": "assistant", "content": format!("Noted, {turn}.")}));
        messages.push(json!({"role": "user", "content": format!("Go on with {turn}.")}));
    }
    json!({"model": "gpt-test", "messages": messages})
}

/// A reply of `text`, cut behind so many bytes.
fn cut(mut text: String, bytes: usize) -> Reply {
    let finish = (text.len() > bytes).then_some("length");
    text.truncate(text.floor_char_boundary(bytes));
    Reply {
        finish,
        ..Reply::text(text)
    }
}

/// An Observer that notes each mark it is shown, and whose answers end behind so many bytes.
fn noting(bytes: usize) -> impl Fn(&ScriptInput<'_>) -> Reply + Send + Sync {
    move |ask| {
        let shown = ask.texts_by_role("user").concat();
        let history = shown.split("<history-").nth(1).unwrap_or_default();
        let marks = history.split_whitespace().filter(|word| {
            word.strip_prefix("mark")
                .is_some_and(|rest| rest.ends_with('x'))
        });
        let notes: String = marks
            .map(|mark| format!("* 🟡 The keeper wrote {mark}.\n"))
            .collect();
        // A last line without a word of the history: what comes whole is told from what does not.
        let notes = format!("<observations>\n{notes}* 🟢 All was read.\n</observations>");
        cut(notes, bytes)
    }
}

async fn rig() -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "40000"),
    ];
    Rig::with(Options::default(), &settings).await
}

async fn text(rig: &Rig) -> String {
    let mut database = rig.database().await;
    sqlx::query_scalar("SELECT group_concat(text, '\n') FROM parts WHERE kind = 'chunk'")
        .fetch_one(&mut database)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_with_a_truncated_answer_is_observed_again_in_halves() {
    let rig = rig().await;
    rig.provider.script(CallerKind::Observer, noting(4_000));
    for (calls, name) in [("halves", "Chapter"), ("knows", "Page")] {
        let before = rig.provider.record_for(CallerKind::Observer).len();
        for turns in 0..3 {
            assert_eq!(rig.send(&harbour(name, 300, turns)).await.status, 200);
            rig.quiet().await;
        }
        let made = rig
            .provider
            .record_for(CallerKind::Observer)
            .split_off(before);
        let cut = made.iter().filter(|call| {
            let reply = call.reply.as_ref().unwrap();
            !reply.to_string().contains("All was read.")
        });
        let cut = cut.count();
        // The second conversation finds out what was learned with the first.
        assert_eq!(cut > 0, calls == "halves", "{calls}: {cut}");
        assert!(made.len() <= 9 + cut, "{calls}: {} calls", made.len());
    }
    let text = text(&rig).await;
    for n in 0..300 {
        let noted = format!("The keeper wrote mark{n}x.");
        assert_eq!(text.matches(&noted).count(), 2, "mark{n}x");
    }
    let by_code = "SELECT count(*) FROM parts WHERE model = 'code'";
    assert_eq!(rig.number(by_code).await, 0);
    assert_eq!(rig.number("SELECT count(*) FROM parts").await, 2);
    // What was shown twice is charged twice.
    let again = "SELECT (SELECT sum(shown_tokens) FROM accounts)
                      - (SELECT sum(message_tokens) FROM parts)";
    assert!(rig.number(again).await > 1_000);
}

/// However little it is shown: every answer is one whole line and half of another.
#[tokio::test(flavor = "multi_thread")]
async fn if_every_answer_is_truncated_code_and_complete_lines_cover_the_range() {
    let rig = rig().await;
    let beginning = "<observations>\n* 🟡 A whole line of the Observer. The keeper wrote a log in the harbour.\n* 🟡 And half of";
    let cut = move |_: &ScriptInput<'_>| cut(format!("{beginning} another"), beginning.len());
    rig.provider.script(CallerKind::Observer, cut);
    for turns in 0..3 {
        assert_eq!(rig.send(&harbour("Chapter", 300, turns)).await.status, 200);
        rig.quiet().await;
    }
    let calls = rig.provider.record_for(CallerKind::Observer).len();
    assert!((3..=6).contains(&calls), "{calls} calls");
    let text = text(&rig).await;
    let whole = text.matches("A whole line of the Observer.").count();
    assert!((1..=3).contains(&whole), "{text}");
    assert!(!text.contains("And half of"), "{text}");
    // A line of code for each part of the one message.
    let parts = text.matches("[part ").count();
    assert!(parts >= 8, "{parts}: {text}");
    assert!(text.contains("Chapter 0:"), "{text}");
    assert_eq!(rig.number("SELECT count(*) FROM jobs").await, 0);
}

/// Half an answer is smaller than the log, and no reflection.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_truncated_reflection_is_not_stored() {
    let rig = Rig::small().await;
    let halved = |ask: &ScriptInput<'_>| {
        let text = Reflector::default().reply(ask).content.unwrap_or_default();
        let half = text.len() / 2;
        cut(text, half)
    };
    rig.provider.script(CallerKind::Reflector, halved);
    rig.play_turns(&SampleConversation::new("ada"), 1..=2 * ACTIVE)
        .await;
    assert!(rig.provider.record_for(CallerKind::Reflector).len() > 1);
    let written = "SELECT count(*) FROM parts WHERE kind = 'reflection' AND model <> 'code'";
    assert_eq!(rig.number(written).await, 0);
    // The next level is tried: one whole answer is enough.
    let calls_before = rig.provider.record_for(CallerKind::Reflector).len();
    rig.provider
        .script(CallerKind::Reflector, Reflector::default());
    rig.play_turns(&SampleConversation::new("ben"), 1..=2 * ACTIVE)
        .await;
    assert!(rig.provider.record_for(CallerKind::Reflector).len() > calls_before);
    assert!(rig.number(written).await > 0);
}
