//! A client that hangs up on a chat completion: the upstream is told, a line is left, nothing is held.
//!
//! The aim is 100 ms; the deadline is generous, because the machine may be busy. What was measured is
//! printed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use diarist_provider::{Behaviour, CallerKind, Options, RecordedRequest, Stage};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, Caller, SampleConversation, head};

const DEADLINE: Duration = Duration::from_secs(2);

/// One request at a time: a place that is not given back shows as a 429.
async fn narrow() -> Rig {
    let settings = [
        ("SERVER__MAX_REQUESTS", "1"),
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ];
    Rig::with(Options::default(), &settings).await
}

/// Leaves, and waits until the provider has noticed.
async fn leave(rig: &Rig, caller: Caller, stage: &str) -> Arc<RecordedRequest> {
    let left = Instant::now();
    drop(caller);
    let gone = |record: &[Arc<RecordedRequest>]| {
        record.iter().any(|entry| entry.hang_up_stage().is_some())
    };
    let record = tokio::time::timeout(DEADLINE, rig.provider.wait_until(gone)).await;
    assert!(record.is_ok(), "the upstream was not told");
    let record = record.unwrap().unwrap();
    println!("{stage}: the upstream knew after {:?}", left.elapsed());
    record
        .into_iter()
        .find(|entry| entry.hang_up_stage().is_some())
        .unwrap()
}

/// Whether a table is for what clients say: neither the database's own, nor that of its versions or its pepper.
fn is_table_for_client_data(table: &str) -> bool {
    !table.starts_with("sqlite_") && !table.starts_with("_sqlx") && table != "pepper"
}

/// The line that was left; and that the place is free, and whether the request counts as accepted: then the
/// same request again is its second, and with a second request a conversation is recorded.
async fn after(rig: &Rig, body: &Value, accepted: bool) -> Value {
    let line = rig.audited(1).await.remove(0);
    assert_eq!(line["ended"], "hung_up", "{line}");
    rig.quiet().await;
    // Whatever else the database is for: nothing of what was given up stands in it.
    let rows = rig.everything().await.into_iter();
    let written = rows.filter(|(table, rows)| is_table_for_client_data(table) && !rows.is_empty());
    assert_eq!(written.collect::<Vec<_>>(), []);
    rig.provider.inject(CallerKind::Actor, Behaviour::default());
    let answer = rig.send(body).await;
    assert_eq!(answer.status, 200, "the place was not given back");
    rig.quiet().await;
    assert_eq!(
        rig.number("SELECT count(*) FROM requests").await,
        i64::from(accepted),
        "{line}"
    );
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_before_the_body_ends_sends_nothing_upstream() {
    let rig = narrow().await;
    let body = SampleConversation::new("ada").body(1);
    let mut caller = Caller::connect(&rig.address()).await;
    caller.send(head(1_000).as_bytes()).await;
    caller.send(b"{\"model\"").await;
    // Only so that the request has begun for sure; nothing is to be seen from outside.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let left = Instant::now();
    drop(caller);
    let line = after(&rig, &body, false).await;
    println!(
        "before the body's end: done with after {:?}",
        left.elapsed()
    );
    assert_eq!(line["bytes_received"], 0);
    assert_eq!(rig.got().len(), 1, "half a request was never sent on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_before_the_response_head_ends_the_upstream_request() {
    let rig = narrow().await;
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Actor, silent);
    let body = SampleConversation::new("ada").streamed(1);
    let mut caller = Caller::connect(&rig.address()).await;
    caller.ask(&body).await;
    let has_arrived =
        |record: &[Arc<RecordedRequest>]| record.iter().any(|entry| entry.messages > 0);
    rig.provider.wait_until(has_arrived).await.unwrap();
    let entry = leave(&rig, caller, "before the head").await;
    assert_eq!(entry.hang_up_stage(), Some(Stage::BeforeHead));
    let line = after(&rig, &body, false).await;
    assert_eq!(line.get("status"), None);
}

/// Lets so many events (or frames, where `frames` says how large) through, and then none.
fn holding(rig: &Rig, events: usize, frames: Option<usize>) {
    let behaviour = Behaviour {
        pace_frames: frames.is_some(),
        frame_bytes: frames,
        ..Behaviour::gated(&Arc::new(Semaphore::new(events)))
    };
    rig.provider.inject(CallerKind::Actor, behaviour);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_before_the_first_token_ends_the_upstream_request() {
    let rig = narrow().await;
    holding(&rig, 0, None);
    let body = SampleConversation::new("ada").streamed(1);
    let mut caller = Caller::connect(&rig.address()).await;
    caller.ask(&body).await;
    caller.until("\r\n\r\n").await;
    let entry = leave(&rig, caller, "after the head").await;
    assert_eq!(entry.hang_up_stage(), Some(Stage::BeforeFirstEvent));
    let line = after(&rig, &body, false).await;
    assert_eq!(line["status"], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_at_the_first_token_ends_the_upstream_request() {
    let rig = narrow().await;
    holding(&rig, 2, None);
    let body = SampleConversation::new("ada").streamed(1);
    let mut caller = Caller::connect(&rig.address()).await;
    caller.ask(&body).await;
    caller.until("\"content\":\"About").await;
    let entry = leave(&rig, caller, "first token").await;
    assert!(
        matches!(
            entry.hang_up_stage(),
            Some(Stage::Streaming { events: 2, .. })
        ),
        "{:?}",
        entry.hang_up_stage()
    );
    after(&rig, &body, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_inside_an_event_ends_the_upstream_request() {
    let rig = narrow().await;
    holding(&rig, 2, Some(5));
    let body = SampleConversation::new("ada").streamed(1);
    let mut caller = Caller::connect(&rig.address()).await;
    caller.ask(&body).await;
    caller.until("{\"id").await;
    let entry = leave(&rig, caller, "mid-event").await;
    assert_eq!(
        entry.hang_up_stage(),
        Some(Stage::Streaming {
            events: 0,
            bytes: 10
        })
    );
    after(&rig, &body, false).await;
}

/// The model has said all there is, and the client has it: many close here, without waiting for the
/// end of the stream. The exchange counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_after_the_last_event_counts_as_accepted() {
    let rig = narrow().await;
    let open = Behaviour {
        hold_open: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Actor, open);
    let body = SampleConversation::new("ada").streamed(1);
    let mut caller = Caller::connect(&rig.address()).await;
    caller.ask(&body).await;
    caller.until("data: [DONE]\n\n").await;
    let entry = leave(&rig, caller, "after the last event").await;
    assert_eq!(entry.hang_up_stage(), Some(Stage::AfterLastEvent));
    after(&rig, &body, true).await;
}

/// What was cut short is not believed, whoever cut it: the same request later is a first one.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_response_is_audited_and_not_recorded() {
    use diarist_provider::Cut;
    let rig = narrow().await;
    let conversation = SampleConversation::new("ada");
    for (at, cut) in [
        Cut::AfterEvents(2),
        Cut::ResetAfterEvents(2),
        Cut::AfterBytes(30),
        Cut::BeforeHead,
    ]
    .into_iter()
    .enumerate()
    {
        rig.provider
            .inject_next(CallerKind::Actor, 1, &Behaviour::cutting(cut));
        let mut caller = Caller::connect(&rig.address()).await;
        caller.ask(&conversation.streamed(1)).await;
        let ended = if cut == Cut::BeforeHead { "502" } else { "200" };
        caller.until(ended).await;
        let lines = rig.audited(at + 1).await;
        assert_eq!(
            lines[at]["ended"], "upstream_error",
            "{cut:?}: {}",
            lines[at]
        );
        rig.quiet().await;
        assert_eq!(
            rig.number("SELECT count(*) FROM requests").await,
            0,
            "{cut:?}"
        );
    }
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    assert_eq!(answer.memory(), "active");
}
