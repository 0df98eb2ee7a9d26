//! Batches: what is recorded in one transaction is what would have been recorded one by one, and one request that
//! fails leaves the others.

use std::sync::Arc;

use diarist::history::{AnswerHash, History, Link, Pepper, Scope};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Alarms, Chains as _, NewTimer, OperatorRequest, RecordedRequest, RequestRecord,
    SqliteStore, StoreError,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _, SqliteConnection};

use crate::store::world::{Disk, TestChain, scope};

type Batch = Vec<(Scope, RequestRecord)>;

/// Every row that a request leaves, with the first link of a lineage instead of its id.
const ROWS: [&str; 7] = [
    "SELECT thread_key, model, requests, first_ms, last_ms, way, zone, {family}, {id} FROM lineages AS t",
    "SELECT link, parent, count, role, tokens, closed, turn_end, born, confirmed, seen_ms, live, content,
            ids, weight, anchor, origin, given, {lineage} FROM nodes AS t",
    "SELECT content, {family}, {lineage} FROM contents AS t",
    "SELECT confirmed_tokens, shown_tokens, {family} FROM accounts AS t",
    "SELECT tip, count, snapshot, placement, model, times, first_ms, last_ms, asked_usage, trimmed_to,
            trim_pin, trim_wording, system, cache_key, cache_breakpoint, {lineage} FROM requests AS t",
    "SELECT tip, model, zone, activate_ms, reflect_ms, due_ms, fence, {lineage} FROM timers AS t",
    "SELECT mark, tip, ending, {lineage} FROM answers AS t",
];

async fn connected(disk: &Disk) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(disk.file());
    options.connect().await.expect("a connection")
}

async fn rows(disk: &Disk) -> Vec<String> {
    let mut conn = connected(disk).await;
    let mut found = Vec::new();
    for statement in ROWS {
        let mut text = statement.to_owned();
        for column in ["family", "lineage", "id"] {
            let first = format!(
                "(SELECT min(n.link) FROM nodes AS n WHERE n.count = 1 AND n.lineage = t.{column})"
            );
            text = text.replace(&format!("{{{column}}}"), &first);
        }
        let columns = text.split("FROM").count();
        assert!(columns > 1, "{text}");
        let listed: Vec<SqliteRow> = sqlx::query(AssertSqlSafe(text))
            .fetch_all(&mut conn)
            .await
            .expect("rows");
        for row in listed {
            let value = |at: usize| match row.try_get_unchecked::<Option<Vec<u8>>, _>(at) {
                Ok(value) => format!("{value:?}"),
                Err(error) => panic!("{error}"),
            };
            let values: Vec<String> = (0..row.len()).map(value).collect();
            found.push(format!("{statement:.20} {}", values.join(" ")));
        }
    }
    found.sort();
    found
}

/// The requests of several conversations of two owners, in three rounds: new ones, continued ones with contents,
/// a fork, a repetition, a conversation that says what another one said, and one with the thread key of another. Most
/// get an answer that may be a summary; some get one that they or others got before.
fn rounds(lineage: impl Fn(&TestChain) -> Option<i64>) -> Vec<Batch> {
    let (alice, bob) = (scope("alice"), scope("bob"));
    let chains: Vec<TestChain> = (0..6)
        .map(|number| {
            let owner = if number % 2 == 0 { &alice } else { &bob };
            TestChain::new(owner, &format!("talk {number}"), 2)
        })
        .collect();
    let entry = |chain: &TestChain, known: usize| {
        let mut record = chain.record(lineage(chain), known);
        record.contents = chain.first(known).contents(300);
        record.at_ms = 1_000 * i64::try_from(chain.len()).expect("small");
        (chain.scope.clone(), record)
    };
    let answer = |chain: &TestChain, text: &str| {
        let hash = AnswerHash::from_text(&Pepper::NONE, &Link::root(&chain.scope), text);
        let history = History::chain(&chain.scope, chain.messages.clone());
        Some((hash, Arc::new(history)))
    };
    let mut first: Batch = chains.iter().map(|chain| entry(chain, 0)).collect();
    for (number, chain) in chains.iter().enumerate().take(5) {
        // The last two of one owner get the same one.
        let text = format!("answer {}", number.min(2));
        first[number].1.lookup_entries.answer = answer(chain, &text);
    }
    first[1].1.thread_key = Some("named".to_owned());
    first[2].1.zone = Some("Europe/Berlin".to_owned());
    let mut second: Batch = chains[..5]
        .iter()
        .map(|chain| entry(&chain.grown("more", 2), 2))
        .collect();
    second[0].1.route_hash = Some([7; 32]);
    // The same answer as before, that of another conversation, and one of its own.
    let grown = |number: usize| chains[number].grown("more", 2);
    second[0].1.lookup_entries.answer = answer(&grown(0), "answer 0");
    second[3].1.lookup_entries.answer = answer(&grown(3), "answer 1");
    second[1].1.lookup_entries.answer = answer(&grown(1), "its own");
    second[4].1.timer = Some(NewTimer {
        alarms: Alarms {
            activate_ms: Some(9_000),
            reflect_ms: None,
        },
        zone: None,
    });
    // A repetition of a first request, and another continuation of it, in the batch of its continuation.
    let mut again = entry(&chains[0], 2);
    (again.1.newly_confirmed, again.1.contents) = (Vec::new(), Vec::new());
    second.push(again);
    second.push(entry(&chains[0].grown("otherwise", 2), 2));
    // What another conversation confirmed: the same family. Not the same chain: it begins with other words.
    let mut alike = TestChain::new(&alice, "begins otherwise", 1);
    alike = alike.grown("talk 2", 2);
    let mut third = vec![entry(&alike, 0), entry(&chains[5].grown("more", 2), 2)];
    third[1].1.thread_key = Some("named".to_owned());
    let fourth = vec![
        entry(&alike.grown("more", 2), 3),
        entry(&alike.grown("more", 2), 3),
    ];
    vec![first, second, third, fourth]
}

async fn lineages(disk: &Disk) -> Vec<(Vec<u8>, i64)> {
    sqlx::query_as("SELECT link, lineage FROM nodes WHERE count = 1")
        .fetch_all(&mut connected(disk).await)
        .await
        .expect("rows")
}

/// What is recorded together is what is recorded one by one, by the statements for one request.
#[tokio::test]
async fn a_batch_is_recorded_like_single_requests() {
    let (together, single) = (Disk::new(), Disk::new());
    let (batches, singles) = (together.open().await, single.open().await);
    for round in 0..4 {
        let batch_of = async |disk: &Disk| {
            let known = lineages(disk).await;
            let lineage = |chain: &TestChain| {
                let first = chain.links[0];
                let found = known.iter().find(|(link, _)| link == first.as_bytes());
                found.map(|(_, lineage)| *lineage)
            };
            rounds(lineage).swap_remove(round)
        };
        let results = batches.record_batch(batch_of(&together).await).await;
        let results = results.expect("recorded");
        for (result, (scope, mut record)) in results.iter().zip(batch_of(&single).await) {
            // A request whose messages are kept is never written together with others.
            record.lookup_entries.kept_messages = vec![(record.tip, "{}".to_owned())];
            let alone = singles.record_batch(vec![(scope, record)]).await;
            let alone = alone.expect("recorded").remove(0).expect("recorded");
            let batched: &RecordedRequest = result.as_ref().expect("recorded");
            assert_eq!(
                batched.shared.thread_key_shared,
                alone.shared.thread_key_shared
            );
            assert_eq!(batched.shared.messages, alone.shared.messages);
        }
        assert_eq!(rows(&together).await, rows(&single).await, "round {round}");
    }
}

fn chains(count: usize) -> Vec<TestChain> {
    let alice = scope("alice");
    (0..count)
        .map(|number| TestChain::new(&alice, &format!("talk {number}"), 2))
        .collect()
}

fn batch(chains: &[TestChain]) -> Batch {
    let entry = |chain: &TestChain| (chain.scope.clone(), chain.record(None, 0));
    chains.iter().map(entry).collect()
}

async fn recorded(store: &SqliteStore, chains: &[TestChain]) -> Vec<bool> {
    let mut found = Vec::new();
    for chain in chains {
        let stored = store.load_chain(&chain.scope, &chain.links).await;
        found.push(stored.expect("read").nodes.len() == chain.len());
    }
    found
}

/// Fails every request with the model "poison", by `action`.
async fn plant(disk: &Disk, action: &str) {
    let planted = format!(
        "CREATE TABLE absent (id INTEGER PRIMARY KEY);
         CREATE TABLE planted (id INTEGER REFERENCES absent (id) DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER poison AFTER INSERT ON requests WHEN NEW.model = 'poison'
         BEGIN {action}; END"
    );
    sqlx::raw_sql(AssertSqlSafe(planted))
        .execute(&mut connected(disk).await)
        .await
        .expect("planted");
}

#[tokio::test]
async fn one_failing_request_does_not_affect_the_others_of_its_batch() {
    let disk = Disk::new();
    let store = disk.open().await;
    plant(&disk, "SELECT RAISE(ABORT, 'poison')").await;
    let chains = chains(5);
    let mut entries = batch(&chains);
    entries[1].1.model = "poison".to_owned();
    // Its beginning is not recorded: the conversation was forgotten meanwhile.
    let gone = chains[3].grown("more", 2);
    entries[3].1 = gone.record(Some(77), 2);
    let results = store.record_batch(entries).await.expect("committed");
    assert!(matches!(results[1], Err(StoreError::Unavailable(_))));
    assert!(matches!(results[3], Err(StoreError::Forgotten)));
    let whole = [true, false, true, false, true];
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), whole);
    assert_eq!(recorded(&store, &chains).await, whole);
}

#[tokio::test]
async fn nothing_of_a_batch_is_recorded_if_it_cannot_be_committed() {
    nothing_is_recorded_after("INSERT INTO planted VALUES (99)").await;
}

/// As a full disk: SQLite ends the whole transaction by itself, so there is no savepoint to go back to.
#[tokio::test]
async fn nothing_of_a_batch_is_recorded_if_its_transaction_is_gone() {
    nothing_is_recorded_after("SELECT RAISE(ROLLBACK, 'poison')").await;
}

async fn nothing_is_recorded_after(action: &str) {
    let disk = Disk::new();
    let store = disk.open().await;
    plant(&disk, action).await;
    let chains = chains(3);
    let mut entries = batch(&chains);
    "poison".clone_into(&mut entries[1].1.model);
    store
        .record_batch(entries)
        .await
        .expect_err("not committed");
    assert_eq!(recorded(&store, &chains).await, [false; 3]);
    let results = store.record_batch(batch(&chains)).await.expect("committed");
    assert!(
        results.iter().all(Result::is_ok),
        "the connection is in order"
    );
    assert_eq!(recorded(&store, &chains).await, [true; 3]);
}

/// The recorder asks nothing more about an ordinary request: a batch says what an operator asks of it.
#[tokio::test]
async fn a_batch_returns_the_operator_requests_of_its_conversations() {
    let disk = Disk::new();
    let store = disk.open().await;
    let chains = chains(3);
    let results = store.record_batch(batch(&chains)).await.expect("committed");
    let lineages: Vec<i64> = results
        .into_iter()
        .map(|result| result.expect("recorded").lineage)
        .collect();
    let focus = OperatorRequest::Observe {
        focus: Some("names".to_owned()),
    };
    let alice = &chains[0].scope;
    assert!(
        store
            .put_operator_request(alice, lineages[1], &focus)
            .await
            .expect("put")
    );
    let longer = chains.iter().zip(&lineages).map(|(chain, lineage)| {
        (
            chain.scope.clone(),
            chain.grown("more", 2).record(Some(*lineage), 2),
        )
    });
    let results = store
        .record_batch(longer.collect())
        .await
        .expect("committed");
    let requests: Vec<Option<OperatorRequest>> = results
        .into_iter()
        .map(|result| result.expect("recorded").operator_request)
        .collect();
    assert_eq!(requests, [None, Some(focus), None]);
}

/// A template that a few conversations have confirmed makes a new one that says it theirs; one that very many have
/// confirmed says nothing of any of them, and is not looked through.
#[tokio::test]
async fn a_message_of_very_many_families_proves_no_membership() {
    for (holders, joins) in [(3, true), (70, false)] {
        let disk = Disk::new();
        let store = disk.open().await;
        let alice = scope("alice");
        let chain = |name: &str| TestChain::new(&alice, name, 1).grown("template", 1);
        for number in 0..holders {
            let chain = chain(&format!("talk {number}"));
            let mut first = chain.record(None, 0);
            first.contents = chain.first(1).contents(300);
            let lineage = store.record(&alice, &first).await.expect("recorded");
            let mut second = chain.grown("more", 1).record(Some(lineage), 2);
            second.contents = chain.contents(300);
            store.record(&alice, &second).await.expect("recorded");
        }
        let last = chain("last");
        let mut record = last.record(None, 0);
        record.contents = last.contents(300);
        let lineage = store.record(&alice, &record).await.expect("recorded");
        let family: i64 = sqlx::query_scalar("SELECT family FROM lineages WHERE id = $1")
            .bind(lineage)
            .fetch_one(&mut connected(&disk).await)
            .await
            .expect("a family");
        assert_eq!(family != lineage, joins, "{holders} families say it");
    }
}
