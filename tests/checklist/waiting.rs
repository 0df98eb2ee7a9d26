//! Whom a client waits for: nobody, but where a request does not fit its model and the operator chose it.

use super::Check;
use super::hand::{Client, Ground, Mood, Process, run};

pub const CHECKS: &[Check] = &[
    (&[76], || {
        run(an_ordinary_request_never_waits_for_the_observer());
    }),
    (&[136], || {
        run(a_read_only_request_stores_nothing_and_calls_no_model());
    }),
    (&[140], || {
        run(a_too_long_request_is_observed_and_sent_once_more());
    }),
    (&[141], || {
        run(existing_observations_are_applied_before_new_ones_are_made());
    }),
    (&[142], || {
        run(a_forced_activation_does_not_change_later_thresholds());
    }),
];

/// Nine thousand, of which 700 are observed at a time, and the operator lets clients wait.
const WAITING: [(&str, &str); 3] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "9000"),
    ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
    ("MEMORY__OVERFLOW", "observe"),
];

/// A turn during which no model is asked anything.
async fn turn_without_model_call(process: &mut Process, client: &mut Client) -> usize {
    let calls = process.model.calls();
    let (_, raw) = process.turn(client).await;
    assert_eq!(process.model.calls(), calls, "while the client waited");
    raw
}

async fn an_ordinary_request_never_waits_for_the_observer() {
    let ground = Ground::new(&[]);
    let mut process = ground.process().await;
    let mut client = Client::new("ada");
    // Nobody observes anything: 6,000 of 2,000, and nothing but the client's own goes out.
    for turn in 0..15 {
        assert_eq!(
            turn_without_model_call(&mut process, &mut client).await,
            2 * turn + 1
        );
    }
    assert_eq!(process.model.calls(), 0);
    process.work().await;
    // Now activation suffices: each range was asked for once, and the tail is not observed for it.
    let mut least = usize::MAX;
    for _ in 0..15 {
        least = turn_without_model_call(&mut process, &mut client)
            .await
            .min(least);
        process.work().await;
    }
    assert!(least < 10, "{least}");
    assert_eq!(process.model.calls(), ground.chunks().await.len());
}

/// Every row of every table that a request may leave something in.
const ROWS: &str = "SELECT (SELECT count(*) FROM nodes) + (SELECT count(*) FROM requests)
    + (SELECT sum(times) FROM requests) + (SELECT count(*) FROM jobs) + (SELECT count(*) FROM parts)
    + (SELECT count(*) FROM snapshots) + (SELECT count(*) FROM lineages)
    + (SELECT sum(requests) FROM lineages) + (SELECT sum(confirmed) FROM nodes)";

/// What is read is sent, also where it has to be made shorter, and none of that is kept. (That its
/// exchange is handed to nobody shows where a server runs, in the test beside this one in the table.)
async fn a_read_only_request_stores_nothing_and_calls_no_model() {
    let mut settings = WAITING.to_vec();
    settings[0].1 = "4000";
    let ground = Ground::new(&settings);
    let mut process = ground.process().await;
    let mut client = Client::new("ada");
    let mut last = 0;
    // Sent with a block, and more was observed since.
    for _ in 0..14 {
        let (sent, _) = process.turn(&mut client).await;
        last = sent.snapshot().map_or(0, |sent| sent.meta.to_count);
        process.work().await;
    }
    client.asks();
    let (rows, calls) = (ground.number(ROWS).await, process.model.calls());
    let mut reading = client.clone();
    reading.headers.push(("x-diarist-memory", "read"));
    let sent = process.goes_out(&reading).await;
    assert_eq!(sent.snapshot().map(|sent| sent.meta.to_count), Some(last));
    reading.sees_all(&sent);
    let mut steps = sent.retry_shorter(&process.memory, &|| None);
    let shorter = steps.next(None).await.unwrap();
    assert_eq!(shorter.fallback(), "observed");
    assert!(shorter.snapshot().unwrap().meta.to_count > last);
    reading.sees_all(&shorter);
    // Nobody observes for it what would be lost.
    while let Some(again) = steps.next(None).await {
        assert_eq!(again.fallback(), "refused");
    }
    steps.give_up();
    assert_eq!(ground.number(ROWS).await, rows);
    assert_eq!(process.model.calls(), calls);
    // The same request leaves something where it may.
    let sent = process.goes_out(&client).await;
    let mut steps = sent.retry_shorter(&process.memory, &|| None);
    steps.next(None).await.unwrap();
    assert!(ground.number(ROWS).await > rows);
}

/// Refused, observed, sent once more; the prompt at hand stays. Off where the operator chose nothing.
async fn a_too_long_request_is_observed_and_sent_once_more() {
    for (settings, on) in [(&WAITING[..], true), (&WAITING[..2], false)] {
        let ground = Ground::new(settings);
        let process = ground.process().await;
        let client = Client::after("ada", 12);
        let sent = process.goes_out(&client).await;
        assert_eq!(client.sees_all(&sent), client.messages.len());
        let mut steps = sent.retry_shorter(&process.memory, &|| None);
        let again = steps.next(None).await;
        assert_eq!(again.is_some(), on);
        assert_eq!(process.model.calls() > 0, on);
        if let Some(again) = again {
            assert_eq!(again.fallback(), "awaited");
            assert!(client.sees_all(&again) < client.messages.len());
            let calls = process.model.calls();
            assert!(steps.next(None).await.is_none(), "one more, and no third");
            assert_eq!(process.model.calls(), calls);
        }
        steps.give_up();
    }
    // A model that fails is no second refusal: the client hears the first.
    let ground = Ground::new(&WAITING);
    let process = ground.process().await;
    process.is(Mood::Fails);
    let client = Client::after("ada", 12);
    let sent = process.goes_out(&client).await;
    let mut steps = sent.retry_shorter(&process.memory, &|| None);
    assert!(steps.next(None).await.is_none());
    steps.give_up();
}

async fn existing_observations_are_applied_before_new_ones_are_made() {
    let ground = Ground::new(&WAITING);
    let mut process = ground.process().await;
    let mut client = Client::new("ada");
    for _ in 0..10 {
        let (sent, _) = process.turn(&mut client).await;
        assert!(sent.snapshot().is_none(), "below the threshold");
        process.work().await;
    }
    let observed = ground.chunks().await.last().unwrap().1;
    client.asks();
    let calls = process.model.calls();
    let sent = process.goes_out(&client).await;
    let mut steps = sent.retry_shorter(&process.memory, &|| None);
    let applied = steps.next(None).await.unwrap();
    assert_eq!(
        (applied.fallback(), process.model.calls()),
        ("observed", calls)
    );
    let left = i64::try_from(client.sees_all(&applied)).unwrap();
    let all = i64::try_from(client.messages.len()).unwrap();
    assert_eq!(left, all - observed, "all of what is observed");
    // Only where that was not enough, what is not observed yet.
    let awaited = steps.next(None).await.unwrap();
    assert_eq!(awaited.fallback(), "awaited");
    assert!(process.model.calls() > calls);
    assert!(i64::try_from(client.sees_all(&awaited)).unwrap() < left);
}

async fn a_forced_activation_does_not_change_later_thresholds() {
    let ground = Ground::new(&[WAITING[0], WAITING[2]]);
    let mut process = ground.process().await;
    let mut client = Client::after("ada", 10);
    let sent = process.goes_out(&client).await;
    let forced = {
        let mut steps = sent.retry_shorter(&process.memory, &|| None);
        let forced = steps.next(None).await.unwrap();
        steps.record_accepted();
        forced
    };
    assert_eq!(forced.fallback(), "awaited");
    process.answered(&mut client, &forced).await;
    let causes = "SELECT count(*) FROM snapshots WHERE cause <> 'overflow'";
    let ends = "SELECT max(to_count) FROM snapshots";
    assert!(ground.number(ends).await > 0 && ground.number(causes).await == 0);
    let raw = "SELECT sum(tokens) FROM nodes WHERE count > (SELECT max(to_count) FROM snapshots)";
    let forced = ground.number("SELECT max(id) FROM parts").await;
    let mut grown = ground.number(raw).await;
    assert!(grown < 9_000 / 2, "{grown}");
    while ground.number(causes).await == 0 {
        grown = ground.number(raw).await;
        assert!(grown < 9_000 / 5 * 6, "{grown}, and nothing happens");
        process.turn(&mut client).await;
        process.work().await;
    }
    // One turn weighs less than 500.
    assert!(grown > 9_000 - 500, "activated at {grown}");
    // What is observed in the background holds a fifth of it, as before.
    let least = "SELECT min(message_tokens) FROM parts WHERE kind = 'chunk' AND id > ";
    let mut database = ground.database().await;
    let least = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("{least}{forced}")));
    let least: i64 = least.fetch_one(&mut database).await.unwrap();
    assert!(least >= 9_000 / 5, "{least}");
}
