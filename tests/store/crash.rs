//! SIGKILL at any point: no acknowledged observation is lost, none is made twice, no job is stuck
//! past its lease (INV-DUR).

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use diarist::memory::PartKind;
use diarist::memory::advance::Work;
use diarist::store::{SqliteStore, Store};
use sqlx::{Connection as _, SqliteConnection};

use crate::world::{ANYBODY, Disk, LEASE, Talk, scope};

const DATABASE: &str = "DIARIST_TEST_CRASH_DATABASE";
const TURNS: usize = 400;

/// The process that is killed. It says on its standard output what was acknowledged.
#[tokio::test]
#[ignore = "the other half of `whatever_was_acknowledged_survives`, which runs it as a process"]
async fn a_process_that_works_until_it_is_killed() {
    let url = std::env::var(DATABASE).expect("run by the other half");
    let store = SqliteStore::open(&url).await.expect("a store");
    let whole = Talk::new(&scope("alice"), "crash", 2 * TURNS);
    let mut now = 0;
    for turn in 1..=TURNS {
        let talk = whole.first(2 * turn);
        let known = store.known(&talk.scope, &talk.links).await.expect("known");
        if known.nodes.len() < talk.len() {
            let record = talk.record(known.lineage, known.nodes.len());
            store.record(&talk.scope, &record).await.expect("recorded");
        }
        println!("recorded {}", talk.len());
        let job = talk.job(PartKind::Chunk, talk.len() - 2, talk.len());
        store.offer(&talk.scope, &job, 0).await.expect("offered");
        // Whatever a killed process had leased is due again: its lease is over by now.
        now += 2 * LEASE;
        while let Some(job) = store.claim(&ANYBODY, now, LEASE).await.expect("claimed") {
            let span = job.work.span;
            let part = whole.chunk(span.from_count, span.to_count);
            let id = store
                .commit_part(&job, &part, now)
                .await
                .expect("committed");
            println!("part {} {}", id.expect("the only worker").0, span.to_count);
            let new = whole
                .first(talk.len())
                .snapshot(span.to_count, &[id.expect("a part")]);
            let snapshot = store
                .commit_snapshot(&talk.scope, &new)
                .await
                .expect("committed");
            println!(
                "snapshot {} {}",
                snapshot.meta.id.0, snapshot.meta.eligible_from
            );
        }
    }
}

#[derive(Default)]
struct Acknowledged {
    recorded: usize,
    parts: Vec<(i64, usize)>,
    snapshots: Vec<(i64, usize)>,
}

/// Runs the other half and kills it after so many lines; reads what it could still say.
fn killed_after(lines: usize, url: &str, seen: &mut Acknowledged) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "crash::a_process_that_works_until_it_is_killed"])
        .args(["--ignored", "--nocapture"])
        .env(DATABASE, url)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let output = child.stdout.take().expect("its output");
    let mut heard = 0;
    for line in BufReader::new(output).lines() {
        let line = line.expect("text");
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().expect("a number");
        match words[0] {
            "recorded" => seen.recorded = seen.recorded.max(number(1)),
            "part" => seen
                .parts
                .push((words[1].parse().expect("an id"), number(2))),
            "snapshot" => seen
                .snapshots
                .push((words[1].parse().expect("an id"), number(2))),
            _ => continue,
        }
        heard += 1;
        if heard == lines {
            child.kill().expect("killed");
        }
    }
    child.wait().expect("ended");
    assert!(heard >= lines, "it worked until it was killed");
}

#[tokio::test]
async fn whatever_was_acknowledged_survives() {
    let disk = Disk::new();
    let mut seen = Acknowledged::default();
    for round in 0..12 {
        // Not a multiple of the steps of a turn, so that every step is met.
        killed_after(3 + 5 * round, &disk.url(), &mut seen);
        check(&disk, &seen).await;
    }
}

async fn check(disk: &Disk, seen: &Acknowledged) {
    let file = disk.file();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut conn = SqliteConnection::connect_with(&options)
        .await
        .expect("a connection");
    let integrity: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut conn)
        .await
        .expect("checked");
    assert_eq!(integrity, "ok");
    let dangling = sqlx::query("PRAGMA foreign_key_check")
        .fetch_all(&mut conn)
        .await;
    assert!(dangling.expect("checked").is_empty());
    conn.close().await.expect("closed");

    let store = disk.open().await;
    let talk = Talk::new(&scope("alice"), "crash", 2 * TURNS);
    let known = store.known(&talk.scope, &talk.links).await.expect("known");
    assert!(known.nodes.len() >= seen.recorded, "no request is lost");
    for (id, to) in &seen.parts {
        let made: Vec<_> = known
            .parts
            .iter()
            .filter(|p| p.span.to_count == *to)
            .collect();
        assert_eq!(made.len(), 1, "the chunk up to {to} is there, once");
        assert_eq!(made[0].id.0, *id);
    }
    for (id, eligible_from) in &seen.snapshots {
        let made = known
            .snapshots
            .iter()
            .find(|s| s.id.0 == *id)
            .expect("it is there");
        assert_eq!(made.eligible_from, *eligible_from);
    }
    // A span has a job or a part, never both, and no job is out of reach.
    for Work { span, .. } in &known.jobs {
        assert!(!known.parts.iter().any(|part| part.span == *span));
    }
    let open = store.open_jobs().await.expect("counted");
    assert!(open <= 1, "{open} jobs of one worker");
    store.close().await;
}
