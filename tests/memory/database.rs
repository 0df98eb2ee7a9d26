//! A database in trouble (INV-OPEN): what this process knows serves on, else the client's own bytes;
//! it is said why; and memory is back when the database is, without a restart.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diarist::lookup::READ_TIMEOUT;
use diarist_provider::{Behaviour, CallerKind, Options, RecordedRequest};
use sqlx::SqliteConnection;
use tokio::sync::Semaphore;

use crate::memory::rig::{Answer, PATIENCE, Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation};

/// Far more than a request is held for the sake of memory, far less than a lock is waited for.
const HELD: Duration = Duration::from_secs(2);

/// A request waits for the store as in production.
async fn rig() -> Rig {
    Rig::with_store_timeout(Options::default(), &SMALL, READ_TIMEOUT).await
}

async fn run(database: &mut SqliteConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(database).await.unwrap();
}

impl Rig {
    async fn at_once(&self, conversation: &SampleConversation, turn: usize) -> Answer {
        let began = Instant::now();
        let answer = self.send(&conversation.body(turn)).await;
        let took = began.elapsed();
        assert!(took < HELD, "turn {turn} was held for {took:?}");
        assert!(answer.status < 500, "turn {turn}: {}", answer.text());
        answer
    }

    fn files(&self) -> [PathBuf; 3] {
        ["", "-wal", "-shm"].map(|end| {
            let mut name = self.file().into_os_string();
            name.push(end);
            name.into()
        })
    }

    /// From now on the raw history of this turn does not fit the model any more.
    fn shrink(&self, conversation: &SampleConversation, turn: usize) {
        let raw = u32::try_from(conversation.body(turn).to_string().len() / 4).unwrap();
        self.provider
            .rules(|rules| rules.window = Some(raw * 9 / 10));
    }

    /// Asks until memory serves this conversation from a database that works.
    async fn healthy(&self, conversation: &SampleConversation, from: usize) {
        // Only what is accepted is recorded, and each of these turns is longer.
        self.provider.rules(|rules| rules.window = None);
        let began = Instant::now();
        for turn in from.. {
            let answer = self.send(&conversation.body(turn)).await;
            if ["active", "watching"].contains(&answer.memory()) {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "memory did not come back: {}",
                answer.memory()
            );
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// What is done to a database in use, and undone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Locked,
    Deleted,
    Garbage,
    Replaced,
    Refusing,
}

struct Undo {
    lock: Option<SqliteConnection>,
}

async fn cause_trouble(rig: &Rig, trouble: Trouble) -> Undo {
    let mut undo = Undo { lock: None };
    match trouble {
        Trouble::Locked => {
            let mut other = rig.database().await;
            run(&mut other, "BEGIN EXCLUSIVE").await;
            undo.lock = Some(other);
        }
        Trouble::Deleted => {
            for file in rig.files() {
                let _ = std::fs::remove_file(file);
            }
        }
        Trouble::Garbage => {
            for file in rig.files() {
                std::fs::write(file, "no database. ".repeat(9_000)).unwrap();
            }
        }
        Trouble::Replaced => {
            let theirs = rig.folder.path().join("theirs");
            std::fs::write(&theirs, "no database. ".repeat(9_000)).unwrap();
            std::fs::rename(theirs, rig.file()).unwrap();
        }
        // As a full disk or a read-only one does: reads answer, no write does.
        Trouble::Refusing => {
            let mut other = rig.database().await;
            for statement in [
                "CREATE TRIGGER no_nodes BEFORE INSERT ON nodes BEGIN SELECT RAISE(ABORT, 'no'); END",
                "CREATE TRIGGER no_requests BEFORE INSERT ON requests BEGIN SELECT RAISE(ABORT, 'no'); END",
                "CREATE TRIGGER no_jobs BEFORE UPDATE ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END",
            ] {
                run(&mut other, statement).await;
            }
        }
    }
    undo
}

async fn undo_trouble(rig: &Rig, trouble: Trouble, undo: Undo) {
    match trouble {
        Trouble::Locked => drop(undo.lock),
        Trouble::Deleted => {}
        Trouble::Garbage | Trouble::Replaced => {
            for file in rig.files() {
                let _ = std::fs::remove_file(file);
            }
        }
        Trouble::Refusing => {
            let mut other = rig.database().await;
            for statement in [
                "DROP TRIGGER no_nodes",
                "DROP TRIGGER no_requests",
                "DROP TRIGGER no_jobs",
            ] {
                run(&mut other, statement).await;
            }
        }
    }
}

async fn a_warm_conversation_goes_on_through(trouble: Trouble) {
    let rig = rig().await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    assert_eq!(answer.memory(), "active");
    rig.shrink(&conversation, ACTIVE + 1);
    let before = rig
        .metric("diarist_memory_requests_total{rung=\"process\"}")
        .await;
    let undo = cause_trouble(&rig, trouble).await;

    // Until the recorder has met the trouble, nobody knows of it.
    let (began, mut sent) = (Instant::now(), ACTIVE);
    loop {
        let answer = rig.at_once(&conversation, ACTIVE + 1).await;
        sent += 1;
        assert_eq!(answer.status, 200, "{trouble:?}: {}", answer.text());
        if answer.memory() == "active; rung=process" {
            break;
        }
        assert_eq!(answer.memory(), "active", "{trouble:?}");
        assert!(began.elapsed() < PATIENCE, "{trouble:?} is not told");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let answer = rig.at_once(&conversation, ACTIVE + 2).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "active; rung=process")
    );
    let audit = rig.audited(sent + 1).await;
    assert_eq!(audit.last().unwrap()["rung"], "process", "{trouble:?}");
    let after = rig
        .metric("diarist_memory_requests_total{rung=\"process\"}")
        .await;
    assert!(after > before, "{trouble:?}");

    // At its first turn a conversation has nothing to lose.
    let answer = rig.at_once(&SampleConversation::new("bob"), 1).await;
    assert_eq!(answer.status, 200, "{trouble:?}");

    undo_trouble(&rig, trouble, undo).await;
    rig.healthy(&conversation, ACTIVE + 4).await;
    rig.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_warm_conversation_goes_on_while_the_database_is_locked() {
    a_warm_conversation_goes_on_through(Trouble::Locked).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_warm_conversation_goes_on_when_the_database_is_overwritten() {
    a_warm_conversation_goes_on_through(Trouble::Garbage).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_warm_conversation_goes_on_when_the_database_is_replaced() {
    a_warm_conversation_goes_on_through(Trouble::Replaced).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_conversation_goes_on_where_nothing_can_be_written() {
    a_warm_conversation_goes_on_through(Trouble::Refusing).await;
}

/// A new one is made in its place, so the trouble is over soon; what was known goes on serving.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_warm_conversation_goes_on_when_the_database_is_deleted() {
    let rig = rig().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.shrink(&conversation, ACTIVE + 1);
    let _undo = cause_trouble(&rig, Trouble::Deleted).await;
    for turn in ACTIVE + 1..=ACTIVE + 3 {
        let answer = rig.at_once(&conversation, turn).await;
        assert_eq!(answer.status, 200, "turn {turn}: {}", answer.text());
        assert!(answer.memory().starts_with("active"), "{}", answer.memory());
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    rig.healthy(&conversation, ACTIVE + 4).await;
    rig.quiet().await;
    assert!(
        rig.number("SELECT count(*) FROM nodes").await > 0,
        "a new database was made"
    );
}

/// A process that never knew the conversation sends what the client sent.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_cold_conversation_is_sent_unchanged_if_the_database_cannot_be_opened() {
    let mut rig = rig().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.stop().await;
    let good = std::fs::read(rig.file()).unwrap();
    std::fs::write(rig.file(), "no database. ".repeat(9_000)).unwrap();
    rig.start().await;

    let ready = rig.admin("/readyz").await;
    assert!(
        ready.text().contains("not a SQLite database"),
        "{}",
        ready.text()
    );
    let before = rig
        .metric("diarist_memory_requests_total{rung=\"original\"}")
        .await;
    for (conversation, turn) in [
        (&conversation, ACTIVE + 1),
        (&SampleConversation::new("bob"), 1),
    ] {
        let answer = rig.at_once(conversation, turn).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.memory(), "bypass; reason=store; rung=original");
        assert_eq!(rig.last().body, conversation.body(turn).to_string());
    }
    let line = rig.audited(ACTIVE + 2).await.pop().unwrap();
    assert_eq!(
        (line["rung"].as_str(), line["reason"].as_str()),
        (Some("original"), Some("store"))
    );
    let after = rig
        .metric("diarist_memory_requests_total{rung=\"original\"}")
        .await;
    assert!(after >= before + 2.0);
    // Where the raw history does not fit, the client hears it from the upstream itself.
    rig.shrink(&conversation, ACTIVE + 1);
    let answer = rig.at_once(&conversation, ACTIVE + 1).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");

    std::fs::write(rig.file(), good).unwrap();
    let began = Instant::now();
    loop {
        let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
        if answer.memory() == "active" {
            assert_eq!(answer.status, 200, "and it fits again");
            break;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "memory did not come back: {}",
            answer.memory()
        );
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// A backup or a repair holds the file for itself alone while Diarist starts.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_database_that_is_locked_at_the_start_is_opened_when_it_is_free() {
    let mut rig = rig().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.stop().await;
    let mut other = rig.database().await;
    run(
        &mut other,
        "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT",
    )
    .await;
    let began = Instant::now();
    rig.start().await;
    assert!(
        began.elapsed() < HELD,
        "the start waited {:?}",
        began.elapsed()
    );
    let answer = rig.at_once(&conversation, ACTIVE + 1).await;
    assert_eq!(answer.memory(), "bypass; reason=store; rung=original");
    // Longer than one attempt to open it takes.
    tokio::time::sleep(Duration::from_secs(6)).await;
    rig.at_once(&conversation, ACTIVE + 1).await;
    drop(other);
    let began = Instant::now();
    while rig.send(&conversation.body(ACTIVE + 1)).await.memory() != "active" {
        assert!(began.elapsed() < PATIENCE, "memory did not come back");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_database_path_is_reported_and_requests_still_pass() {
    let settings = [("STORE__URL", "sqlite:///proc/diarist/below/x.db")];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=3 {
        let answer = rig.at_once(&conversation, turn).await;
        assert_eq!(
            (answer.status, answer.memory()),
            (200, "bypass; reason=store; rung=original")
        );
    }
    let ready = rig.admin("/readyz").await;
    assert!(ready.text().contains("x.db"), "{}", ready.text());
}

/// What a model wrote while the database was locked is stored when it is free, not asked for again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_observation_is_kept_until_the_locked_database_is_free() {
    // No request comes while the database is locked, so none has to give up soon.
    let rig = Rig::small().await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=5 {
        rig.send(&conversation.body(turn)).await;
    }
    let is_observer_called =
        |record: &[Arc<RecordedRequest>]| record.iter().any(|e| e.caller == CallerKind::Observer);
    rig.provider.wait_until(is_observer_called).await.unwrap();
    // Everything the recorder has to write is written; only the part is missing.
    let began = Instant::now();
    while rig.number("SELECT count(*) FROM requests").await < 5 {
        assert!(began.elapsed() < PATIENCE);
    }
    let undo = cause_trouble(&rig, Trouble::Locked).await;
    gate.add_permits(1_000);
    // Longer than one write waits for a lock.
    tokio::time::sleep(Duration::from_secs(6)).await;
    undo_trouble(&rig, Trouble::Locked, undo).await;
    rig.quiet().await;
    let parts = rig.number("SELECT count(*) FROM parts").await;
    assert!(parts > 0);
    let calls = rig.provider.record_for(CallerKind::Observer).len();
    assert_eq!(
        calls,
        usize::try_from(parts).unwrap(),
        "no call was made twice"
    );
}

/// A cost that the database refuses is stored with the next request.
#[tokio::test(flavor = "multi_thread")]
async fn a_cost_that_could_not_be_stored_is_billed_later() {
    let rig = Rig::small().await;
    let mut database = rig.database().await;
    let refused =
        "CREATE TRIGGER no_costs BEFORE INSERT ON costs BEGIN SELECT RAISE(ABORT, 'no'); END";
    run(&mut database, refused).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.quiet().await;
    let calls = || {
        let phases = [CallerKind::Observer, CallerKind::Reflector];
        phases
            .map(|phase| rig.provider.record_for(phase).len())
            .iter()
            .sum::<usize>()
    };
    let refused = calls();
    assert!(refused > 0);
    assert_eq!(rig.number("SELECT count(*) FROM costs").await, 0);
    run(&mut database, "DROP TRIGGER no_costs").await;
    rig.play_turns(&conversation, ACTIVE + 1..=ACTIVE + 4).await;
    rig.quiet().await;
    let billed = rig.number("SELECT sum(calls) FROM costs").await;
    assert_eq!(billed, i64::try_from(calls()).unwrap());
}

/// A new database gives numbers anew: what another conversation makes there under the number of what
/// this process remembers of this one is never sent for it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_reused_snapshot_number_never_sends_memory_of_another_conversation() {
    const NEWEST: &str = "SELECT coalesce(max(id), 0) FROM snapshots";
    const MADE: &str = "SELECT count(*) FROM sqlite_master WHERE name = 'snapshots'";
    let rig = rig().await;
    let (conversation, other) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    let given = rig.number(NEWEST).await;
    assert!(given > 0, "the number of a snapshot is remembered");
    let _undo = cause_trouble(&rig, Trouble::Deleted).await;
    let began = Instant::now();
    // The file is there before its tables are.
    while !rig.file().exists() || rig.number(MADE).await == 0 {
        rig.at_once(&other, 1).await;
        assert!(began.elapsed() < PATIENCE, "no new database was made");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut turn = 0;
    // Ends with the number given anew, and fails where the new file is gone.
    while rig.number(NEWEST).await < given {
        turn += 1;
        assert!(turn <= 4 * ACTIVE, "{given} is not given anew");
        rig.play_turns(&other, turn..=turn).await;
    }
    for turn in ACTIVE + 1..=2 * ACTIVE {
        let answer = rig.at_once(&conversation, turn).await;
        assert_eq!(answer.status, 200);
        let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
        assert!(
            !sent.contains(&other.canary()),
            "turn {turn}: {}",
            answer.memory()
        );
        let whole = conversation.body(turn).to_string();
        let is_unchanged = sent == whole;
        assert!(
            is_unchanged || sent.contains(&conversation.observed()),
            "turn {turn} has neither its whole history nor its own memory: {sent}"
        );
        rig.quiet().await;
    }
    let answer = rig.at_once(&conversation, 2 * ACTIVE + 1).await;
    assert_eq!(answer.memory(), "active", "it has memory again");
}
