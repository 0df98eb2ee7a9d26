//! SIGKILL at any point: no acknowledged observation is lost, none is made twice, no job is stuck
//! past its lease (INV-DUR). Rows that belong together are stored together: a snapshot and the same snapshot
//! with peer memory, a confirmed message and its kept text.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use diarist::history::Link;
use diarist::memory::advance::ChainJob;
use diarist::memory::peer_memory::ConversationBinding;
use diarist::memory::{PartKind, PeerMemory};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, NewSnapshot, Queue as _, Snapshots as _, SqliteStore,
};
use sqlx::{Connection as _, SqliteConnection};

use crate::store::world::{ANYBODY, Disk, LEASE, TestChain, scope};

const DATABASE: &str = "DIARIST_TEST_CRASH_DATABASE";
const TURNS: usize = 400;

/// The process that is killed. It prints what the store has acknowledged. `acknowledged_writes_survive_a_kill` starts it;
/// among all other tests it has nothing to do.
#[tokio::test]
async fn a_process_that_works_until_it_is_killed() {
    let Ok(url) = std::env::var(DATABASE) else {
        return;
    };
    println!("starting");
    let store = SqliteStore::open(&url).await.expect("a store");
    let whole = TestChain::new(&scope("alice"), "crash", 2 * TURNS);
    let peer_lineage = TestChain::new(&scope("alice"), "told of", 2);
    let peer_lineage = peer_lineage.recorded(&store).await;
    let mut now = 0;
    for turn in 1..=TURNS {
        let chain = whole.first(2 * turn);
        let known = store
            .load_chain(&chain.scope, &chain.links)
            .await
            .expect("known");
        if known.nodes.len() < chain.len() {
            let mut record = chain.record(known.lineage, known.nodes.len());
            let keep = |link: &Link| (*link, format!("words of {link:?}"));
            record.lookup_entries.kept_messages = record.newly_confirmed.iter().map(keep).collect();
            store.record(&chain.scope, &record).await.expect("recorded");
        }
        println!("recorded {}", chain.len());
        let job = chain.job(PartKind::Chunk, chain.len() - 2, chain.len());
        store.enqueue(&chain.scope, &job, 0).await.expect("offered");
        // Jobs that a killed process had leased are due again, because their lease has ended.
        now += 2 * LEASE;
        while let Some(job) = store.claim(&ANYBODY, now, LEASE).await.expect("claimed") {
            let span = job.spec.span;
            let part = whole.chunk(span.from_count, span.to_count);
            let id = store
                .commit_part(&job, &part, now)
                .await
                .expect("committed");
            println!("part {} {}", id.expect("the only worker").0, span.to_count);
            let new = whole
                .first(chain.len())
                .snapshot(span.to_count, &[id.expect("a part")]);
            let bound = with_peer_memory(&chain, &new, peer_lineage);
            let (own, bound) = store
                .commit_snapshot_pair(&chain.scope, &new, &bound)
                .await
                .expect("committed");
            for meta in [&own.meta, &bound.expect("the other one is there").meta] {
                println!("snapshot {} {}", meta.id.0, meta.eligible_from);
            }
        }
    }
}

/// `own` with peer memory of the lineage `peer_lineage`, for one conversation.
fn with_peer_memory(chain: &TestChain, own: &NewSnapshot, peer_lineage: i64) -> NewSnapshot {
    let others = PeerMemory {
        lineages: vec![peer_lineage],
        keys: Vec::new(),
        tokens: 9,
        binding: Some(ConversationBinding {
            link: chain.tip(),
            count: chain.len(),
            key: None,
        }),
    };
    NewSnapshot {
        peer_memory: Some(Arc::new(others)),
        segments: vec!["told".to_owned()],
        ..own.clone()
    }
}

#[derive(Default)]
struct Acknowledged {
    recorded: usize,
    parts: Vec<(i64, usize)>,
    snapshots: Vec<(i64, usize)>,
}

fn started(url: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "store::crash::a_process_that_works_until_it_is_killed",
        ])
        .arg("--nocapture")
        .env(DATABASE, url)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started")
}

/// Runs the other half and kills it after `lines` lines; reads what it has printed.
fn killed_after(lines: usize, url: &str, acknowledged: &mut Acknowledged) {
    let mut child = started(url);
    let output = child.stdout.take().expect("its output");
    let mut line_count = 0;
    for line in BufReader::new(output).lines() {
        let line = line.expect("text");
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().expect("a number");
        match words[0] {
            "recorded" => acknowledged.recorded = acknowledged.recorded.max(number(1)),
            "part" => acknowledged
                .parts
                .push((words[1].parse().expect("an id"), number(2))),
            "snapshot" => acknowledged
                .snapshots
                .push((words[1].parse().expect("an id"), number(2))),
            _ => continue,
        }
        line_count += 1;
        if line_count == lines {
            child.kill().expect("killed");
        }
    }
    child.wait().expect("ended");
    assert!(line_count >= lines, "it worked until it was killed");
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    let disk = Disk::new();
    let mut acknowledged = Acknowledged::default();
    for round in 0..12 {
        // Not a multiple of the number of steps, so that the kills hit every step.
        killed_after(3 + 5 * round, &disk.url(), &mut acknowledged);
        check(&disk, &acknowledged).await;
    }
}

/// A start creates the folder, the file, the schema and the journal mode one after the other.
#[tokio::test]
async fn a_process_killed_while_it_starts_leaves_a_database_that_opens() {
    for round in 0..12 {
        let disk = Disk::new();
        let mut child = started(&disk.url());
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut lines = output.lines().map(|line| line.expect("text"));
        assert!(lines.any(|line| line == "starting"));
        // This does not synchronise; it spreads the kills over the few milliseconds of a start.
        std::thread::sleep(Duration::from_millis(3 * round));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let store = disk.open().await;
        let chain = TestChain::new(&scope("bob"), "after the crash", 3);
        chain.recorded(&store).await;
        store.close().await;
        intact(&disk).await;
    }
}

/// After a power failure the journal may end anywhere, or in zeros. The database then holds a prefix of
/// what was written: whole requests only.
#[tokio::test]
async fn a_torn_journal_loses_only_its_last_requests() {
    let disk = Disk::new();
    let store = disk.open().await;
    let mut lineage = None;
    let chain = TestChain::new(&scope("alice"), "torn", 40);
    for length in (2..=40).step_by(2) {
        let record = chain.first(length).record(lineage, length - 2);
        lineage = Some(store.record(&chain.scope, &record).await.expect("recorded"));
    }
    let journal = |disk: &Disk| disk.file().with_extension("db-wal");
    let file = std::fs::read(disk.file()).expect("the file");
    let whole = std::fs::read(journal(&disk)).expect("the journal");
    let mut lengths = std::collections::BTreeSet::new();
    for round in 0..=20 {
        let kept = whole.len() * round / 20;
        for zeros in [0, whole.len() - kept] {
            let copy = Disk::new();
            std::fs::create_dir_all(copy.file().parent().expect("a folder")).expect("made");
            std::fs::write(copy.file(), &file).expect("written");
            let mut torn = whole[..kept].to_vec();
            torn.resize(kept + zeros, 0);
            std::fs::write(journal(&copy), torn).expect("written");
            let store = copy.open().await;
            let known = store
                .load_chain(&chain.scope, &chain.links)
                .await
                .expect("known");
            let length = known.nodes.len();
            assert_eq!(length % 2, 0, "a request is there whole or not at all");
            if length > 0 {
                let found = store
                    .find_on_chain(&chain.scope, &chain.first(length).links)
                    .await;
                assert!(found.expect("found").sent_with.is_some());
            }
            lengths.insert(length);
            store.close().await;
            intact(&copy).await;
        }
    }
    assert_eq!(
        lengths.last(),
        Some(&40),
        "nothing is lost of a whole journal"
    );
    assert!(lengths.len() > 5, "{lengths:?}");
}

async fn intact(disk: &Disk) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(disk.file());
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
}

async fn check(disk: &Disk, acknowledged: &Acknowledged) {
    intact(disk).await;
    let store = disk.open().await;
    let chain = TestChain::new(&scope("alice"), "crash", 2 * TURNS);
    let known = store
        .load_chain(&chain.scope, &chain.links)
        .await
        .expect("known");
    assert!(
        known.nodes.len() >= acknowledged.recorded,
        "no request is lost"
    );
    for (id, to) in &acknowledged.parts {
        let made: Vec<_> = known
            .parts
            .iter()
            .filter(|p| p.span.to_count == *to)
            .collect();
        assert_eq!(made.len(), 1, "the chunk up to {to} is there, once");
        assert_eq!(made[0].id.0, *id);
    }
    for (id, eligible_from) in &acknowledged.snapshots {
        let made = known
            .snapshots
            .iter()
            .find(|s| s.id.0 == *id)
            .expect("it is there");
        assert_eq!(made.eligible_from, *eligible_from);
    }
    // The snapshot for one conversation and the one for its forks are stored together or not at all.
    for meta in &known.snapshots {
        let twins = known.snapshots.iter();
        let twins = twins.filter(|twin| twin.to == meta.to && twin.parts == meta.parts);
        let with_peers = twins
            .clone()
            .filter(|twin| twin.peer_memory.is_some())
            .count();
        assert_eq!((with_peers, twins.count()), (1, 2), "{meta:?}");
    }
    // A message is recorded with its kept text.
    let kept = store
        .kept_messages(&chain.scope, &chain.links)
        .await
        .expect("kept");
    let kept: BTreeMap<Link, String> = kept.into_iter().collect();
    let confirmed: BTreeMap<Link, String> = known
        .nodes
        .iter()
        .filter(|node| node.confirmed)
        .map(|node| (node.link, format!("words of {:?}", node.link)))
        .collect();
    assert_eq!(kept, confirmed);
    // A span has a job or a part, never both, and no job is out of reach.
    for ChainJob { span, .. } in &known.jobs {
        assert!(!known.parts.iter().any(|part| part.span == *span));
    }
    let open = store.open_jobs(i64::MAX).await.expect("counted");
    assert!(open <= 1, "{open} jobs of one worker");
    store.close().await;
}
