//! An Observer that does not work: it is said, nothing vanishes, and a corrected configuration brings
//! memory back at once.

use std::process::Command;
use std::time::Duration;

use diarist_provider::{
    Behaviour, CallerKind, Failure, OBSERVER_MODEL, Observer, Options, Reply, ScriptInput,
};

use serde_json::Value;

use crate::memory::process::Program;
use crate::memory::rig::{Answer, Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation, eventually, eventually_async};

/// A rig whose Observer has an endpoint and a key of its own.
async fn configured() -> Rig {
    let mut rig = Rig::with(Options::default(), &SMALL).await;
    let base_url = rig.provider.base_url();
    rig.set("MEMORY__OBSERVATION__BASE_URL", &base_url);
    rig.set("MEMORY__OBSERVATION__API_KEY", "sk-observer-CANARY");
    rig.restart().await;
    rig
}

impl Rig {
    /// What `diarist threads show` prints of the conversation with this id.
    fn shown(&self, id: &str) -> String {
        let url = format!("sqlite://{}", self.file().display());
        let output = Command::new(env!("CARGO_BIN_EXE_diarist"))
            .args(["threads", "show", id, "--database", &url])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    async fn send_turns(
        &self,
        conversation: &SampleConversation,
        turns: std::ops::RangeInclusive<usize>,
    ) {
        for turn in turns {
            assert_eq!(self.send(&conversation.body(turn)).await.status, 200);
        }
    }
}

/// With the end of a pause, if so many calls have failed already that the endpoint is left alone.
fn reports_failing(answer: &Answer) -> bool {
    let memory = answer.memory();
    let rest = memory.strip_prefix("watching; reason=observer_failing");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("; until="))
}

/// The request of this turn, whose messages name files: enough to tell whether an answer speaks of them.
fn with_paths(user: &str, turn: usize) -> Value {
    let mut body = SampleConversation::new(user).body(turn);
    for (number, message) in (0..).zip(body["messages"].as_array_mut().unwrap()) {
        let paths = (0..6).map(|at| format!(" src/{user}/part{number}_{at}.rs"));
        let text = message["content"].as_str().unwrap().to_owned() + &paths.collect::<String>();
        message["content"] = text.into();
    }
    body
}

/// The form is right, and it says nothing about the conversation.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_something_else_replaces_no_message() {
    for answer in [
        "* 🔴 I'm sorry, but I can't assist with that.",
        "* 🟢 (09:16) Assistant mentioned that the log is kept for 14 days",
        "- What would they like to hear first?\n- none\n</think>",
    ] {
        let rig = configured().await;
        rig.provider
            .script(CallerKind::Observer, move |_: &ScriptInput<'_>| {
                Reply::text(format!("<observations>\n{answer}\n</observations>"))
            });
        for turn in 1..=ACTIVE {
            assert_eq!(rig.send(&with_paths("ada", turn)).await.status, 200);
        }
        rig.wait_part("observer", "degraded").await;
        let last = rig.send(&with_paths("ada", ACTIVE + 1)).await;
        assert!(reports_failing(&last), "{answer}: {}", last.memory());
        assert_eq!(rig.number("SELECT count(*) FROM parts").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_failing_observer_is_reported_and_works_again_after_a_correction() {
    let mut rig = configured().await;
    assert_eq!(rig.part("observer").await["status"], "up");
    rig.provider
        .inject(CallerKind::Observer, Behaviour::failing(401));
    let conversation = SampleConversation::new("ada");
    rig.send_turns(&conversation, 1..=5).await;
    let part = rig.wait_part("observer", "degraded").await;
    let error = part["error"].as_str().unwrap();
    assert!(
        error.contains(&format!("{OBSERVER_MODEL} at http://127.0.0.1")),
        "{error}"
    );
    assert!(!error.contains("CANARY"), "{error}");
    assert!(part["since"].as_str().unwrap().ends_with('Z'), "{part}");
    assert_eq!(rig.admin("/readyz").await.status, 200, "requests pass");

    let answer = rig.send(&conversation.body(6)).await;
    assert!(reports_failing(&answer), "{}", answer.memory());
    assert_eq!(rig.audit_entry(&answer).await["reason"], "observer_failing");
    let off = [("x-diarist-memory", "read")];
    let answer = rig
        .send_as("Bearer sk-test", &off, &conversation.body(7))
        .await;
    assert_eq!(
        answer.memory(),
        "watching; mode=read",
        "nothing is made of it"
    );

    // Its health is told before its job waits again.
    let waits = "SELECT count(*) FROM jobs WHERE attempts > 0 AND leased = 0";
    rig.until_at_least(1, waits).await;
    let shown = rig.shown("1");
    assert!(shown.contains("Next try of the Observer"), "{shown}");
    // Events are written in the background.
    let is_shown = || rig.shown("1").contains("Last try that failed");
    eventually("the last try", is_shown).await;

    // The key is corrected. The job had ten minutes to wait.
    let due = "SELECT max(due_ms) - (SELECT max(last_ms) FROM lineages) FROM jobs WHERE leased = 0";
    assert!(rig.number(due).await > 300_000);
    rig.provider
        .inject(CallerKind::Observer, Behaviour::default());
    rig.restart().await;
    rig.quiet().await;
    assert!(rig.number("SELECT count(*) FROM parts").await > 0);
    assert_eq!(rig.part("observer").await["status"], "up");
    rig.play_turns(&conversation, 8..=ACTIVE + 1).await;
    assert_eq!(
        rig.send(&conversation.body(ACTIVE + 2)).await.memory(),
        "active"
    );
}

/// However little it is shown, its endpoint says that it is too much.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_no_call_is_short_enough_for_is_reported() {
    let error = r#"{"error":{"code":"context_length_exceeded","message":"maximum context length is 100 tokens"}}"#;
    for (caller, part) in [
        (CallerKind::Observer, "observer"),
        (CallerKind::Reflector, "reflector"),
    ] {
        let rig = Rig::small().await;
        let refusing = Behaviour {
            fail: Some(Failure {
                status: 400,
                retry_after: None,
                body: Some(("application/json", error.to_owned())),
            }),
            ..Behaviour::default()
        };
        rig.provider.inject(caller, refusing);
        let conversation = SampleConversation::new("ada");
        for turn in 1..=16 {
            assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
            rig.quiet_within(Duration::from_millis(200)).await;
            if !rig.provider.record_for(caller).is_empty() {
                break;
            }
        }
        let part = rig.wait_part(part, "degraded").await;
        let error = part["error"].as_str().unwrap();
        assert!(error.contains("100 tokens"), "{error}");
    }
}

/// A model may have worked all the same, and its provider says for how much.
#[tokio::test(flavor = "multi_thread")]
async fn the_usage_of_failed_calls_is_audited_and_counted() {
    for (status, code) in [(400, "content_filter"), (500, "overloaded")] {
        let rig = Rig::small().await;
        let usage = r#"{"prompt_tokens":4300,"completion_tokens":2}"#;
        let body = format!(r#"{{"error":{{"message":"no","code":"{code}"}},"usage":{usage}}}"#);
        let failing = Behaviour {
            fail: Some(Failure {
                status,
                retry_after: None,
                body: Some(("application/json", body)),
            }),
            ..Behaviour::default()
        };
        rig.provider.inject(CallerKind::Observer, failing);
        rig.send_turns(&SampleConversation::new("ada"), 1..=5).await;
        let spent = "SELECT coalesce(sum(tokens), 0) FROM spending";
        rig.until_at_least(1, spent).await;
        assert_eq!(rig.number(spent).await % 4_302, 0, "{code}");
        eventually("a line", || !rig.audit("call").is_empty()).await;
        for line in rig.audit("call") {
            assert_eq!(line["prompt_tokens"], 4_300, "{line}");
            assert_eq!(line["completion_tokens"], 2, "{line}");
        }
    }
}

/// One process has one number of them, so only a process without other tests can tell.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_failing_observer_is_counted_in_the_metrics() {
    const FAILING: &str = "diarist_models_failing{kind=\"chunk\"}";
    let program = Program::start().await;
    assert!(program.metric(FAILING).await < 1.0);
    program
        .provider
        .inject(CallerKind::Observer, Behaviour::failing(500));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=5 {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
    }
    let counted = async || program.metric(FAILING).await >= 1.0;
    eventually_async("the failing Observer", counted).await;
    program
        .provider
        .inject(CallerKind::Observer, Behaviour::default());
    let recovered = async || program.metric(FAILING).await < 1.0;
    eventually_async("the Observer that works again", recovered).await;
}

/// Half of its time is over, and it has said nothing: that is shown while it hangs, not after two calls have failed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_hanging_observer_is_reported_before_its_timeout() {
    let mut rig = configured().await;
    rig.set("MEMORY__OBSERVATION__TIMEOUT", "10s");
    rig.restart().await;
    let never = Behaviour::slow(Duration::from_hours(1));
    rig.provider.inject(CallerKind::Observer, never);
    rig.send_turns(&SampleConversation::new("ada"), 1..=5).await;
    let part = rig.wait_part("observer", "degraded").await;
    let error = part["error"].as_str().unwrap();
    assert!(error.contains("it has not answered yet"), "{error}");
    assert_eq!(rig.admin("/readyz").await.status, 200, "requests pass");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn messages_stay_raw_if_the_observer_writes_no_observations() {
    let rig = configured().await;
    // It answers, and never with observations.
    rig.provider
        .script(CallerKind::Observer, |_: &ScriptInput<'_>| {
            Reply::text("What a lovely conversation! I would be glad to help.")
        });
    let conversation = SampleConversation::new("ada");
    rig.send_turns(&conversation, 1..=ACTIVE).await;
    eventually("two tries", || {
        rig.provider.record_for(CallerKind::Observer).len() >= 2
    })
    .await;
    let waits = "SELECT count(*) FROM jobs WHERE empty_answers = 2 AND leased = 0";
    rig.until_at_least(1, waits).await;
    // A second conversation finds the same.
    rig.send_turns(&SampleConversation::new("bob"), 1..=4).await;
    let part = rig.wait_part("observer", "degraded").await;
    let error = part["error"].as_str().unwrap();
    assert!(error.contains("hold no observations"), "{error}");
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert!(reports_failing(&answer), "{}", answer.memory());
    assert!(answer.status == 200 && rig.last().body == conversation.body(ACTIVE + 1).to_string());
    let by_code = "SELECT count(*) FROM parts";
    assert_eq!(rig.number(by_code).await, 0, "nothing stands in for it");

    // A model that can do it takes its place.
    rig.provider
        .script(CallerKind::Observer, Observer::default());
    let mut rig = rig;
    rig.restart().await;
    rig.quiet().await;
    rig.play_turns(&conversation, ACTIVE + 2..=ACTIVE + 3).await;
    assert_eq!(
        rig.send(&conversation.body(ACTIVE + 4)).await.memory(),
        "active"
    );
    let by_code = "SELECT count(*) FROM parts WHERE model = 'code'";
    assert_eq!(rig.number(by_code).await, 0);
}

/// The raw history no longer fits its model, and nobody observes it: code writes lines in its place. They
/// keep what the guard knows, and nobody is told that they keep everything.
#[tokio::test(flavor = "multi_thread")]
async fn code_covers_messages_only_if_the_history_is_too_long() {
    let rig = configured().await;
    rig.provider
        .script(CallerKind::Observer, |_: &ScriptInput<'_>| {
            Reply::text("What a lovely conversation! I would be glad to help.")
        });
    let conversation = SampleConversation::new("ada");
    rig.send_turns(&conversation, 1..=14).await;
    rig.send_turns(&SampleConversation::new("bob"), 1..=4).await;
    rig.wait_part("observer", "degraded").await;
    // Two tries each, and then both wait.
    let tries = "SELECT sum(empty_answers) - 5 * sum(leased) FROM jobs";
    rig.until(tries, |tries| tries >= 4).await;
    assert_eq!(rig.number("SELECT count(*) FROM parts").await, 0);
    let room = rig
        .got()
        .iter()
        .filter_map(|request| request.prompt_usage.as_ref())
        .map(|usage| usage.prompt_tokens)
        .max()
        .unwrap();
    rig.provider
        .rules(|rules| rules.window = Some(room - 1_000));
    let answer = rig.send(&conversation.body(15)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.memory(), "active; rung=observed");
    let sent = rig.last().json().unwrap();
    let block = sent["messages"][1]["content"].as_str().unwrap();
    let first = format!("{} wants ada in turn 1.", conversation.canary());
    assert!(
        block.contains("<diarist-log") && block.contains(&first),
        "its first message is told: {block}"
    );
    let by_code = "SELECT count(*) FROM parts WHERE model = 'code' AND kind = 'chunk'";
    assert!(rig.number(by_code).await > 0);
    rig.audit_entry(&answer).await;
    let mut lines = rig.audit("wrote");
    lines.retain(|line| line["wrote"] == "observation");
    assert!(!lines.is_empty());
    for line in lines {
        assert!(line["retention"].is_null(), "{line}");
    }
}
