//! Activation at moments when the provider's cache is lost anyway: conversations that fell idle, and
//! conversations that go on with another model.

use diarist_provider::Options;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

/// Turns after which several chunks are ready and `message_tokens` is far away.
const TURNS: usize = 6;

/// Thresholds that no test reaches; chunks are small.
async fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut all = vec![
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "20000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "500"),
        ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "1000"),
    ];
    all.extend_from_slice(settings);
    Rig::with(Options::default(), &all).await
}

/// Waits until so many snapshots are in the database.
async fn prepared(rig: &Rig, count: i64) {
    let snapshots = "SELECT count(*) FROM snapshots";
    rig.until(snapshots, |prepared| prepared >= count).await;
}

async fn caused(rig: &Rig, cause: &'static str) -> i64 {
    let query = match cause {
        "idle" => "SELECT count(*) FROM snapshots WHERE cause = 'idle'",
        _ => "SELECT count(*) FROM snapshots WHERE cause = 'model_change'",
    };
    rig.number(query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_conversation_is_activated_below_the_threshold() {
    let rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "400ms")]).await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=TURNS {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    prepared(&rig, 1).await;
    rig.quiet().await;
    let answer = rig.send(&conversation.body(TURNS + 1)).await;
    assert_eq!(answer.memory(), "active");
    let line = rig.audit_entry(&answer).await;
    assert_eq!(line["cause"], "idle");
    // The same again goes out as it did.
    let sent = rig.last().body.clone();
    rig.send(&conversation.body(TURNS + 1)).await;
    assert_eq!(rig.last().body, sent);
    assert!(rig.metric("diarist_snapshots_total{cause=\"idle\"}").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_activated_before_the_idle_time_or_without_the_setting() {
    for settings in [
        &[("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "1h")][..],
        // What the Reflector is told says nothing to the Observer.
        &[("MEMORY__REFLECTION__ACTIVATE_AFTER_IDLE", "1ms")],
        &[],
    ] {
        let rig = rig(settings).await;
        let answer = rig
            .play_turns(&SampleConversation::new("ada"), 1..=TURNS)
            .await;
        assert_eq!(answer.memory(), "watching");
        assert!(rig.number("SELECT count(*) FROM parts").await > 1);
        assert_eq!(rig.number("SELECT count(*) FROM snapshots").await, 0);
    }
}

/// Set by one process, run out while none was there, acted on by the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_timer_survives_a_restart() {
    let mut rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "1h")]).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    assert_eq!(rig.number("SELECT count(*) FROM timers").await, 1);
    rig.stop().await;
    let mut database = rig.database().await;
    sqlx::raw_sql("UPDATE timers SET due_ms = 1, activate_ms = 1")
        .execute(&mut database)
        .await
        .unwrap();
    assert_eq!(rig.number("SELECT count(*) FROM snapshots").await, 0);
    rig.start().await;
    prepared(&rig, 1).await;
    assert_eq!(caused(&rig, "idle").await, 1);
    let answer = rig.send(&conversation.body(TURNS + 1)).await;
    assert_eq!(answer.memory(), "active");
}

/// A machine under load may not commit within the 20 ms a request waits; then the next request has what
/// this one could not have. One of a few conversations is in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_change_activates_the_ready_observations() {
    let rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true")]).await;
    for number in 1..=20 {
        let conversation = SampleConversation::new(&format!("ada{number}"));
        rig.play_turns(&conversation, 1..=TURNS).await;
        let other = SampleConversation {
            model: "another-model",
            ..conversation.clone()
        };
        let at_once = rig.send(&other.body(TURNS + 1)).await.memory() == "active";
        let sent = rig.last().body.clone();
        prepared(&rig, number).await;
        rig.quiet().await;
        rig.send(&other.body(TURNS + 1)).await;
        assert_eq!(rig.last().body, sent, "the same again goes out as it did");
        // It goes on so, also with the first model again.
        let answer = rig.play_turns(&conversation, TURNS + 2..=TURNS + 2).await;
        assert_eq!(answer.memory(), "active");
        assert_eq!(caused(&rig, "model_change").await, number);
        if at_once {
            let lines = rig.audited(TURNS + 3).await;
            assert!(lines.iter().any(|line| line["cause"] == "model_change"));
            return;
        }
    }
    panic!("no request had what was committed for it");
}

/// A client that drops its oldest messages by itself is recognised by what is left, and asks another model
/// like any other. As above, one of a few is in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_change_activates_observations_for_an_aligned_request() {
    let rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true")]).await;
    rig.gives_its_answers();
    for number in 1..=20 {
        let conversation = SampleConversation::new(&format!("ada{number}"));
        rig.play_turns(&conversation, 1..=TURNS).await;
        let mut body = conversation.body(TURNS + 1);
        body["model"] = "another-model".into();
        // Behind the system message; too little to be covered for that alone.
        body["messages"].as_array_mut().unwrap().drain(1..5);
        let answer = rig.send(&body).await;
        rig.quiet().await;
        let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
        let line = rig.audited(number * (TURNS + 1)).await.pop().unwrap();
        if line["cause"] == "model_change" {
            assert_eq!(answer.memory(), "active");
            assert_eq!(line["reason"], "aligned", "{line}");
            assert!(sent.contains("<diarist-log") && sent.contains(&conversation.observed()));
            return;
        }
    }
    panic!("no request had what was committed for it");
}

/// Which model was asked last is known to the process that was asked: the first request after a restart
/// activates nothing, and from then on it is known again.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_request_after_a_restart_is_no_model_change() {
    let mut rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true")]).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    rig.restart().await;
    let other = SampleConversation {
        model: "another-model",
        ..conversation.clone()
    };
    let answer = rig.play_turns(&other, TURNS + 1..=TURNS + 1).await;
    assert_eq!(answer.memory(), "watching");
    assert_eq!(caused(&rig, "model_change").await, 0);
    rig.play_turns(&conversation, TURNS + 2..=TURNS + 2).await;
    assert_eq!(caused(&rig, "model_change").await, 1);
}

/// A repetition goes out as it did, whichever model it asks; from then on that is the model.
#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_with_another_model_activates_nothing() {
    let rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true")]).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    let other = SampleConversation {
        model: "another-model",
        ..conversation
    };
    let answer = rig.play_turns(&other, TURNS..=TURNS + 1).await;
    assert_eq!(answer.memory(), "watching");
    assert_eq!(rig.number("SELECT count(*) FROM snapshots").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_of_a_model_or_a_disabled_setting_activates_nothing() {
    let changes = [
        ("true", "openai/gpt-x", "openai.responses/gpt-x"),
        ("false", "gpt-test", "another-model"),
    ];
    for (setting, first, second) in changes {
        let rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", setting)]).await;
        let conversation = SampleConversation {
            model: first,
            ..SampleConversation::new("ada")
        };
        rig.play_turns(&conversation, 1..=TURNS).await;
        let other = SampleConversation {
            model: second,
            ..conversation
        };
        let ready = rig.number("SELECT count(*) FROM parts").await;
        assert!(ready > 1, "{first} {second}: {ready} parts are ready");
        let answer = rig.send(&other.body(TURNS + 1)).await;
        assert_eq!(answer.memory(), "watching", "{first} {second}");
        // Nothing is prepared for the next request either.
        rig.quiet().await;
        let activated = caused(&rig, "model_change").await;
        assert_eq!(activated, 0, "{first} {second}");
    }
}

/// The write that activates is waited for very shortly; the request goes on without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_database_does_not_delay_a_request_with_another_model() {
    let rig = rig(&[("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true")]).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    let mut database = rig.database().await;
    sqlx::raw_sql("BEGIN IMMEDIATE")
        .execute(&mut database)
        .await
        .unwrap();
    let other = SampleConversation {
        model: "another-model",
        ..conversation
    };
    let answer = rig.send(&other.body(TURNS + 1)).await;
    assert_eq!((answer.status, answer.memory()), (200, "watching"));
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut database)
        .await
        .unwrap();
    // What was committed too late serves the next request.
    prepared(&rig, 1).await;
    rig.quiet().await;
    let answer = rig.send(&other.body(TURNS + 2)).await;
    assert_eq!(answer.memory(), "active");
}

/// What an override says holds for the models it names and for no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_override_applies_only_to_its_models() {
    let overrides = "[{ model = \"small-*\", observation = { message_tokens = 2000, \
                     buffer_tokens = 500, buffer_activation = 0.8 } }]";
    let rig = rig(&[("MEMORY__OVERRIDES", overrides)]).await;
    for (name, model, memory) in [("ada", "small-one", "active"), ("bob", "large", "watching")] {
        let conversation = SampleConversation {
            model,
            ..SampleConversation::new(name)
        };
        let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
        assert_eq!(answer.memory(), memory, "{model}");
    }
}
