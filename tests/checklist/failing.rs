//! What goes wrong with a model or the store: nobody's request notices, and no message is lost.

use std::time::Duration;

use super::Check;
use super::hand::{Client, Ground, Mood, facts, run};

pub const CHECKS: &[Check] = &[
    (
        &[53],
        || run(no_model_is_called_if_the_queue_refuses_jobs()),
    ),
    (&[90], || {
        run(a_failing_observer_is_retried_and_requests_stay_raw());
    }),
    (&[109], || {
        run(code_covers_a_range_after_two_repetitive_answers());
    }),
];

const JOBS: &str = "SELECT count(*) FROM jobs";

/// Words are in the queue before a model sees them: where it takes none, nobody is asked.
async fn no_model_is_called_if_the_queue_refuses_jobs() {
    let ground = Ground::new(&[]);
    let mut process = ground.process().await;
    let refuses =
        "CREATE TRIGGER no_jobs BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END";
    ground.run(refuses).await;
    let mut client = Client::new("ada");
    for _ in 0..8 {
        let (sent, raw) = process.turn(&mut client).await;
        assert_eq!(raw, sent.history().len(), "untouched");
        process.work().await;
    }
    assert_eq!((ground.number(JOBS).await, process.model.calls()), (0, 0));
    assert_eq!(ground.chunks().await, []);
    assert_eq!(ground.number("SELECT count(*) FROM nodes").await, 15);

    // Nothing of it was marked as observed: it is offered as soon as the queue takes it.
    ground.run("DROP TRIGGER no_jobs").await;
    process.turn(&mut client).await;
    let words = "SELECT count(*) FROM jobs WHERE instr(payload, 'fact-ada-0000') > 0";
    assert_eq!((ground.number(words).await, process.model.calls()), (1, 0));
    process.work().await;
    assert_eq!(ground.chunks().await[0].0, 0, "from the first message on");
    let (sent, raw) = process.turn(&mut client).await;
    assert!(raw < sent.history().len());
}

/// Published, one policy fails the turn and the other goes on without memory. Here every request goes out,
/// and the range is asked for until it is observed.
async fn a_failing_observer_is_retried_and_requests_stay_raw() {
    let ground = Ground::new(&[]);
    let mut process = ground.process().await;
    process.is(Mood::Fails);
    let mut client = Client::new("ada");
    while ground.number(JOBS).await == 0 {
        process.turn(&mut client).await;
    }
    // One second doubled, 120 at most, eight times; from then on every ten minutes, for as long as it takes.
    let schedule = [1, 2, 4, 8, 16, 32, 64, 120];
    for wait in schedule.into_iter().chain([600; 12]) {
        let job = process.job().await.unwrap();
        assert_eq!(job.spec.span.from_count, 0, "the oldest first");
        assert!(process.hand.claim().await.is_none(), "it rests");
        let due = ground.number("SELECT due_ms FROM jobs").await - ground.clock.now_ms();
        let within = if wait == 600 {
            600_000..=600_000
        } else {
            wait * 800..=wait * 1_200
        };
        assert!(within.contains(&due), "{wait}: {due}");
        ground
            .clock
            .advance(Duration::from_millis(due.unsigned_abs() - 1));
        assert!(process.hand.claim().await.is_none(), "not earlier");
        ground.clock.advance(Duration::from_millis(1));
    }
    // Meanwhile the client goes on, far beyond the threshold, whatever the failure is.
    let mut whole = client.clone();
    for mood in [Mood::Fails, Mood::Refuses] {
        process.is(mood);
        for _ in 0..6 {
            let (sent, raw) = process.turn(&mut whole).await;
            assert_eq!(raw, sent.history().len());
            process.work().await;
        }
    }
    assert_eq!(ground.chunks().await, []);
    let jobs = ground.number(JOBS).await;
    assert!(jobs >= 10, "{jobs} wait, and none was given up");
    process.is(Mood::Observes);
    for _ in 0..12 {
        ground.clock.advance(Duration::from_mins(20));
        process.work().await;
    }
    assert_eq!(ground.number(JOBS).await, 0);
    let chunks = ground.chunks().await;
    assert_eq!(chunks[0].0, 0);
    assert!(
        chunks.is_sorted_by(|one, next| one.1 == next.0),
        "{chunks:?}"
    );
    process.turn(&mut whole).await;
    let (sent, raw) = process.turn(&mut whole).await;
    assert!(raw < sent.history().len() / 2, "{raw}");
}

/// Published, the second one is an error.
async fn code_covers_a_range_after_two_repetitive_answers() {
    let ground = Ground::new(&[]);
    let mut process = ground.process().await;
    let mut client = Client::new("ada");
    while ground.number(JOBS).await == 0 {
        process.turn(&mut client).await;
    }
    // Once: asked again, and that is what counts.
    process.is(Mood::Loops);
    process.job().await.unwrap();
    assert_eq!(ground.chunks().await, []);
    process.is(Mood::Observes);
    process.work().await;
    assert_eq!((process.model.calls(), ground.chunks().await.len()), (2, 1));
    let by = "SELECT count(*) FROM parts WHERE model = 'code'";
    assert_eq!(ground.number(by).await, 0);
    // Twice: code writes a line for each message, and nothing is asked a third time.
    process.is(Mood::Loops);
    while ground.chunks().await.len() < 3 {
        process.turn(&mut client).await;
        process.work().await;
    }
    assert_eq!((process.model.calls(), ground.number(by).await), (6, 2));
    assert_eq!(ground.number(JOBS).await, 0);
    for (from, to, text) in ground.chunks().await {
        let [from, to] = [from, to].map(|count| usize::try_from(count).unwrap());
        let all = &client.facts(to)[from..];
        assert_eq!(facts(&text).collect::<Vec<_>>(), all, "{text}");
    }
}
