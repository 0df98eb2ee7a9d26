//! A process that stops while the Observer has work.

use std::sync::Arc;

use diarist_provider::{Behaviour, CallerKind};
use tokio::sync::Semaphore;

use crate::memory::process::{CONFIG, Program};
use crate::memory::rig::Rig;
use crate::memory::tools::{SampleConversation, eventually};

const NAMES: [&str; 8] = ["ada", "bob", "cleo", "dora", "ede", "fay", "gus", "hal"];

/// A worker that is stopped gives its job back, due at once, for the next process. No worker of the
/// stopping process may take it again: it would do so over and over until the database is closed.
/// Whether it does depends on what the workers do at that moment, so it is stopped several times.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_process_that_stops_takes_no_job_again() {
    const STOPS: i64 = 6;
    let mut rig = Rig::small().await;
    // A job that is done leaves no row, so each claim of a range is noted.
    let mut database = rig.database().await;
    sqlx::raw_sql(
        "CREATE TABLE seen_claims (attempts INTEGER NOT NULL);
         CREATE TRIGGER see_claims AFTER UPDATE OF attempts ON jobs WHEN NEW.kind = 'chunk'
         BEGIN INSERT INTO seen_claims VALUES (NEW.attempts); END",
    )
    .execute(&mut database)
    .await
    .unwrap();
    drop(database);
    for stop in 0..STOPS {
        let gate = Arc::new(Semaphore::new(0));
        rig.provider
            .inject(CallerKind::Observer, Behaviour::gated(&gate));
        for name in NAMES {
            let conversation = SampleConversation::new(&format!("{name}{stop}"));
            for turn in 1..=10 {
                assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
            }
        }
        // The workers run through what has waited, one claim after the other, until they are stopped.
        let before = rig.provider.record_for(CallerKind::Observer).len();
        gate.add_permits(100_000);
        eventually("a call", || {
            rig.provider.record_for(CallerKind::Observer).len() > before + 4
        })
        .await;
        rig.restart().await;
    }
    rig.stop().await;
    assert!(rig.number("SELECT count(*) FROM seen_claims").await > 0);
    let claims = "SELECT max(attempts) FROM
                  (SELECT attempts FROM jobs UNION ALL SELECT attempts FROM seen_claims)";
    let claims = rig.number(claims).await;
    println!("{claims} claims of one job");
    assert!(claims <= STOPS + 1, "once for each process: {claims}");
}

/// Another program holds the database for longer than the stop may take, so what was said cannot be recorded.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_stop_with_unrecorded_exchanges_is_logged() {
    let mut program = Program::start().await;
    program.configure(&format!("[server]\ndrain_timeout = \"1s\"\n{CONFIG}"));
    program.terminate().await;
    program.again().await;
    let mut other = program.database().await;
    sqlx::raw_sql("BEGIN EXCLUSIVE")
        .execute(&mut other)
        .await
        .unwrap();
    let conversation = SampleConversation::new("ada");
    for turn in 1..=2 {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
    }
    program.terminate().await;
    let log = program.log();
    assert!(
        log.contains("the process stops before all exchanges are recorded"),
        "{log}"
    );
}
