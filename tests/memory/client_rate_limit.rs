//! A client whose upstream limits its rate: memory that borrows its credential yields, and goes on.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use diarist_provider::{Behaviour, CallerKind, Options};

use crate::memory::rig::{PATIENCE, Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation};
use crate::support::depth;

/// What came of conversations that were played side by side.
struct Played {
    /// How many requests were long, and how many of these went out with memory.
    long: usize,
    with_memory: usize,
}

/// How long memory works after a request where nothing is limited. Both runs go on side by side, so that what else the
/// machine does slows down both.
#[derive(Default)]
struct Work {
    requests: AtomicU32,
    millis: AtomicU64,
}

impl Work {
    fn note(&self, elapsed: Duration) {
        let millis = u64::try_from(elapsed.as_millis()).unwrap();
        self.millis.fetch_add(millis, Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    /// How long people read what they got: half a second, and longer where memory takes longer at the mean.
    fn pause(&self) -> Duration {
        let requests = self.requests.load(Ordering::SeqCst).max(1);
        let mean = Duration::from_millis(self.millis.load(Ordering::SeqCst)) / requests;
        Duration::from_millis(500).max(8 * mean)
    }
}

/// Plays conversations side by side. Where `limited_in` is given, one in so many requests is refused, without a word about
/// how long, and memory has only the time in which people read; else it has the time it needs.
async fn play(limited_in: Option<usize>, work: &Work) -> Played {
    const CONVERSATIONS: usize = 4;
    let turns = depth::long_or(40, 26);
    let rig = Rig::small().await;
    let sent = AtomicUsize::new(0);
    let (long, with_memory) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let conversations = (0..CONVERSATIONS).map(|number| {
        let (rig, sent, long, with_memory) = (&rig, &sent, &long, &with_memory);
        async move {
            let conversation = SampleConversation::new(&format!("user{number}"));
            for turn in 1..=turns {
                let at = sent.fetch_add(1, Ordering::SeqCst);
                if limited_in.is_some_and(|every| at % every == every / 10) {
                    let limited = Behaviour::failing(429);
                    rig.provider.inject_next(CallerKind::Actor, 1, &limited);
                }
                let mut answer = rig.send(&conversation.body(turn)).await;
                while answer.status == 429 {
                    answer = rig.send(&conversation.body(turn)).await;
                }
                assert_eq!(answer.status, 200);
                if limited_in.is_some() {
                    rig.quiet_within(work.pause()).await;
                } else {
                    let began = Instant::now();
                    rig.quiet_within(PATIENCE).await;
                    work.note(began.elapsed());
                }
                if turn > ACTIVE {
                    long.fetch_add(1, Ordering::SeqCst);
                    let active = answer.memory() == "active";
                    with_memory.fetch_add(usize::from(active), Ordering::SeqCst);
                }
            }
        }
    });
    futures_util::future::join_all(conversations).await;
    Played {
        long: long.into_inner(),
        with_memory: with_memory.into_inner(),
    }
}

/// One request in fifty is refused. Nine in ten of the long requests that would have had memory without that have it, if
/// people read for half a second: on a busy machine longer, as memory takes longer there.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn occasional_rate_limits_do_not_remove_memory() {
    let work = Work::default();
    let (unlimited, limited) = tokio::join!(play(None, &work), play(Some(50), &work));
    let (with_limits, without_limits) = (limited.with_memory, unlimited.with_memory);
    let long = limited.long;
    println!(
        "of {long} long requests with memory: {with_limits}, without limits {without_limits}; pauses of {:?}",
        work.pause()
    );
    assert!(without_limits > 0, "no request has memory without limits");
    assert!(
        with_limits * 10 >= without_limits * 9,
        "{with_limits}, without limits {without_limits}, with a pause of {:?}",
        work.pause()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_after_a_rate_limit_is_reported_with_its_end() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    assert_eq!(rig.send(&conversation.body(1)).await.status, 200);
    let limited = Behaviour::rate_limited(3_000);
    rig.provider.inject_next(CallerKind::Actor, 1, &limited);
    assert_eq!(rig.send(&conversation.body(2)).await.status, 429);
    let part = rig.wait_part("observer", "resting").await;
    let until: jiff::Timestamp = part["until"].as_str().unwrap().parse().unwrap();
    let left = until.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((2_900..=3_000).contains(&left), "{left} s");
    assert_eq!(rig.admin("/readyz").await.json()["status"], "ready");
    let answer = rig.send(&conversation.body(2)).await;
    let expected = format!("watching; reason=observer_resting; until={until:.0}");
    assert_eq!(answer.memory(), expected);
    let line = rig.audit_entry(&answer).await;
    let time = |field: &str| -> jiff::Timestamp { line[field].as_str().unwrap().parse().unwrap() };
    assert!(time("since") <= time("time"), "{line}");
    assert!(time("until") > time("time"), "{line}");
    // Another credential is not concerned.
    let answer = rig
        .send_as("Bearer sk-other", &[], &conversation.body(2))
        .await;
    assert_eq!(answer.memory(), "watching");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_daily_budget_is_reported_with_its_end() {
    let settings = [&SMALL[..], &[("MEMORY__DAILY_TOKENS", "100")]].concat();
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..ACTIVE {
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    // The first call spends the budget. Until it has ended, nothing is said.
    let waiting = async {
        loop {
            let answer = rig.send(&conversation.body(ACTIVE)).await;
            if answer.memory() != "watching" {
                break answer;
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    let line = rig.audit_entry(&answer).await;
    let until: jiff::Timestamp = line["until"].as_str().unwrap().parse().unwrap();
    let expected = format!("watching; reason=budget_spent; until={until:.0}");
    assert_eq!(answer.memory(), expected);
    assert_eq!(line["reason"], "budget_spent", "{line}");
    let time = |field: &str| -> jiff::Timestamp { line[field].as_str().unwrap().parse().unwrap() };
    // It may have been spent while this request was on its way.
    assert!(time("since") <= jiff::Timestamp::now(), "{line}");
    assert!(time("until").to_string().ends_with("T00:00:00Z"), "{line}");
    assert!(time("until") > time("time"), "{line}");
    // Another account has a budget of its own.
    let answer = rig
        .send_as("Bearer sk-other", &[], &conversation.body(2))
        .await;
    assert_eq!(answer.memory(), "watching");
}
