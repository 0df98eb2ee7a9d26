//! An Observer and a Reflector in trouble: requests never notice, and memory comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use diarist_provider::{
    Behaviour, CallerKind, Ending, OBSERVER_MODEL, Observer, ObserverStyle, Options, Provider,
    REFLECTOR_MODEL, RecordedRequest, Reflector, Reply, Script as _, ScriptInput,
};
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

async fn observed(provider: &Provider, calls: usize) -> Vec<Arc<RecordedRequest>> {
    provider
        .wait_until(|record| {
            record
                .iter()
                .filter(|e| e.caller == CallerKind::Observer)
                .count()
                >= calls
        })
        .await
        .unwrap();
    provider.record_for(CallerKind::Observer)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_never_wait_for_a_slow_observer() {
    let rig = Rig::small().await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=16 {
        let answer = rig.send(&conversation.body(turn)).await;
        assert_eq!((answer.status, answer.memory()), (200, "watching"));
    }
    // It was asked all the while, and has not answered.
    let held = observed(&rig.provider, 1).await;
    assert!(held.iter().all(|call| call.ending == Ending::Open));
    gate.add_permits(1_000);
    rig.quiet().await;
    let answer = rig.send(&conversation.body(21)).await;
    assert_eq!(answer.memory(), "active");
}

/// The Observer works, and has nothing to say about one range. What nobody can observe waits instead: see
/// `failing`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_range_without_observations_after_two_calls_is_covered_by_code() {
    for manner in [
        ObserverStyle::Empty,
        ObserverStyle::Filtered,
        ObserverStyle::Repetitive,
    ] {
        let rig = Rig::small().await;
        rig.play_turns(&SampleConversation::new("bob"), 1..=4).await;
        let before = rig.provider.record_for(CallerKind::Observer).len();
        let by_model = rig.number("SELECT count(*) FROM parts").await;
        assert!(by_model > 0);
        let attempts = AtomicUsize::new(0);
        rig.provider
            .script(CallerKind::Observer, move |ask: &ScriptInput<'_>| {
                let style = match attempts.fetch_add(1, Ordering::SeqCst) {
                    0 | 1 => manner,
                    _ => ObserverStyle::default(),
                };
                Observer { style }.reply(ask)
            });
        let answer = rig
            .play_turns(&SampleConversation::new("ada"), 1..=ACTIVE + 2)
            .await;
        let written = "SELECT count(*) FROM parts WHERE model = 'code' AND kind = 'chunk'";
        assert_eq!(rig.number(written).await, 1, "{manner:?}");
        let chunks = "SELECT count(*) FROM parts WHERE kind = 'chunk'";
        let chunks = rig.number(chunks).await - by_model;
        let calls = rig.provider.record_for(CallerKind::Observer).len() - before;
        let twice = usize::try_from(chunks + 1).unwrap();
        assert_eq!(calls, twice, "{manner:?}: one range was asked about twice");
        assert_eq!(answer.memory(), "active", "{manner:?}");
        assert_eq!(rig.number("SELECT count(*) FROM jobs").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_rate_limited_observer_is_not_called_before_its_retry_time() {
    let rig = Rig::small().await;
    rig.provider
        .inject_next(CallerKind::Observer, 1, &Behaviour::rate_limited(1));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=4 {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    let calls = observed(&rig.provider, 2).await;
    let pause = calls[1].at.duration_since(calls[0].at);
    assert!(pause >= Duration::from_secs(1), "{pause:?}");
    assert_eq!(
        calls[0].body_bytes, calls[1].body_bytes,
        "the same range again"
    );
    rig.quiet().await;
    rig.play_turns(&conversation, 5..=ACTIVE).await;
    assert_eq!(
        rig.send(&conversation.body(ACTIVE + 1)).await.memory(),
        "active"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn after_a_401_the_job_waits_for_the_next_request() {
    let rig = Rig::small().await;
    rig.provider
        .inject_next(CallerKind::Observer, 1, &Behaviour::failing(401));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=4 {
        rig.send(&conversation.body(turn)).await;
    }
    let calls = observed(&rig.provider, 1).await;
    assert_eq!(calls[0].credential.reveal(), "Bearer sk-test");
    // Longer than the first pause after a failure and than two looks at the queue.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(
        rig.provider.record_for(CallerKind::Observer).len(),
        1,
        "it is not tried again"
    );
    rig.send(&conversation.body(5)).await;
    observed(&rig.provider, 2).await;
    rig.quiet().await;
    assert!(rig.number("SELECT count(*) FROM parts").await > 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn failures_of_the_observer_are_retried_and_lose_nothing() {
    let rig = Rig::small().await;
    rig.provider
        .inject_next(CallerKind::Observer, 2, &Behaviour::failing(500));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    rig.quiet().await;
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "active");
    // Gapless from the first message, though the first range failed first.
    let first = rig.number("SELECT min(from_count) FROM parts").await;
    assert_eq!(first, 0);
    let gaps = rig
        .number(
            "SELECT count(*) FROM parts p WHERE kind = 'chunk' AND from_count > 0 AND NOT EXISTS
             (SELECT 1 FROM parts q WHERE q.kind = 'chunk' AND q.to_link = p.from_link)",
        )
        .await;
    assert_eq!(gaps, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_a_model_refuses_is_dropped_and_not_tried_again() {
    let rig = Rig::small().await;
    rig.provider.rules(|rules| {
        for model in [OBSERVER_MODEL, REFLECTOR_MODEL] {
            rules.reasoning_models.push(model.to_owned());
        }
    });
    let answer = rig
        .play_turns(&SampleConversation::new("ada"), 1..=ACTIVE)
        .await;
    assert_eq!(answer.memory(), "active");
    let calls = rig.provider.record_for(CallerKind::Observer);
    let refused = calls.iter().filter(|call| call.refusal().is_some()).count();
    // Once for each parameter, by whoever was first; later calls know.
    assert!((1..=2).contains(&refused), "{refused} of {}", calls.len());
    assert!(calls[0].json().unwrap().get("temperature").is_some());
    let rest = calls.iter().skip_while(|call| call.refusal().is_some());
    for call in rest {
        assert!(call.is_accepted());
        assert!(call.json().unwrap().get("temperature").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_reflector_that_only_grows_the_log_is_paused() {
    let mut rig = Rig::small().await;
    rig.provider.script(CallerKind::Reflector, |_: &diarist_provider::ScriptInput<'_>| {
        let line = "* 🔴 (10:00) Everything that was ever said is to be told at length once more, number";
        let lines: Vec<String> = (0..200).map(|n| format!("{line} {n} of 200.")).collect();
        Reply::text(format!("<observations>\n{}\n</observations>", lines.join("\n")))
    });
    let conversation = SampleConversation::new("ada");
    let mut last = 0;
    for turn in 1..=16 {
        rig.play_turns(&conversation, turn..=turn).await;
        last = rig.provider.record_for(CallerKind::Reflector).len();
    }
    assert!(last > 0, "it was asked");
    // The same request again and again asks nobody anything.
    for _ in 0..5 {
        rig.play_turns(&conversation, 16..=16).await;
    }
    assert_eq!(rig.provider.record_for(CallerKind::Reflector).len(), last);
    assert_eq!(
        rig.number("SELECT count(*) FROM parts WHERE kind = 'reflection' AND model <> 'code'")
            .await,
        0
    );
    assert!(last <= 4, "four levels at most, and then a pause: {last}");
    let waiting = "SELECT count(*) FROM jobs WHERE kind = 'reflection' AND state = 'open'
                   AND due_ms - (SELECT max(last_ms) FROM lineages) > 300000";
    assert_eq!(rig.number(waiting).await, 1);

    // With another configuration it is called again, as it is once it works.
    rig.provider
        .script(CallerKind::Reflector, Reflector::default());
    rig.restart().await;
    rig.play_turns(&conversation, 17..=17).await;
    let reflections = "SELECT count(*) FROM parts WHERE kind = 'reflection' AND model <> 'code'";
    assert!(rig.number(reflections).await > 0);
    rig.wait_part("reflector", "up").await;
}

/// Each of its answers can be read, and none is shorter than the log: the audit calls none of them used.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_reflector_that_repeats_the_log_are_audited_as_unused() {
    let rig = Rig::small().await;
    rig.provider
        .script(CallerKind::Reflector, |ask: &ScriptInput<'_>| {
            let shown = ask.texts_by_role("user").join("\n");
            let log = shown.split("<history-").nth(1).unwrap();
            let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("* ")).collect();
            let log = lines.join("\n");
            Reply::text(format!(
                "<observations>\n{log}\n* 🟡 and more\n</observations>"
            ))
        });
    rig.play_turns(&SampleConversation::new("ada"), 1..=16)
        .await;
    let calls = rig.provider.record_for(CallerKind::Reflector).len();
    assert!(calls > 0, "it was asked");
    let reflect_lines = || {
        let mut lines = rig.audit("call");
        lines.retain(|line| line["call"] == "reflect");
        lines
    };
    eventually("a line for each call", || reflect_lines().len() == calls).await;
    let lines = reflect_lines();
    let ended = |outcome| {
        lines
            .iter()
            .filter(|line| line["outcome"] == outcome)
            .count()
    };
    assert_eq!(ended("kept"), 0, "{lines:?}");
    assert!(ended("empty") > 0, "{lines:?}");
    let part = rig.wait_part("reflector", "degraded").await;
    let error = part["error"].as_str().unwrap();
    assert!(error.contains("no shorter log"), "{error}");
}

/// A limit that the client needs for itself is left to it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn memory_calls_wait_while_the_rate_limit_of_the_client_is_low() {
    let rig = Rig::small().await;
    let low = Behaviour {
        headers: vec![
            ("x-ratelimit-limit-requests", "100".to_owned()),
            ("x-ratelimit-remaining-requests", "10".to_owned()),
        ],
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Actor, low);
    let conversation = SampleConversation::new("ada");
    for turn in 1..=6 {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    let waiting = "SELECT count(*) FROM jobs";
    rig.until_at_least(1, waiting).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        rig.provider.record_for(CallerKind::Observer).is_empty(),
        "they wait"
    );
    assert!(rig.number(waiting).await > 0);
}

/// With an endpoint of its own, an Observer needs no credential of anybody's, and gets none.
#[tokio::test(flavor = "multi_thread")]
async fn a_configured_endpoint_is_called_with_its_own_key_only() {
    let provider = Provider::start(Options::default()).await.unwrap();
    let base_url = provider.base_url();
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
        ("MEMORY__BASE_URL", base_url.as_str()),
        ("MEMORY__API_KEY", "sk-memory"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let answer = rig
        .play_turns(&SampleConversation::new("ada"), 1..=ACTIVE)
        .await;
    assert_eq!(answer.memory(), "active");
    assert!(rig.provider.record_for(CallerKind::Observer).is_empty());
    let calls = provider.record_for(CallerKind::Observer);
    assert!(!calls.is_empty());
    assert!(
        calls
            .iter()
            .all(|call| call.credential.reveal() == "Bearer sk-memory")
    );
}

/// A stop in the middle of a call gives the job back: the next start does it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_interrupted_by_a_stop_is_repeated_after_the_start() {
    let mut rig = Rig::small().await;
    rig.set("SERVER__DRAIN_TIMEOUT", "1s");
    let conversation = SampleConversation::new("ada");
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    rig.provider.inject_next(CallerKind::Observer, 1, &silent);
    for turn in 1..=4 {
        rig.send(&conversation.body(turn)).await;
    }
    observed(&rig.provider, 1).await;
    rig.stop().await;
    assert_eq!(
        rig.number("SELECT count(*) FROM jobs WHERE leased = 1")
            .await,
        0
    );
    rig.start().await;
    rig.send(&conversation.body(5)).await;
    eventually("the call", || {
        rig.provider.record_for(CallerKind::Observer).len() > 1
    })
    .await;
    rig.quiet().await;
    let calls = rig.provider.record_for(CallerKind::Observer);
    assert_eq!(calls[0].body_bytes, calls[1].body_bytes);
}

/// Another worker took the job over, and was the first to finish it.
#[tokio::test(flavor = "multi_thread")]
async fn an_observation_stored_by_another_worker_is_used() {
    let rig = Rig::small().await;
    let observer = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&observer));
    let conversation = SampleConversation::new("ada");
    let mut turn = 0;
    // One job and no more: what a second one observes would be reflected together with it.
    while rig
        .number("SELECT count(*) FROM jobs WHERE state = 'open'")
        .await
        == 0
    {
        turn += 1;
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
        // The first request of a conversation is recorded with the second.
        let recorded = if turn > 1 { turn } else { 0 };
        rig.until_at_least(recorded, "SELECT coalesce(sum(times), 0) FROM requests")
            .await;
    }
    rig.until_at_least(1, "SELECT count(*) FROM jobs WHERE leased = 1")
        .await;
    let mut database = rig.database().await;
    let taken =
        "INSERT INTO parts (tenant, resource, kind, from_link, from_count, to_link, to_count,
             text, tokens, message_tokens, sources, model, at_ms)
         SELECT tenant, resource, kind, from_link, from_count, to_link, to_count,
             '* 🔴 written elsewhere', 9, message_tokens, '[]', 'other', 0
         FROM jobs WHERE leased = 1;
         DELETE FROM jobs WHERE leased = 1;";
    sqlx::raw_sql(taken).execute(&mut database).await.unwrap();
    observer.add_permits(1_000);
    rig.quiet().await;
    let answer = rig
        .play_turns(&conversation, turn + 1..=turn + ACTIVE)
        .await;
    assert_eq!(answer.memory(), "active");
    let sent = rig.last().json().unwrap().to_string();
    assert!(sent.contains("written elsewhere"), "{sent}");
}
