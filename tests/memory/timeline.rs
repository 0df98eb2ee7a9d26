//! What the timeline and the log say of each cause that brings observations into use, end to end.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex, Once};

use diarist_provider::{Behaviour, CallerKind, Options};
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::memory::overflow::observers;
use crate::memory::resource::{ME, SHARED, as_user};
use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, Caller, SampleConversation, eventually, eventually_async};

/// Turns after which several chunks are ready and `message_tokens` is far away.
const TURNS: usize = 6;

/// Thresholds that no test reaches; chunks are small.
const FAR: [(&str, &str); 3] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "20000"),
    ("MEMORY__OBSERVATION__BUFFER_TOKENS", "500"),
    ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "1000"),
];

/// A client's wait for the Observer.
const WAITING: [(&str, &str); 2] = [
    ("MEMORY__OVERFLOW", "observe"),
    ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
];

impl Rig {
    /// What was told of activations: all of it, each part once, and of every chunk that is covered.
    async fn activations(&self) -> Vec<Value> {
        let events = self.events().await.into_iter();
        let activations = events.filter(|(kind, _)| kind == "data-om-activation");
        let activations: Vec<Value> = activations.map(|(_, body)| body).collect();
        let ids: BTreeSet<&str> = activations
            .iter()
            .filter_map(|a| a["cycleId"].as_str())
            .collect();
        assert_eq!(
            ids.len(),
            activations.len(),
            "each part is told once: {activations:?}"
        );
        let covered = "SELECT count(*) FROM parts WHERE kind = 'chunk'
                       AND to_count <= (SELECT max(to_count) FROM snapshots)";
        let chunks = activations
            .iter()
            .filter(|a| a["operationType"] == "observation");
        let chunks = i64::try_from(chunks.count()).unwrap();
        assert_eq!(chunks, self.number(covered).await, "{activations:?}");
        activations
    }
}

/// The log, as far as it is of events and with the state after each request, of everything that happens on one thread.
#[derive(Clone, Default)]
struct EventLog(Arc<Mutex<Vec<u8>>>);

thread_local! {
    static THREAD_LOG: RefCell<Option<EventLog>> = const { RefCell::new(None) };
}

/// Writes what a thread that listens has to say.
struct ThreadWriter;

impl Write for ThreadWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        THREAD_LOG.with_borrow(|thread_log| {
            if let Some(log) = thread_log {
                log.0.lock().unwrap().extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl EventLog {
    /// The log of this thread from now on.
    fn for_this_thread() -> Self {
        static LISTENING: Once = Once::new();
        LISTENING.call_once(|| {
            let lines = tracing_subscriber::fmt::layer().json();
            let lines = lines.with_writer(|| ThreadWriter);
            let filter = tracing_subscriber::EnvFilter::new(
                "off,diarist::events=info,diarist::events::status=debug",
            );
            let subscriber = tracing_subscriber::registry().with(filter).with(lines);
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
        let log = Self::default();
        THREAD_LOG.set(Some(log.clone()));
        log
    }

    /// The events in it: under which target, which, and what they say.
    fn events(&self) -> Vec<(String, String, Value)> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let event = |line: Value| {
            let target = line["target"].as_str()?.to_owned();
            let fields = &line["fields"];
            let body = serde_json::from_str(fields["body"].as_str()?).ok()?;
            let kind = fields["event"].as_str()?.to_owned();
            target
                .starts_with("diarist::events")
                .then_some((target, kind, body))
        };
        lines.filter_map(event).collect()
    }

    /// What they say that have this name.
    fn named(&self, name: &str) -> Vec<Value> {
        let named = self
            .events()
            .into_iter()
            .filter(|(_, kind, _)| kind == name);
        named.map(|(_, _, body)| body).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_threshold_activation_event_has_trigger_and_cause() {
    let small = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "400"),
    ];
    let rig = Rig::with(Options::default(), &small).await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=2 * ACTIVE)
        .await;
    let activations = rig.activations().await;
    for cause in ["threshold", "reflection"] {
        assert!(
            activations.iter().any(|a| a["cause"] == cause),
            "{cause}: {activations:?}"
        );
    }
    for activation in &activations {
        assert_eq!(activation["triggeredBy"], "threshold", "{activation}");
        assert!(activation["lastActivityAt"].as_i64() > Some(1_700_000_000_000));
        for absent in ["ttlExpiredMs", "previousModel", "currentModel"] {
            assert!(activation.get(absent).is_none(), "{activation}");
        }
        assert!(activation["config"].get("activateAfterIdle").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_activation_event_has_the_idle_time() {
    let idle = [("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "400ms")];
    let rig = Rig::with(Options::default(), &[&FAR[..], &idle].concat()).await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=TURNS {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    rig.wait_event("data-om-activation").await;
    rig.quiet().await;
    for activation in rig.activations().await {
        assert_eq!(activation["triggeredBy"], "ttl");
        assert_eq!(activation["cause"], "idle");
        assert_eq!(activation["config"]["activateAfterIdle"], 400);
        let activated: jiff::Timestamp =
            activation["activatedAt"].as_str().unwrap().parse().unwrap();
        let lasted = activation["ttlExpiredMs"].as_i64().unwrap();
        let since = activation["lastActivityAt"].as_i64().unwrap();
        assert_eq!(since + lasted, activated.as_millisecond());
        assert!(lasted >= 400);
    }
    let started = rig.wait_event("data-om-buffering-start").await;
    assert_eq!(started["config"]["activateAfterIdle"], 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_change_event_names_both_models() {
    let change = [("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true")];
    let rig = Rig::with(Options::default(), &[&FAR[..], &change].concat()).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    let other = SampleConversation {
        model: "another-model",
        ..conversation
    };
    rig.play_turns(&other, TURNS + 1..=TURNS + 2).await;
    let activations = rig.activations().await;
    assert!(!activations.is_empty());
    for activation in activations {
        assert_eq!(activation["triggeredBy"], "provider_change");
        assert_eq!(activation["cause"], "model_change");
        assert_eq!(activation["previousModel"], "gpt-test");
        assert_eq!(activation["currentModel"], "another-model");
        assert!(activation["lastActivityAt"].as_i64() > Some(1_700_000_000_000));
        assert!(activation.get("ttlExpiredMs").is_none());
    }
}

/// What is sent with what other conversations know comes into use like anything else.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_with_peer_memory_has_activation_events() {
    let mut settings = SHARED.to_vec();
    settings.push(("IDENTITY__RESOURCE__SET_BY", "application"));
    let rig = Rig::with(Options::default(), &settings).await;
    rig.learn("u1", &SampleConversation::new("ada")).await;
    let bob = SampleConversation::new("bob");
    rig.play_turns_as(ME, &as_user("u1", "bob"), &bob, 1..=2 * ACTIVE)
        .await;
    let bound = "SELECT count(*) FROM snapshots WHERE others IS NOT NULL AND to_count > 0";
    assert!(rig.number(bound).await > 1);
    let events = rig.events().await;
    let of_bob = events
        .iter()
        .filter(|(kind, body)| kind == "data-om-activation" && body["threadId"] == "bob");
    let sent = "SELECT count(*) FROM parts AS p, lineages AS l WHERE p.kind = 'chunk'
                AND l.thread_key = 'bob' AND p.to_count <= (
                    SELECT max(s.to_count) FROM snapshots AS s JOIN nodes AS n ON n.link = s.to_link
                    WHERE n.lineage = l.id)
                AND EXISTS (SELECT 1 FROM nodes AS n WHERE n.link = p.to_link AND n.lineage = l.id)";
    let chunks = of_bob.filter(|(_, body)| body["operationType"] == "observation");
    let chunks = i64::try_from(chunks.count()).unwrap();
    assert!(chunks > 1);
    assert_eq!(chunks, rig.number(sent).await);
}

/// The one time a client waits: each range has its start and its end, on the timeline and in the log.
#[tokio::test]
async fn observations_for_a_waiting_client_have_timeline_events() {
    let log = EventLog::for_this_thread();
    let ranges = [("MEMORY__OBSERVATION__MESSAGE_TOKENS", "3000")];
    let rig = Rig::with(Options::default(), &[&WAITING[..], &ranges].concat()).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let body = SampleConversation::new("ada").body(24);
    // Equal ones wait for the same, and it is told once.
    let answers = futures_util::future::join_all((0..3).map(|_| rig.send(&body))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    rig.quiet().await;
    let events = rig.events().await;
    let events_named = |name: &str| -> Vec<&Value> {
        let named = events.iter().filter(|(kind, _)| kind == name);
        named.map(|(_, body)| body).collect()
    };
    let (starts, ends) = (
        events_named("data-om-observation-start"),
        events_named("data-om-observation-end"),
    );
    assert!(starts.len() > 1 && starts.len() <= observers(&rig));
    let parts = rig.number("SELECT count(*) FROM parts").await;
    assert_eq!(i64::try_from(starts.len()).unwrap(), parts);
    let id = |event: &&Value| event["cycleId"].as_str().unwrap().to_owned();
    let begun: BTreeSet<String> = starts.iter().map(id).collect();
    assert_eq!(begun.len(), starts.len());
    assert_eq!(begun, ends.iter().map(id).collect());
    for start in starts {
        assert!(start["tokensToObserve"].as_u64() > Some(0));
        assert_eq!(start["config"]["messageTokens"], 3_000);
    }
    for end in &ends {
        assert_eq!(end["operationType"], "observation");
        assert!(end["tokensObserved"].as_u64() > end["observationTokens"].as_u64());
        assert!(end["threadId"].is_string() && end["recordId"].is_string());
    }
    let activations = rig.activations().await;
    assert_eq!(activations.len(), ends.len());
    for activation in activations {
        assert_eq!(activation["triggeredBy"], "threshold");
        assert_eq!(activation["cause"], "overflow");
    }
    for name in ["start", "end"] {
        let name = format!("data-om-observation-{name}");
        assert_eq!(
            log.named(&name).len(),
            events_named(&name).len(),
            "{name} is logged once"
        );
    }
    // How a conversation stands is in the log alone, under a target that can be turned on.
    let statuses = log.named("data-om-status");
    assert!(!statuses.is_empty());
    assert!(statuses.iter().all(|status| status["threadId"].is_string()));
    assert!(
        events_named("data-om-status").is_empty(),
        "it is not stored"
    );
    let count_target = |name: &str| log.events().iter().filter(|(t, ..)| t == name).count();
    assert_eq!(count_target("diarist::events::status"), statuses.len());
    assert!(count_target("diarist::events") > 0);
}

/// What came of it was not taken: the log says so, and nothing is written down.
#[tokio::test]
async fn failed_observations_for_a_waiting_client_are_only_logged() {
    let log = EventLog::for_this_thread();
    let rig = Rig::with(Options::default(), &WAITING).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let body = SampleConversation::new("ada").body(24);
    let errors = || -> Vec<String> {
        let failed = log.named("data-om-observation-failed").into_iter();
        failed
            .inspect(|failed| assert!(failed["tokensAttempted"].as_u64() > Some(0)))
            .map(|failed| failed["error"].as_str().unwrap().to_owned())
            .collect()
    };
    rig.provider
        .inject(CallerKind::Observer, Behaviour::failing(500));
    assert_eq!(rig.send(&body).await.status, 400);
    let refused = errors();
    assert!(!refused.is_empty());
    // A client that goes does not wait any more.
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Observer, silent);
    let observer_calls = observers(&rig);
    let mut hurried = Caller::connect(&rig.address()).await;
    hurried.ask(&body).await;
    eventually("an event", || observers(&rig) > observer_calls).await;
    drop(hurried);
    eventually("an event", || errors().len() > refused.len()).await;
    assert_eq!(errors().pop().unwrap(), "nobody waits for it any more");
    rig.quiet().await;
    let ids = |name: &str| -> Vec<Value> {
        let events = log.named(name).into_iter();
        let mut ids: Vec<Value> = events.map(|body| body["cycleId"].clone()).collect();
        ids.sort_by_key(ToString::to_string);
        ids
    };
    let started = ids("data-om-observation-start");
    assert_eq!(started, ids("data-om-observation-failed"));
    assert_eq!(rig.events().await, []);
    assert_eq!(log.named("data-om-observation-end"), [json!(null); 0]);
}

/// A reflection that was queued ahead of need is as urgent as its log has become meanwhile.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_reflection_that_waits_becomes_urgent_with_its_log() {
    let small = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "400"),
        ("MEMORY__REFLECTION__BLOCK_AFTER", "40000"),
    ];
    let rig = Rig::with(Options::default(), &small).await;
    rig.provider
        .inject(CallerKind::Reflector, Behaviour::failing(503));
    let conversation = SampleConversation::new("ada");
    let observing = "SELECT count(*) FROM jobs WHERE kind = 'chunk'";
    let urgency = "SELECT coalesce(max(urgency), 0) FROM jobs WHERE kind = 'reflection'";
    let mut urgencies = Vec::new();
    for turn in 1..=2 * ACTIVE {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
        // The first request waits for the second.
        let recorded = if turn == 1 { 0 } else { turn };
        let requests = "SELECT count(*) FROM requests";
        rig.until_at_least(recorded, requests).await;
        rig.until(observing, |jobs| jobs == 0).await;
        urgencies.push(rig.number(urgency).await);
    }
    let first = urgencies.iter().copied().find(|urgency| *urgency > 0);
    assert!((500..1_000).contains(&first.unwrap()), "{urgencies:?}");
    assert!(urgencies.last() >= Some(&1_000), "{urgencies:?}");
    rig.provider
        .inject(CallerKind::Reflector, Behaviour::default());
    let started = async || {
        let events = rig.events().await;
        let started = events
            .iter()
            .filter(|(kind, _)| kind == "data-om-observation-start");
        let mut started = started.map(|(_, body)| body);
        started.any(|body| body["operationType"] == "reflection")
    };
    eventually_async("the Reflector to start", started).await;
}
