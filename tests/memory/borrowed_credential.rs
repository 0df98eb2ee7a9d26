//! Memory without an endpoint of its own: its calls go the conversation's way, with the conversation's
//! credential, and yield to the conversation.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind, Options, RecordedRequest};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::memory::rig::{PATIENCE, Rig};
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

const OURS: &str = "Bearer sk-borrowed-CANARY-1";
const OTHER: &str = "Bearer sk-borrowed-CANARY-2";

async fn small() -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
    ];
    Rig::with(Options::default(), &settings).await
}

impl Rig {
    /// The Observer's calls that were made with this credential.
    fn calls_with(&self, credential: &str) -> Vec<Arc<RecordedRequest>> {
        let mut calls = self.provider.record_for(CallerKind::Observer);
        calls.retain(|call| call.credential.reveal() == credential);
        calls
    }

    /// Sends the turn, which has to be answered, and waits for nothing.
    async fn say(&self, credential: &str, conversation: &SampleConversation, turn: usize) {
        let answer = self
            .send_as(credential, &[], &conversation.body(turn))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Has another credential's conversation observed: from then on the workers have looked at everything
    /// that waits.
    async fn other_is_observed(&self, name: &str) {
        let before = self.calls_with(OTHER).len();
        let conversation = SampleConversation::new(name);
        for turn in 1..=4 {
            self.say(OTHER, &conversation, turn).await;
        }
        eventually("another's calls", || self.calls_with(OTHER).len() > before).await;
    }
}

fn header<'a>(call: &'a RecordedRequest, name: &str) -> &'a str {
    call.headers
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_calls_use_the_route_and_credential_of_their_conversation() {
    let mut rig = small().await;
    let base = format!("{}/eu/deployments/gpt/v1", rig.provider.origin());
    rig.set("UPSTREAM__BASE_URL", &base);
    rig.restart().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=2 * ACTIVE {
        let request = rig
            .client
            .post(rig.url("/v1/chat/completions?api-version=2026-02-01&tier=b"))
            .header("authorization", OURS)
            .header("openai-organization", "org-77")
            .header("openai-project", "proj-88")
            .header("x-of-the-client", "not lent")
            .header("content-type", "application/json")
            .body(conversation.body(turn).to_string());
        assert_eq!(request.send().await.unwrap().status(), 200);
        rig.quiet().await;
    }
    let client = rig.provider.record_for(CallerKind::Actor)[0].clone();
    assert!(client.target.starts_with("/eu/deployments/gpt/v1/chat/"));
    assert!(client.target.ends_with("?api-version=2026-02-01&tier=b"));
    for part in [CallerKind::Observer, CallerKind::Reflector] {
        let calls = rig.provider.record_for(part);
        assert!(!calls.is_empty(), "{part:?}");
        for call in calls {
            assert_eq!(call.target, client.target, "{part:?}");
            assert_eq!(call.credential.reveal(), OURS, "{part:?}");
            assert_eq!(header(&call, "openai-organization"), "org-77");
            assert_eq!(header(&call, "openai-project"), "proj-88");
            assert_eq!(header(&call, "x-of-the-client"), "");
        }
    }
    // It is in no file, and in no number that is told.
    assert!(!rig.metrics().await.contains("CANARY"));
    rig.stop().await;
    for file in std::fs::read_dir(rig.folder.path()).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let at = memchr::memmem::find(&bytes, b"CANARY");
        assert_eq!(at, None, "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_wait_until_a_request_brings_their_credential_again() {
    let mut rig = small().await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=5 {
        rig.say(OURS, &conversation, turn).await;
    }
    eventually("a call", || !rig.calls_with(OURS).is_empty()).await;
    // What was held goes with the process; what waits does not.
    rig.restart().await;
    rig.provider
        .inject(CallerKind::Observer, Behaviour::default());
    let waiting = "SELECT count(*) FROM jobs WHERE state = 'open'";
    assert!(rig.number(waiting).await > 0);
    let before = rig.calls_with(OURS).len();
    rig.other_is_observed("bob").await;
    rig.other_is_observed("cleo").await;
    assert_eq!(
        rig.calls_with(OURS).len(),
        before,
        "nobody can pay for them"
    );
    assert!(rig.number(waiting).await > 0, "and they are not given up");

    // The next request lends it again.
    rig.say(OURS, &conversation, 6).await;
    rig.quiet().await;
    assert!(rig.calls_with(OURS).len() > before);
    assert_eq!(rig.number("SELECT count(*) FROM jobs").await, 0);
    let failed =
        "SELECT count(*) FROM events WHERE kind LIKE '%-failed' AND body NOT LIKE '%was stopped%'";
    assert_eq!(rig.number(failed).await, 0, "waiting is no failure");
    rig.play_turns_as(OURS, &[], &conversation, 7..=ACTIVE + 1)
        .await;
    let answer = rig.send_as(OURS, &[], &conversation.body(ACTIVE + 2)).await;
    assert_eq!(answer.memory(), "active");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_429_to_the_client_its_observer_calls_wait() {
    let mut rig = small().await;
    let conversation = SampleConversation::new("ada");
    // Lent, with nothing to observe yet.
    rig.say(OURS, &conversation, 1).await;
    rig.quiet().await;
    assert_eq!(rig.calls_with(OURS).len(), 0);
    let limited = Behaviour::rate_limited(3_600);
    rig.provider.inject_next(CallerKind::Actor, 1, &limited);
    let answer = rig.send_as(OURS, &[], &conversation.body(2)).await;
    assert_eq!(answer.status, 429, "the client hears of it");
    for turn in 2..=5 {
        rig.say(OURS, &conversation, turn).await;
    }
    rig.other_is_observed("bob").await;
    let waiting = "SELECT count(*) FROM jobs WHERE state = 'open' AND attempts = 0";
    rig.until_at_least(1, waiting).await;
    rig.other_is_observed("cleo").await;
    assert_eq!(
        rig.calls_with(OURS).len(),
        0,
        "what is left is the client's"
    );
    assert!(rig.number(waiting).await > 0);
    // Nothing but what rests is left: a job that still runs when a process stops may have to wait for the end
    // of its lease, a minute later. One thing is recorded after the other, so everything before this one
    // has its jobs when it is.
    for turn in 1..=2 {
        rig.say(OTHER, &SampleConversation::new("dora"), turn).await;
    }
    let recorded = || rig.number("SELECT count(*) FROM requests");
    let running = || rig.number("SELECT count(*) FROM jobs WHERE leased = 1");
    let owners = || rig.number("SELECT count(DISTINCT tenant) FROM jobs");
    let only_ours = async {
        // Five turns of ours, but for the one that was refused; four of each other, and hers.
        while recorded().await < 15 || running().await > 0 || owners().await > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, only_ours).await.unwrap();
    // A rest is this process's; what waited is done with the next request of another.
    rig.restart().await;
    rig.say(OURS, &conversation, 6).await;
    for name in ["bob", "cleo"] {
        // What is left of theirs waits for them in the same way.
        rig.say(OTHER, &SampleConversation::new(name), 5).await;
    }
    rig.quiet().await;
    assert!(!rig.calls_with(OURS).is_empty());
    assert_eq!(rig.number("SELECT count(*) FROM jobs").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_observe_command_restarts_an_abandoned_range() {
    let mut rig = small().await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=4 {
        rig.say(OURS, &conversation, turn).await;
    }
    eventually("a call", || !rig.calls_with(OURS).is_empty()).await;
    rig.stop().await;
    // As a database holds it whose Observer was beyond hope: without its words.
    let mut database = rig.database().await;
    let given_up = "UPDATE jobs SET state = 'abandoned', payload = '', leased = 0";
    let done = sqlx::query(given_up).execute(&mut database).await.unwrap();
    assert!(done.rows_affected() > 0);
    drop(database);
    rig.start().await;
    rig.provider
        .inject(CallerKind::Observer, Behaviour::default());
    let before = rig.calls_with(OURS).len();
    rig.play_turns_as(OURS, &[], &conversation, 5..=7).await;
    assert_eq!(
        rig.calls_with(OURS).len(),
        before,
        "it is not asked for again"
    );
    assert_eq!(rig.number("SELECT count(*) FROM parts").await, 0);

    let url = format!("sqlite://{}", rig.file().display());
    let output = Command::new(env!("CARGO_BIN_EXE_diarist"))
        .args(["threads", "observe", "1", "--database", &url])
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains(" had failed for good will be tried again"),
        "{stdout}"
    );
    rig.play_turns_as(OURS, &[], &conversation, 8..=ACTIVE + 3)
        .await;
    // From the first message on, without a gap, and what is made of it is used.
    let first = "SELECT count(*) FROM parts WHERE kind = 'chunk' AND from_count = 0";
    assert_eq!(rig.number(first).await, 1);
    let given_up = "SELECT count(*) FROM jobs WHERE state = 'abandoned' AND kind = 'chunk'";
    assert_eq!(rig.number(given_up).await, 0);
    let first = conversation.question(1);
    let shown = rig.calls_with(OURS)[before..].iter().any(|call| {
        let body: Value = call.json().unwrap();
        body.to_string().contains(first.trim())
    });
    assert!(shown, "the words of its first message were offered anew");
    let answer = rig.send_as(OURS, &[], &conversation.body(ACTIVE + 4)).await;
    assert_eq!(answer.memory(), "active");
}
