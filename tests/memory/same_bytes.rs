//! The same request is the same bytes (INV-SAME), and memory is its owner's alone (INV-OWN).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use diarist_provider::{
    Behaviour, CallerKind, Observer, Options, RecordedRequest, Reply, Script, ScriptInput,
};
use sqlx::Row as _;
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, Caller, SampleConversation};

#[tokio::test(flavor = "multi_thread")]
async fn repeated_requests_have_equal_bytes_in_any_order_and_after_a_restart() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut first: BTreeMap<usize, Bytes> = BTreeMap::new();
    for turn in 1..=ACTIVE + 3 {
        rig.play_turns(&conversation, turn..=turn).await;
        first.insert(turn, rig.last().body.clone());
        // A client that repeats at once, before memory had its time, and after.
        rig.send(&conversation.body(turn)).await;
        assert_eq!(rig.last().body, first[&turn], "turn {turn}");
    }
    assert_ne!(
        first[&(ACTIVE + 3)],
        conversation.body(ACTIVE + 3).to_string()
    );
    let backwards: Vec<usize> = first.keys().rev().copied().collect();
    let shuffled: Vec<usize> = backwards.iter().map(|turn| (turn * 5) % 13).collect();
    for round in 0..2 {
        for turn in backwards.iter().chain(&shuffled).filter(|turn| **turn > 0) {
            rig.send(&conversation.body(*turn)).await;
            assert_eq!(rig.last().body, first[turn], "turn {turn} in round {round}");
        }
        rig.quiet().await;
        rig.restart().await;
    }
    // In the order in which they were said, each recorded before the next comes.
    for (turn, sent) in &first {
        rig.play_turns(&conversation, *turn..=*turn).await;
        assert_eq!(rig.last().body, sent, "turn {turn} said again");
    }
}

/// A router asks two models for one history, in turns. What was decided for each holds for each, whatever
/// either would be sent today.
#[tokio::test(flavor = "multi_thread")]
async fn two_models_with_one_history_keep_their_own_decisions() {
    let mut rig = Rig::with(Options::default(), &[("MEMORY__OVERFLOW", "trim")]).await;
    let large = SampleConversation::new("ada");
    let small = SampleConversation {
        model: "gpt-small",
        ..large.clone()
    };
    let mut first: Vec<Bytes> = Vec::new();
    for (conversation, window) in [(&large, None), (&small, Some(8_000))] {
        rig.provider.rules(|rules| rules.window = window);
        assert_eq!(rig.send(&conversation.body(24)).await.status, 200);
        first.push(rig.last().body.clone());
        rig.quiet().await;
    }
    assert_eq!(first[0], large.body(24).to_string());
    assert!(first[1].len() < first[0].len(), "it was trimmed");
    rig.provider.rules(|rules| rules.window = None);
    for round in 0..4 {
        if round % 2 == 1 {
            rig.restart().await;
        }
        for (conversation, first) in [
            (&large, &first[0]),
            (&small, &first[1]),
            (&large, &first[0]),
        ] {
            let before = rig.got().len();
            rig.send(&conversation.body(24)).await;
            let now = (rig.got().len(), &rig.last().body);
            assert_eq!(
                now,
                (before + 1, first),
                "round {round}, {}",
                conversation.model
            );
            rig.quiet().await;
        }
    }
    // What continues it goes on from what was decided for its model.
    assert_eq!(
        rig.send(&small.body(25)).await.memory(),
        "active; rung=trimmed"
    );
    assert_eq!(rig.send(&large.body(25)).await.memory(), "watching");
    rig.quiet().await;
    let rows = "SELECT count(*) FROM requests WHERE count = (SELECT min(count) FROM requests)";
    assert_eq!(rig.number(rows).await, 2, "one for each");
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_equal_requests_at_once_are_sent_as_the_same_bytes() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        if turn % 3 == 0 {
            // Cold for the twenty: they ask the store.
            rig.restart().await;
        }
        let before = rig.got().len();
        let body = conversation.body(turn);
        let requests = (0..20).map(|_| rig.send(&body));
        let answers = futures_util::future::join_all(requests).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        let sent: BTreeSet<Bytes> = rig.got()[before..]
            .iter()
            .map(|entry| entry.body.clone())
            .collect();
        assert_eq!(sent.len(), 1, "turn {turn}");
        rig.quiet().await;
    }
    assert_ne!(rig.last().body, conversation.body(ACTIVE).to_string());
    let requests = rig.number("SELECT count(*) FROM requests").await;
    assert_eq!(requests, i64::try_from(ACTIVE).unwrap());
}

/// A snapshot that becomes ready while a request is under way, and would fit it.
#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_of_a_pending_request_is_sent_as_the_same_bytes() {
    let rig = Rig::small().await;
    let observer = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&observer));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        assert_eq!(
            rig.send(&conversation.body(turn)).await.memory(),
            "watching"
        );
    }
    let answer = Arc::new(Semaphore::new(0));
    rig.provider
        .inject_next(CallerKind::Actor, 1, &Behaviour::gated(&answer));
    let mut pending = Caller::connect(&rig.address()).await;
    pending.ask(&conversation.body(ACTIVE + 1)).await;
    let has_arrived = |record: &[Arc<RecordedRequest>]| {
        let long = 2 * ACTIVE;
        record
            .iter()
            .any(|entry| entry.caller == CallerKind::Actor && entry.messages > long)
    };
    rig.provider.wait_until(has_arrived).await.unwrap();
    observer.add_permits(1_000);
    rig.until_at_least(1, "SELECT count(*) FROM snapshots")
        .await;
    // The recorder tells the request path before anybody can see the row; give it the time.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let repeated = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(repeated.memory(), "watching");
    assert_eq!(rig.last().body, conversation.body(ACTIVE + 1).to_string());
    answer.add_permits(1_000);
    pending.until("\r\n\r\n").await;
    rig.quiet().await;
    assert_eq!(
        rig.send(&conversation.body(ACTIVE + 2)).await.memory(),
        "active"
    );
}

/// An Observer that marks everything it writes with a number nobody else has.
#[derive(Default)]
struct Marking(AtomicUsize);

impl Script for Marking {
    fn reply(&self, ask: &ScriptInput<'_>) -> Reply {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let reply = Observer::default().reply(ask);
        let text = reply.content.unwrap_or_default();
        let marked = format!("<observations>\n* 🔴 Mark: mark-{number:05}.");
        Reply::text(text.replacen("<observations>", &marked, 1))
    }
}

fn marks(text: &[u8]) -> BTreeSet<String> {
    memchr::memmem::find_iter(text, b"mark-")
        .map(|at| String::from_utf8_lossy(&text[at..(at + 10).min(text.len())]).into_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn observations_of_one_tenant_are_never_sent_for_another() {
    let mut rig = Rig::small().await;
    rig.provider
        .script(CallerKind::Observer, Marking::default());
    let conversation = SampleConversation::new("ada");
    let owners = ["Bearer sk-alice-0001", "Bearer sk-alice-0002"];
    for turn in 1..=ACTIVE + 3 {
        for owner in owners {
            let answer = rig
                .play_turns_as(owner, &[], &conversation, turn..=turn)
                .await;
            let memory = answer.memory();
            let may_watch = turn < ACTIVE && memory == "watching";
            assert!(memory == "active" || may_watch, "turn {turn}: {memory}");
        }
        if turn == ACTIVE + 1 {
            rig.restart().await;
        }
    }
    // Who was observed by whose credential, as the provider saw it.
    let mut written: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for entry in rig.provider.record_for(CallerKind::Observer) {
        let reply = entry.reply.as_ref().unwrap().to_string();
        let owner = owners
            .iter()
            .find(|owner| entry.credential.reveal() == **owner);
        written
            .entry(owner.unwrap())
            .or_default()
            .extend(marks(reply.as_bytes()));
    }
    let sent = rig.got();
    for owner in owners {
        let own: BTreeSet<String> = sent
            .iter()
            .filter(|entry| entry.credential.reveal() == owner)
            .flat_map(|entry| marks(&entry.body))
            .collect();
        assert!(!own.is_empty() && own.is_subset(&written[owner]), "{owner}");
    }
    // And in the database each owner's rows hold only what was written for it.
    let mut database = rig.database().await;
    let rows = sqlx::query(
        "SELECT tenant, text AS words FROM parts UNION ALL
         SELECT tenant, segments FROM snapshots UNION ALL SELECT tenant, payload FROM jobs",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    let mut stored: BTreeMap<Vec<u8>, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        let words: String = row.get("words");
        stored
            .entry(row.get("tenant"))
            .or_default()
            .extend(marks(words.as_bytes()));
    }
    assert_eq!(stored.len(), 2);
    for marks in stored.values() {
        let owners = written.values().filter(|own| marks.is_subset(own));
        assert_eq!(owners.count(), 1, "{marks:?} of {written:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observations_of_one_resource_are_never_sent_for_another() {
    let rig = Rig::small().await;
    rig.provider
        .script(CallerKind::Observer, Marking::default());
    let conversation = SampleConversation::new("ada");
    let resource_header = |name: &'static str| [("x-diarist-resource", name)];
    let all_marks = |from: usize| -> BTreeSet<String> {
        rig.got()[from..]
            .iter()
            .flat_map(|entry| marks(&entry.body))
            .collect()
    };
    rig.play_turns_as(
        "Bearer sk-test",
        &resource_header("user-1"),
        &conversation,
        1..=ACTIVE + 1,
    )
    .await;
    let (first, from) = (all_marks(0), rig.got().len());
    assert!(!first.is_empty());
    rig.play_turns_as(
        "Bearer sk-test",
        &resource_header("user-2"),
        &conversation,
        1..=ACTIVE + 1,
    )
    .await;
    let (second, from_third) = (all_marks(from), rig.got().len());
    assert!(!second.is_empty() && first.is_disjoint(&second));
    // Without a resource there is a third owner.
    rig.play_turns(&conversation, 1..=ACTIVE + 1).await;
    let third = all_marks(from_third);
    assert!(!third.is_empty() && third.is_disjoint(&first) && third.is_disjoint(&second));
    let owners = rig
        .number("SELECT count(DISTINCT resource) FROM parts")
        .await;
    assert_eq!(owners, 3);
}

/// SDKs insist on an `Authorization`; behind a gateway the key that counts stands elsewhere, and only
/// the upstream can tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_credential_in_any_header_or_query_makes_a_tenant() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let owners = [
        ("/v1/chat/completions", "x-portkey-api-key", "pk-alice"),
        ("/v1/chat/completions", "x-portkey-api-key", "pk-bob"),
        ("/v1/chat/completions", "helicone-auth", "Bearer sk-carol"),
        ("/v1/chat/completions?key=dora", "x-other", "y"),
        ("/v1/chat/completions?key=emil", "x-other", "y"),
    ];
    let turns = [1, 2]
        .into_iter()
        .flat_map(|turn| owners.map(|owner| (turn, owner)));
    for (turn, (path, name, value)) in turns {
        let request = rig
            .client
            .post(rig.url(path))
            .body(conversation.body(turn).to_string());
        let request = request.header("content-type", "application/json");
        let request = request.header("authorization", "Bearer unused");
        let answer = request.header(name, value).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.bytes().await.unwrap();
    }
    rig.quiet().await;
    let tenants = rig
        .number("SELECT count(DISTINCT tenant) FROM requests")
        .await;
    assert_eq!(tenants, 5);
}
