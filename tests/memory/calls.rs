//! Model calls of memory: who pays for them, what they cost, and what is told of them.

use std::sync::Arc;
use std::time::Duration;

use diarist_provider::{
    Behaviour, CallerKind, Failure, OBSERVER_MODEL, Options, REFLECTOR_MODEL, RecordedRequest,
    Reflector, Reply, Script as _,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

const SMALL: [(&str, &str); 2] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
];

async fn rig(settings: &[(&str, &str)]) -> Rig {
    Rig::with(Options::default(), &[&SMALL, settings].concat()).await
}

impl Rig {
    fn calls(&self, part: CallerKind) -> Vec<Arc<RecordedRequest>> {
        self.provider.record_for(part)
    }
}

fn project(call: &RecordedRequest) -> &str {
    call.headers
        .get("openai-project")
        .map_or("", |value| value.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_calls_use_the_project_of_their_conversation() {
    let rig = rig(&[]).await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversations = ["ada", "bob"].map(SampleConversation::new);
    for turn in 1..=ACTIVE {
        for conversation in &conversations {
            let headers = [("openai-project", conversation.name.as_str())];
            let body = conversation.body(turn);
            let answer = rig.send_as("Bearer sk-test", &headers, &body).await;
            assert_eq!(answer.status, 200);
        }
    }
    gate.add_permits(10_000);
    rig.quiet().await;
    let calls = rig.calls(CallerKind::Observer);
    for conversation in &conversations {
        let own = |call: &&Arc<RecordedRequest>| {
            String::from_utf8_lossy(&call.body).contains(&conversation.canary())
        };
        let projects: Vec<&str> = calls.iter().filter(own).map(|call| project(call)).collect();
        assert!(projects.len() > 1, "{} was observed", conversation.name);
        assert!(
            projects.iter().all(|project| *project == conversation.name),
            "{}: {projects:?}",
            conversation.name
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_uses_the_new_route_of_its_conversation() {
    let rig = rig(&[]).await;
    // The first way is taken away while a job needs it.
    rig.provider
        .inject_next(CallerKind::Observer, 1, &Behaviour::failing(401));
    let conversation = SampleConversation::new("ada");
    let say = async |turn, project: &str| {
        let headers = [("openai-project", project)];
        let body = conversation.body(turn);
        let answer = rig.send_as("Bearer sk-test", &headers, &body).await;
        assert_eq!(answer.status, 200);
    };
    for turn in 1..=4 {
        say(turn, "old").await;
    }
    rig.wait_event("data-om-buffering-failed").await;
    say(5, "new").await;
    rig.quiet().await;
    let calls = rig.calls(CallerKind::Observer);
    assert!(calls.len() > 1, "it goes on");
    let projects: Vec<&str> = calls.iter().map(|call| project(call)).collect();
    assert_eq!(projects[0], "old");
    assert!(projects[1..].contains(&"new"), "{projects:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_spent_daily_budget_stops_model_calls_but_no_request() {
    let mut rig = rig(&[("MEMORY__DAILY_TOKENS", "1")]).await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        let answer = rig.send(&conversation.body(turn)).await;
        assert_eq!(answer.status, 200);
        // The first call may be over before the last turn.
        let (memory, _) = answer
            .memory()
            .split_once("; until")
            .unwrap_or((answer.memory(), ""));
        assert!(
            ["watching", "watching; reason=budget_spent"].contains(&memory),
            "{memory}"
        );
    }
    eventually("the first call", || {
        rig.calls(CallerKind::Observer).len() == 1
    })
    .await;
    // What the first call wrote is stored; the ranges after it wait.
    rig.until_at_least(1, "SELECT count(*) FROM parts").await;
    let open = "SELECT count(*) FROM jobs WHERE state = 'open'";
    rig.until_at_least(1, open).await;
    assert!(rig.metric("diarist_budgets_spent_total").await > 0.0);
    rig.restart().await;
    rig.send(&conversation.body(ACTIVE + 1)).await;
    // Longer than a look at the queue.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        rig.calls(CallerKind::Observer).len(),
        1,
        "also after a restart"
    );

    rig.set("MEMORY__DAILY_TOKENS", "100000000");
    rig.restart().await;
    rig.send(&conversation.body(ACTIVE + 2)).await;
    rig.quiet().await;
    assert!(rig.calls(CallerKind::Observer).len() > 1);
    assert_eq!(
        rig.send(&conversation.body(ACTIVE + 3)).await.memory(),
        "active"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stored_cost_equals_the_tokens_that_the_provider_counted() {
    let rig = rig(&[]).await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=2 * ACTIVE)
        .await;
    let (mut calls, mut sent, mut cached, mut written) = (0, 0, 0, 0);
    for part in [CallerKind::Observer, CallerKind::Reflector] {
        for call in rig.calls(part) {
            let measured = call.prompt_usage.as_ref().unwrap();
            calls += 1;
            sent += i64::from(measured.prompt_tokens);
            cached += i64::from(measured.cached_tokens);
            written += i64::from(call.completion_tokens.unwrap());
        }
    }
    println!("{calls} calls: {sent} tokens sent, {cached} of them cached, {written} written");
    assert!(!rig.calls(CallerKind::Reflector).is_empty());
    assert_eq!(rig.number("SELECT sum(calls) FROM costs").await, calls);
    assert_eq!(rig.number("SELECT sum(sent) FROM costs").await, sent);
    assert_eq!(rig.number("SELECT sum(cached) FROM costs").await, cached);
    assert_eq!(rig.number("SELECT sum(written) FROM costs").await, written);
    assert_eq!(rig.number("SELECT sum(guessed) FROM costs").await, 0);
    let spent = "SELECT sum(tokens) FROM spending";
    assert_eq!(rig.number(spent).await, sent + written);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_never_ends_is_paid_for_by_estimate() {
    let rig = rig(&[("MEMORY__OBSERVATION__TIMEOUT", "200ms")]).await;
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    rig.provider.inject_next(CallerKind::Observer, 1, &silent);
    let conversation = SampleConversation::new("ada");
    for turn in 1..=4 {
        rig.send(&conversation.body(turn)).await;
    }
    rig.quiet().await;
    let guessed = rig.number("SELECT sum(guessed) FROM costs").await;
    let words = SampleConversation::new("ada").messages(2)[1]["content"]
        .as_str()
        .unwrap()
        .len();
    assert!(
        usize::try_from(guessed).unwrap() > words / 8,
        "the prompt was counted: {guessed}"
    );
    let late = rig.events().await.into_iter().find_map(|(kind, body)| {
        (kind == "data-om-buffering-failed").then(|| body["error"].as_str().unwrap().to_owned())
    });
    assert_eq!(late.as_deref(), Some("no answer within 0.2 s"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_timeline_has_every_step_and_no_text_of_the_conversation() {
    let rig = rig(&[]).await;
    rig.provider
        .inject_next(CallerKind::Observer, 1, &Behaviour::failing(503));
    let conversation = SampleConversation::new("ada");
    let headers = [("x-diarist-thread", "holidays")];
    rig.play_turns_as("Bearer sk-test", &headers, &conversation, 1..=ACTIVE + 3)
        .await;
    let events = rig.events().await;
    let events_named = |name: &str| -> Vec<&Value> {
        let named = events.iter().filter(|(kind, _)| kind == name);
        named.map(|(_, body)| body).collect()
    };
    let count = |names: [&str; 2]| {
        names
            .iter()
            .map(|name| events_named(name).len())
            .sum::<usize>()
    };
    let calls = rig.calls(CallerKind::Observer).len();
    let reflections = rig.calls(CallerKind::Reflector).len();
    let starts = count(["data-om-buffering-start", "data-om-observation-start"]);
    let ends = count(["data-om-buffering-end", "data-om-observation-end"]);
    let failed = count(["data-om-buffering-failed", "data-om-observation-failed"]);
    assert_eq!(starts, ends + failed, "each start has its end");
    assert_eq!(
        i64::try_from(ends).unwrap(),
        rig.number("SELECT count(*) FROM parts").await
    );
    assert_eq!(starts, calls + reflections);
    let written = "SELECT count(*) FROM parts WHERE kind = 'reflection'";
    let written = usize::try_from(rig.number(written).await).unwrap();
    assert_eq!(
        failed,
        1 + reflections - written,
        "one call, and answers that did not do"
    );

    let failed = events_named("data-om-buffering-failed");
    let mut failed = failed.iter();
    let failure = failed
        .find(|body| body["operationType"] == "observation")
        .unwrap();
    assert!(failure["tokensAttempted"].as_u64().unwrap() > 0);
    assert!(failure["durationMs"].as_i64().unwrap() >= 0);
    let error = failure["error"].as_str().unwrap();
    assert!(
        !error.is_empty() && error.len() <= 2_000 && !error.contains('{'),
        "{error}"
    );
    let starts = events_named("data-om-buffering-start");
    let mut starts = starts.iter();
    let start = starts.find(|start| start["cycleId"] == failure["cycleId"]);
    let start = start.expect("one try, one cycle");
    assert_eq!(start["threadId"], "holidays");
    assert_eq!(start["threadIds"], json!(["holidays"]));
    assert_eq!(start["config"]["messageTokens"], 2_000);
    let fields = |body: &Value| {
        let keys = body.as_object().unwrap().keys().cloned();
        keys.collect::<Vec<_>>().join(" ")
    };
    let end = events_named("data-om-buffering-end")[0];
    assert_eq!(
        [start, failure, end].map(fields),
        [
            "cycleId operationType startedAt tokensToBuffer config threadIds threadId recordId",
            "cycleId operationType failedAt durationMs tokensAttempted error threadId recordId",
            // `retention` is ours.
            "cycleId operationType completedAt durationMs tokensBuffered bufferedTokens retention threadId recordId",
        ]
    );

    let activations = events_named("data-om-activation");
    let covered = "SELECT count(*) FROM parts
                   WHERE kind = 'chunk' AND to_count <= (SELECT max(to_count) FROM snapshots)
                   OR kind = 'reflection' AND EXISTS (
                       SELECT 1 FROM snapshots AS s, json_each(s.parts) AS p WHERE p.value = parts.id
                   )";
    let covered = rig.number(covered).await;
    assert_eq!(i64::try_from(activations.len()).unwrap(), covered);
    assert_eq!(activations[0]["triggeredBy"], "threshold");
    assert!(
        activations
            .iter()
            .all(|chunk| chunk["chunksActivated"] == 1)
    );
    let mut ids: Vec<&Value> = activations.iter().map(|chunk| &chunk["cycleId"]).collect();
    ids.sort_by_key(ToString::to_string);
    ids.dedup();
    assert_eq!(ids.len(), activations.len(), "each chunk is told once");

    assert!(
        events_named("data-om-status").is_empty(),
        "the state is computed when it is needed, not stored with each request"
    );

    for (kind, body) in &events {
        let text = body.to_string();
        assert!(
            !text.contains(&conversation.canary()) && !text.contains("weighed"),
            "{kind}: {text}"
        );
        assert!(!text.contains("sk-test"), "{kind}: {text}");
    }
}

/// Each question to the Reflector is a cycle of its own: a start, and an end or a failure.
#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_of_a_reflection_has_its_events() {
    let rig = rig(&[]).await;
    // The first answer says nothing, the second is as long as the log, the third will do.
    let attempts = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let script = {
        let attempts = Arc::clone(&attempts);
        move |ask: &diarist_provider::ScriptInput<'_>| {
            let shown = ask.texts_by_role("user").join("\n");
            let log = shown.split("<history-").nth(1).unwrap();
            let log: Vec<&str> = log.lines().filter(|line| line.starts_with("* ")).collect();
            let log = log.join("\n");
            let observations = match attempts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => String::new(),
                1 => format!("{log}\n* 🟡 and more"),
                _ => return Reflector::default().reply(ask),
            };
            Reply::text(format!("<observations>\n{observations}\n</observations>"))
        }
    };
    rig.provider.script(CallerKind::Reflector, script);
    let conversation = SampleConversation::new("ada");
    let mut turn = 0;
    while rig
        .number("SELECT count(*) FROM parts WHERE kind = 'reflection'")
        .await
        == 0
    {
        turn += 1;
        assert!(turn <= 100, "there is no reflection");
        rig.play_turns(&conversation, turn..=turn).await;
    }
    let events = rig.events().await;
    let mut cycles: std::collections::BTreeMap<&str, Vec<(&str, &str)>> =
        std::collections::BTreeMap::new();
    for (kind, body) in &events {
        let end = kind.rsplit('-').next().unwrap();
        if body["operationType"] == "reflection" && end != "activation" {
            let error = body["error"].as_str().unwrap_or_default();
            let id = body["cycleId"].as_str().unwrap();
            cycles.entry(id).or_default().push((end, error));
        }
    }
    let calls = rig.calls(CallerKind::Reflector).len();
    assert_eq!(cycles.len(), calls, "{cycles:?}");
    assert!(calls > 2);
    // What happens in one millisecond is told in no order.
    for steps in cycles.values_mut() {
        steps.sort_unstable();
    }
    for (at, (id, steps)) in cycles.iter().enumerate() {
        let end = match at {
            0 => ("failed", "the answer could not be used"),
            1 => ("failed", "the answer was not short enough"),
            _ if at + 1 == calls => ("end", ""),
            _ => ("failed", "the answer lost what is important"),
        };
        assert_eq!(steps[..], [end, ("start", "")], "{id}: {cycles:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_prompt_selects_the_model_and_the_largest_has_no_limit() {
    // Instructions count as well: no prompt is as short as the first bound.
    let observer = format!(r#"{{"100": "too-small", "200": "{OBSERVER_MODEL}"}}"#);
    let reflector = format!(r#"{{"1000000": "{REFLECTOR_MODEL}", "2000000": "too-large"}}"#);
    let rig = rig(&[
        ("MEMORY__OBSERVATION__MODEL", &observer),
        ("MEMORY__REFLECTION__MODEL", &reflector),
        ("MEMORY__OBSERVATION__MODEL_SETTINGS", r#"{"top_p": 0.5}"#),
        ("MEMORY__OBSERVATION__PROVIDER_OPTIONS", r#"{"seed": 7}"#),
    ])
    .await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=2 * ACTIVE)
        .await;
    for (part, model) in [
        (CallerKind::Observer, OBSERVER_MODEL),
        (CallerKind::Reflector, REFLECTOR_MODEL),
    ] {
        let calls = rig.calls(part);
        assert!(!calls.is_empty(), "{part:?}");
        for call in calls {
            assert_eq!(call.model.as_deref(), Some(model), "{part:?}");
            let body = call.json().unwrap();
            let own = part == CallerKind::Observer;
            assert_eq!(body.get("top_p").is_some(), own);
            assert_eq!(body.get("seed").is_some(), own);
        }
    }
}

/// Pictures are part of the prompt: by its text alone the small model would be asked.
#[tokio::test(flavor = "multi_thread")]
async fn attachments_count_when_the_model_is_selected() {
    let rig = rig(&[(
        "MEMORY__OBSERVATION__MODEL",
        r#"{"2900": "small", "1000000": "large"}"#,
    )])
    .await;
    for turn in 1..=ACTIVE {
        let mut body = SampleConversation::new("ada").body(turn);
        if turn > 1 {
            let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
            let mut parts = vec![json!({"type": "text", "text": "Which of them is newer?"})];
            parts.extend(vec![picture; 12]);
            body["messages"][3]["content"] = parts.into();
        }
        assert_eq!(rig.send(&body).await.status, 200);
        rig.quiet().await;
    }
    let calls = rig.calls(CallerKind::Observer);
    let shows = |call: &RecordedRequest| String::from_utf8_lossy(&call.body).contains("image_url");
    let (shown, bare): (Vec<_>, Vec<_>) = calls.iter().partition(|call| shows(call));
    assert!(!shown.is_empty() && !bare.is_empty());
    assert!(
        shown
            .iter()
            .all(|call| call.model.as_deref() == Some("large"))
    );
    assert!(
        bare.iter()
            .all(|call| call.model.as_deref() == Some("small"))
    );
}

/// Instructions are part of it: how hard a log is condensed at first is decided for the model that is asked.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_compression_level_depends_on_the_selected_reflector_model() {
    // The log is shorter than the first bound, and the prompt is not.
    let models = r#"{"1500": "small", "1000000": "gemini-2.5-flash"}"#;
    let rig = rig(&[("MEMORY__REFLECTION__MODEL", models)]).await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=2 * ACTIVE)
        .await;
    let first = rig.calls(CallerKind::Reflector).remove(0);
    assert_eq!(first.model.as_deref(), Some("gemini-2.5-flash"));
    let prompt = String::from_utf8_lossy(&first.body).into_owned();
    assert!(
        prompt.contains("about six tenths of the length"),
        "{prompt}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_job_deleted_during_its_call_is_created_again() {
    let rig = rig(&[]).await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=4 {
        rig.send(&conversation.body(turn)).await;
    }
    eventually("a call", || !rig.calls(CallerKind::Observer).is_empty()).await;
    let mut database = rig.database().await;
    sqlx::query("DELETE FROM jobs")
        .execute(&mut database)
        .await
        .unwrap();
    // The worker notices when it renews its lease, and the recorder hears of it.
    let event = rig.wait_event("data-om-buffering-failed").await;
    assert_eq!(event["error"], "the lease was lost");
    gate.add_permits(10_000);
    rig.play_turns(&conversation, 5..=ACTIVE + 1).await;
    let first = "SELECT count(*) FROM parts WHERE from_count = 0 AND kind = 'chunk'";
    assert_eq!(rig.number(first).await, 1, "the very range that was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reproduce_command_repeats_a_failed_call_from_its_bundle() {
    const SECRET: &str = "sk-proj-Abcdefghijklmnopqrstuvwxyz0123456789ABCD";
    let bundles = tempfile::tempdir().unwrap();
    let folder = bundles.path().join("bundles");
    let rig = rig(&[("MEMORY__BUNDLES", folder.to_str().unwrap())]).await;
    let refused = r#"{"error": {"message": "this model is out to lunch"}}"#;
    let failing = Behaviour {
        fail: Some(Failure {
            status: 400,
            retry_after: None,
            body: Some(("application/json", refused.to_owned())),
        }),
        ..Behaviour::default()
    };
    rig.provider.inject_next(CallerKind::Observer, 1, &failing);
    let mut conversation = SampleConversation::new("ada");
    conversation.name = format!("{SECRET} ada");
    for turn in 1..=4 {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    rig.wait_event("data-om-buffering-failed").await;
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    for secret in [SECRET, "sk-test", "Bearer"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(
        text.contains("weighed and kept") && text.contains("out to lunch"),
        "{text}"
    );

    // As of a prompt with a picture.
    let mut bundle: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(bundle["prompt"]["attachments"], json!([]));
    bundle["prompt"]["attachments"] = json!(["image 1"]);
    std::fs::write(file.path(), bundle.to_string()).unwrap();
    let (path, base_url) = (file.path(), rig.provider.base_url());
    let reproduce = move |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_diarist"))
            .args(["reproduce", path.to_str().unwrap()])
            .args(args)
            .env_clear()
            .env("HOME", "/home/ada")
            .env("KEY", "sk-again")
            .output()
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        (
            stdout + &String::from_utf8(output.stderr).unwrap(),
            output.status.success(),
        )
    };
    let again = tokio::task::spawn_blocking(move || {
        let resent = reproduce(&["--base-url", &base_url, "--api-key-env", "KEY"]);
        (resent, reproduce(&["--recorded"]), reproduce(&[]))
    });
    let (resent, recorded, borrowed) = again.await.unwrap();
    assert!(resent.1, "{}", resent.0);
    assert!(
        resent
            .0
            .contains("Then: rejected: this model is out to lunch"),
        "{}",
        resent.0
    );
    assert!(resent.0.contains("It is read as"), "{}", resent.0);
    assert!(
        resent
            .0
            .contains("are not in the bundle and are not sent (image 1)"),
        "{}",
        resent.0
    );
    let calls = rig.calls(CallerKind::Observer);
    assert_eq!(calls.last().unwrap().credential.reveal(), "Bearer sk-again");
    assert!(
        recorded.1 && recorded.0.contains("The bundle holds no answer"),
        "{}",
        recorded.0
    );
    assert!(
        !borrowed.1 && borrowed.0.contains("--base-url"),
        "{}",
        borrowed.0
    );
}
