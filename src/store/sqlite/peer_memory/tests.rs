//! The work of a request and of a recorder step does not grow with the number of conversations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::query_scalar;
use sqlx::sqlite::SqliteConnection;

use super::super::{SqliteStore, find, forget, read, record, snapshots};
use super::*;
use crate::history::Role;
use crate::memory::peer_memory::{MAX_CHANCE_PREFIX, PeerMemory};
use crate::memory::{Node, SnapshotCause};
use crate::store::{LookupEntries, LookupKeys, RequestRecord, SentWith};

/// The work of the queries: instructions of SQLite's virtual machine, and bytes of text that were returned.
#[derive(Debug, PartialEq, Eq)]
struct QueryCosts {
    looked: u64,
    read: u64,
    digest_steps: u64,
    committed: u64,
    recorded: u64,
    bytes: usize,
}

async fn count(conn: &mut SqliteConnection) -> Arc<AtomicU64> {
    let steps = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&steps);
    let mut handle = conn.lock_handle().await.expect("a handle");
    handle.set_progress_handler(1, move || {
        counted.fetch_add(1, Ordering::SeqCst);
        true
    });
    steps
}

/// A resource with this many conversations, each with a digest, one request and its peer intro.
async fn add_conversations(conn: &mut SqliteConnection, scope: &Scope, conversations: i64) {
    const COUNT: &str =
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $4)";
    let root = Link::root(scope);
    for statement in [
        "INSERT INTO lineages (id, tenant, resource, thread_key, family, model, requests, first_ms, last_ms)
         SELECT i, $1, $2, 'thread-' || (100000 + i), i, 'm', 1, i, i FROM n WHERE $3 IS NOT NULL",
        "INSERT INTO nodes (tenant, resource, link, parent, count, role, tokens, closed, turn_end, born, confirmed, seen_ms, live, lineage)
         SELECT $1, $2, unhex(format('%064x', i)), $3, 1, 'user', 9, 1, 0, 1, 0, i, 1, i FROM n",
        "INSERT INTO snapshots (tenant, resource, to_link, to_count, eligible_from, parts, tokens, cause, segments, at_ms, placement, made_with, others)
         SELECT $1, $2, $3, 0, 0, '[]', 0, 'others', format('[\"%08d\"]', i), i, '', '{}', format('{\"lineages\":[%d],\"keys\":[],\"tokens\":9}', 1000000 + i) FROM n",
        "INSERT INTO requests (tenant, resource, tip, count, lineage, snapshot, placement, model, times, first_ms, last_ms)
         SELECT $1, $2, unhex(format('%064x', i)), 1, i, i, '', 'm', 1, i, i FROM n WHERE $3 IS NOT NULL",
        "INSERT INTO digests (tenant, resource, lineage, at_ms, text)
         SELECT $1, $2, i, i, format('* %08d %s', i, hex(zeroblob(500))) FROM n WHERE $3 IS NOT NULL",
    ] {
        let statement = statement.replacen(" SELECT ", &format!(" {COUNT} SELECT "), 1);
        sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(scope.tenant.as_slice())
        .bind(scope.resource_key())
        .bind(root.as_bytes().as_slice())
        .bind(conversations)
        .execute(&mut *conn)
        .await
        .expect("filled");
    }
}

async fn measure(conversations: i64) -> QueryCosts {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let scope = Scope::new(b"tenant", Some(b"user"));
    let root = Link::root(&scope);
    let mut conn = store.writer().await;
    add_conversations(&mut conn, &scope, conversations).await;
    let steps = count(&mut conn).await;
    let take_steps = || steps.swap(0, Ordering::SeqCst);

    // A new conversation, and one that is continued.
    let new = Link::from_slice(&[0xff; 32]).expect("32");
    let mut old = [0; 32];
    old[31] = 7;
    let old = Link::from_slice(&old).expect("32");
    take_steps();
    let mut bytes = 0;
    let mut peer_intro = None;
    for chain in [vec![new], vec![old, new]] {
        let found = find::find_candidates(
            &mut conn,
            scope.clone(),
            chain.clone(),
            LookupKeys::default(),
        )
        .await
        .expect("found");
        assert_eq!(
            found.newest_peer_intro.as_ref().map(|meta| meta.id.0),
            Some(conversations)
        );
        assert_eq!(found.peer_intros.len(), chain.len() - 1);
        assert_eq!(found.sent_prefixes.len(), chain.len() - 1);
        assert!(
            found
                .sent_prefixes
                .iter()
                .all(|(_, begun)| begun.shared_messages == 1)
        );
        assert!(found.depth <= MAX_CHANCE_PREFIX && found.snapshots.is_empty());
        peer_intro = found.newest_peer_intro;
    }
    let looked = take_steps();
    let text = read::snapshot(&mut conn, scope.clone(), peer_intro.expect("an opener").id).await;
    bytes += text.expect("read").expect("a text").segments.concat().len();
    let read = take_steps();

    let digests = peer_digests(
        &mut conn,
        scope.clone(),
        vec![conversations],
        Some("thread-100003".to_owned()),
    )
    .await;
    let digests = digests.expect("read");
    assert_eq!(digests.len(), MAX_CONVERSATIONS as usize);
    assert!(digests.iter().all(|digest| digest.lineage != conversations));
    bytes += digests
        .iter()
        .map(|digest| digest.text.len())
        .sum::<usize>();
    let digest_steps = take_steps();

    let opener = NewSnapshot {
        to: root,
        to_count: 0,
        pin: None,
        parts: Vec::new(),
        tokens: 0,
        cause: SnapshotCause::PeerMemory,
        segments: vec!["what they know".to_owned()],
        placement: String::new(),
        peer_memory: Some(Arc::new(PeerMemory {
            lineages: digests.iter().map(|digest| digest.lineage).collect(),
            keys: Vec::new(),
            tokens: 9,
            binding: None,
        })),
        settings_json: "{}".to_owned(),
        tip: root,
        tip_count: 0,
        eligible_now: true,
        at_ms: 0,
    };
    let made = snapshots::commit(&mut conn, scope.clone(), opener.clone())
        .await
        .expect("committed");
    let committed = take_steps();
    let again = snapshots::commit(&mut conn, scope.clone(), opener)
        .await
        .expect("committed");
    assert_eq!(again, made, "what says the same is not made twice");
    take_steps();

    let node = Node {
        link: new,
        count: 1,
        role: Role::User,
        tokens: 9,
        closed: true,
        turn_end: false,
        first_length: 1,
        confirmed: false,
        received_ms: 0,
        live: true,
    };
    let exchange = RequestRecord {
        thread_key: None,
        lineage: None,
        new_nodes: vec![node],
        parent: root,
        confirmed_count: 0,
        newly_confirmed: Vec::new(),
        contents: Vec::new(),
        tip: new,
        count: 1,
        sent_with: SentWith {
            snapshot: Some(made.meta.id),
            ..SentWith::default()
        },
        model: "m".to_owned(),
        route_hash: None,
        at_ms: 0,
        lookup_entries: LookupEntries::default(),
        timer: None,
        zone: None,
    };
    record::record(&mut conn, &scope, &exchange)
        .await
        .expect("recorded");
    let recorded = take_steps();
    let unused: i64 = query_scalar("SELECT count(*) FROM snapshots WHERE unused = 1")
        .fetch_one(&mut *conn)
        .await
        .expect("counted");
    assert_eq!(unused, 0, "what a request was sent with is kept");
    QueryCosts {
        looked,
        read,
        digest_steps,
        committed,
        recorded,
        bytes,
    }
}

#[tokio::test]
async fn five_thousand_conversations_cost_as_many_query_steps_as_twenty() {
    let few = measure(20).await;
    assert!(
        few.looked > 0 && few.digest_steps > 0 && few.committed > 0,
        "{few:?}"
    );
    assert_eq!(measure(5_000).await, few);
}

/// This many messages that follow one message, each with a request that ends there.
async fn add_successors(conn: &mut SqliteConnection, scope: &Scope, before: Link, count: i64) {
    for statement in [
        "INSERT INTO lineages (id, tenant, resource, family, model, requests, first_ms, last_ms)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $4)
         SELECT i, $1, $2, i, 'm', 1, i, i FROM n WHERE $3 IS NOT NULL",
        "INSERT INTO nodes (tenant, resource, link, parent, count, role, tokens, closed, turn_end, born, confirmed, seen_ms, live, lineage)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $4)
         SELECT $1, $2, unhex(format('%064x', 1000 + i)), $3, 4, 'user', 9, 1, 0, 1, 0, i, 1, i FROM n",
        "INSERT INTO requests (tenant, resource, tip, count, lineage, snapshot, placement, model, times, first_ms, last_ms)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $4)
         SELECT $1, $2, unhex(format('%064x', 1000 + i)), 4, i, NULL, '', 'm', 1, i, i FROM n WHERE $3 IS NOT NULL",
    ] {
        sqlx::query(statement)
            .bind(scope.tenant.as_slice())
            .bind(scope.resource_key())
            .bind(before.as_bytes().as_slice())
            .bind(count)
            .execute(&mut *conn)
            .await
            .expect("filled");
    }
}

/// SQLite's work to look up a request that continues a message which many other requests continue too.
async fn find_steps(children: i64) -> u64 {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let scope = Scope::new(b"tenant", None);
    let chain = [1, 2, 3, 0xff].map(|last| Link::from_slice(&[last; 32]).expect("32"));
    let mut conn = store.writer().await;
    add_successors(&mut conn, &scope, chain[2], children).await;
    let steps = count(&mut conn).await;
    steps.store(0, Ordering::SeqCst);
    let found = find::find_candidates(
        &mut conn,
        scope.clone(),
        chain.to_vec(),
        LookupKeys::default(),
    )
    .await;
    assert!(found.expect("found").sent_prefixes.is_empty());
    steps.load(Ordering::SeqCst)
}

/// Prefixes with another newest message are looked up only for owners with a resource.
#[tokio::test]
async fn other_continuations_add_no_query_steps_without_a_user() {
    let few = find_steps(20).await;
    assert!(few > 0);
    assert_eq!(find_steps(5_000).await, few);
}

#[tokio::test]
async fn an_unused_introduction_is_deleted_after_a_day() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let scope = Scope::new(b"tenant", Some(b"user"));
    let mut conn = store.writer().await;
    add_conversations(&mut conn, &scope, 3).await;
    let root = Link::root(&scope);
    let opener = |text: &str, at_ms: i64| NewSnapshot {
        to: root,
        to_count: 0,
        pin: None,
        parts: Vec::new(),
        tokens: 0,
        cause: SnapshotCause::PeerMemory,
        segments: vec![text.to_owned()],
        placement: String::new(),
        peer_memory: Some(Arc::new(PeerMemory {
            lineages: vec![1, 2],
            keys: Vec::new(),
            tokens: 9,
            binding: None,
        })),
        settings_json: "{}".to_owned(),
        tip: root,
        tip_count: 0,
        eligible_now: true,
        at_ms,
    };
    let mut made = Vec::new();
    for (text, at_ms) in [
        ("a", 0),
        ("b", 1),
        ("c", UNUSED_INTRO_TTL_MS + 1),
        ("d", UNUSED_INTRO_TTL_MS + 2),
    ] {
        let new = snapshots::commit(&mut conn, scope.clone(), opener(text, at_ms)).await;
        made.push(new.expect("committed").meta.id.0);
        if text == "a" {
            mark_peer_intro_used(&mut conn, &scope, Some(SnapshotId(made[0])))
                .await
                .expect("noted");
        }
    }
    let left: Vec<i64> = query_scalar("SELECT id FROM snapshots WHERE id >= $1 ORDER BY id")
        .bind(made[0])
        .fetch_all(&mut *conn)
        .await
        .expect("listed");
    assert_eq!(
        left,
        [made[0], made[2], made[3]],
        "the first was used, the second is a day old"
    );

    // A snapshot with peer memory of a forgotten conversation is refused.
    let gone = forget::forget(&mut conn, &scope, 2)
        .await
        .expect("forgotten");
    assert!(gone > 3, "{gone}");
    let late = snapshots::commit(&mut conn, scope.clone(), opener("e", 0)).await;
    assert!(matches!(late, Err(StoreError::Forgotten)), "{late:?}");
    let left: i64 = query_scalar("SELECT count(*) FROM snapshots WHERE id >= $1")
        .bind(made[0])
        .fetch_one(&mut *conn)
        .await
        .expect("counted");
    assert_eq!(left, 0, "all of them contain its digest");
}
