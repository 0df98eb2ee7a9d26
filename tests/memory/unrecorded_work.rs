//! What was never written down is shown to no model; and what had to be done once is no setting.

use diarist_provider::{CallerKind, Options};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

async fn run(rig: &Rig, statement: &'static str) {
    let mut database = rig.database().await;
    sqlx::raw_sql(statement)
        .execute(&mut database)
        .await
        .unwrap();
}

/// Words are in the queue before a model sees them: where the queue takes none, nobody is asked.
#[tokio::test(flavor = "multi_thread")]
async fn no_observer_call_is_made_for_a_job_that_is_not_stored() {
    let rig = Rig::small().await;
    run(
        &rig,
        "CREATE TRIGGER no_jobs BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END",
    )
    .await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    assert_eq!(answer.memory(), "watching");
    assert_eq!(
        rig.last().body,
        conversation.body(ACTIVE).to_string(),
        "untouched"
    );
    assert_eq!(rig.provider.record_for(CallerKind::Observer).len(), 0);
    for (table, count) in [
        ("SELECT count(*) FROM jobs", 0),
        ("SELECT count(*) FROM parts", 0),
        // The requests themselves were recorded.
        ("SELECT count(*) FROM nodes", 2 * ACTIVE - 1),
    ] {
        let found = rig.number(table).await;
        assert_eq!(found, i64::try_from(count).unwrap(), "{table}");
    }

    // Nothing was marked as observed: all of it is, once the queue takes it, from the first message on.
    run(&rig, "DROP TRIGGER no_jobs").await;
    let answer = rig.play_turns(&conversation, ACTIVE + 1..=ACTIVE + 2).await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(rig.number("SELECT min(from_count) FROM parts").await, 0);
    let first = rig.provider.record_for(CallerKind::Observer)[0].clone();
    let first = String::from_utf8_lossy(&first.body).into_owned();
    assert!(first.contains(conversation.question(1).trim()), "{first}");
}

const THRESHOLD: i64 = 9_000;

/// A request is too long for its model below the threshold, and observed while its client waits.
#[tokio::test(flavor = "multi_thread")]
async fn an_overflow_observation_lowers_no_later_threshold() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.provider.rules(|rules| rules.window = Some(5_000));
    let forced = rig.play_turns(&conversation, 20..=20).await;
    assert_eq!(forced.memory(), "active; rung=awaited");
    rig.provider.rules(|rules| rules.window = None);
    let causes = "SELECT count(*) FROM snapshots WHERE cause <> 'overflow'";
    assert_eq!(rig.number(causes).await, 0);

    let raw = "SELECT sum(tokens) FROM nodes WHERE count > (SELECT max(to_count) FROM snapshots)";
    let forced = rig.number("SELECT max(id) FROM parts").await;
    let mut grown = rig.number(raw).await;
    assert!(grown < THRESHOLD / 2, "{grown}");
    for turn in 21.. {
        rig.play_turns(&conversation, turn..=turn).await;
        if rig.number(causes).await > 0 {
            break;
        }
        grown = rig.number(raw).await;
        assert!(grown < THRESHOLD * 6 / 5, "{grown} and nothing happens");
    }
    // One turn weighs less than 500.
    assert!(grown > THRESHOLD - 500, "activated at {grown}");
    // And what is observed in the background since holds a fifth of it, as before.
    let sizes: Vec<(i64, i64)> = {
        let mut database = rig.database().await;
        let sizes = "SELECT id, message_tokens FROM parts WHERE kind = 'chunk'";
        sqlx::query_as(sizes)
            .fetch_all(&mut database)
            .await
            .unwrap()
    };
    let since = sizes.iter().filter(|(id, _)| *id > forced);
    let since: Vec<i64> = since.map(|(_, tokens)| *tokens).collect();
    assert!(
        since.len() > 2 && since.iter().all(|tokens| *tokens >= THRESHOLD / 5),
        "{since:?}"
    );
    // Another conversation knows nothing of it.
    let other = rig
        .play_turns(&SampleConversation::new("bob"), 1..=20)
        .await;
    assert_eq!(other.memory(), "watching");
}
