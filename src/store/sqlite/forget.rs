//! Forgetting a conversation: deletes everything of a lineage that no other lineage uses.

use std::collections::BTreeMap;

use sqlx::sqlite::SqliteConnection;

use super::scoped::scoped_query;
use crate::history::Scope;
use crate::store::StoreResult;

/// Takes the origin from one message of another lineage for each text that both hold, unless others hold it from two
/// origins anyway. What two conversations have said proves neither, also when one of them is gone: its client may send it
/// again. One such message is enough: without origin it counts as another conversation's for all that hold the same. A
/// text of fewer than 24 bytes proves nothing anyway (`MIN_DISTINCTIVE_BYTES`).
///
/// Must run behind [`REASSIGN_SHARED_ROWS`], which may move a message with or without origin. Each text is looked at once,
/// and its messages are read up to the first one of another lineage: so the work grows with the lineage, however often it or
/// others say the same.
const NOTE_SHARED_TEXTS: &str = "
WITH own AS MATERIALIZED (
    SELECT n.content, min(n.origin) AS low, max(n.origin) AS high FROM nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3 AND n.content IS NOT NULL
      AND (n.weight >= 24 OR n.ids IS NOT NULL)
    GROUP BY n.content),
held (content, own_low, own_high, low, high) AS MATERIALIZED (
    SELECT own.content, own.low, own.high, (
        SELECT o.origin FROM nodes AS o
        WHERE o.tenant = $1 AND o.resource = $2 AND o.content = own.content AND o.lineage <> $3
        ORDER BY o.origin LIMIT 1), (
        SELECT o.origin FROM nodes AS o
        WHERE o.tenant = $1 AND o.resource = $2 AND o.content = own.content AND o.lineage <> $3
        ORDER BY o.origin DESC LIMIT 1)
    FROM own)
UPDATE nodes SET origin = 0
FROM (
    SELECT (SELECT o.link FROM nodes AS o
            WHERE o.tenant = $1 AND o.resource = $2 AND o.content = held.content
              AND o.origin = held.low AND o.lineage <> $3
              AND o.ids IS NULL LIMIT 1) AS link
    FROM held
    WHERE held.low = held.high AND held.low <> 0
      AND (held.own_low <> held.low OR held.own_high <> held.low)) AS shared
WHERE nodes.tenant = $1 AND nodes.resource = $2 AND nodes.link = shared.link";

/// The same for messages with tool calls, by the ids of these.
const NOTE_SHARED_CALLS: &str = "
WITH own AS MATERIALIZED (
    SELECT n.ids, min(n.origin) AS low, max(n.origin) AS high FROM nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3 AND n.ids IS NOT NULL
    GROUP BY n.ids),
held (ids, own_low, own_high, low, high) AS MATERIALIZED (
    SELECT own.ids, own.low, own.high, (
        SELECT o.origin FROM nodes AS o
        WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = own.ids AND o.lineage <> $3
        ORDER BY o.origin LIMIT 1), (
        SELECT o.origin FROM nodes AS o
        WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = own.ids AND o.lineage <> $3
        ORDER BY o.origin DESC LIMIT 1)
    FROM own)
UPDATE nodes SET origin = 0
FROM (
    SELECT (SELECT o.link FROM nodes AS o
            WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = held.ids
              AND o.origin = held.low AND o.lineage <> $3 LIMIT 1) AS link
    FROM held
    WHERE held.low = held.high AND held.low <> 0
      AND (held.own_low <> held.low OR held.own_high <> held.low)) AS shared
WHERE nodes.tenant = $1 AND nodes.resource = $2 AND nodes.link = shared.link";

/// Moves messages that another lineage needs to that lineage: those it continues, those at which one of
/// its requests ended, and all messages before these.
const REASSIGN_SHARED_ROWS: &str = "
WITH RECURSIVE used (link, heir) AS (
    SELECT n.link, c.lineage FROM nodes AS n CROSS JOIN nodes AS c
    WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
      AND c.tenant = $1 AND c.resource = $2 AND c.parent = n.link AND c.lineage <> $3
    UNION
    SELECT n.link, r.lineage FROM nodes AS n CROSS JOIN requests AS r
    WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
      AND r.tenant = $1 AND r.resource = $2 AND r.tip = n.link AND r.lineage <> $3
    UNION
    SELECT p.link, used.heir FROM used CROSS JOIN nodes AS n CROSS JOIN nodes AS p
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = used.link
      AND p.tenant = $1 AND p.resource = $2 AND p.link = n.parent AND p.lineage = $3)
UPDATE nodes SET lineage = heirs.heir
FROM (SELECT link, min(heir) AS heir FROM used GROUP BY link) AS heirs
WHERE nodes.tenant = $1 AND nodes.resource = $2 AND nodes.link = heirs.link";

/// Snapshots of any conversation that contain text of this one.
const FORGET_SNAPSHOT_PEERS: &str = "
DELETE FROM snapshots WHERE tenant = $1 AND resource = $2 AND id IN (
    SELECT t.snapshot FROM told AS t
    WHERE t.tenant = $1 AND t.resource = $2 AND t.lineage = $3)";

/// Its digest.
const FORGET_DIGEST: &str =
    "DELETE FROM digests WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// Jobs of the messages that the lineage still has.
const FORGET_JOBS: &str = "
DELETE FROM jobs WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Snapshots of these messages.
const FORGET_SNAPSHOTS: &str = "
DELETE FROM snapshots WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Parts of these messages.
const FORGET_PARTS: &str = "
DELETE FROM parts WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// The contents that the lineage confirmed first, also those of messages that were moved. If another chain
/// confirms them again, they count again; then the Observer is shown more rather than less.
const FORGET_CONTENTS: &str =
    "DELETE FROM contents WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The costs of its calls. What the tenant spent stays in `spending`.
const FORGET_COSTS: &str = "DELETE FROM costs WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// Its timeline.
const FORGET_EVENTS: &str =
    "DELETE FROM events WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// Its timer.
const FORGET_TIMER: &str =
    "DELETE FROM timers WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// Its requests.
const FORGET_REQUESTS: &str =
    "DELETE FROM requests WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The alignments of its requests.
const FORGET_VIEWS: &str = "DELETE FROM views WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// Kept texts of the messages that the lineage still has: another lineage may have kept them.
const FORGET_NODE_MESSAGES: &str = "
DELETE FROM messages WHERE tenant = $1 AND resource = $2 AND link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Texts that the lineage kept, also those of messages that were moved.
const FORGET_MESSAGES: &str =
    "DELETE FROM messages WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The answers to its requests.
const FORGET_ANSWERS: &str =
    "DELETE FROM answers WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The messages that the lineage still has.
const FORGET_NODES: &str = "DELETE FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The lineage itself.
const FORGET_LINEAGE: &str = "DELETE FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3";

/// How many rows of each kind were deleted.
pub(super) type Counts = BTreeMap<&'static str, u64>;

/// A pass that deletes conversations ends its transaction after so many rows, and the rest of one conversation. The
/// recorder waits meanwhile.
pub(super) const ROWS_AT_ONCE: u64 = 300;

/// Deletes a lineage, but not what others need of it. Returns how many rows it had.
pub(super) async fn forget(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<u64> {
    reassign_shared_rows(conn, scope, lineage).await?;
    Ok(delete_lineage(conn, scope, lineage).await?.values().sum())
}

/// Moves what another lineage needs to that lineage, and notes what others have said as well. Must run before
/// [`delete_lineage`].
pub(super) async fn reassign_shared_rows(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<()> {
    for statement in [REASSIGN_SHARED_ROWS, NOTE_SHARED_TEXTS, NOTE_SHARED_CALLS] {
        run(conn, statement, scope, lineage).await?;
    }
    Ok(())
}

/// Deletes all rows that the lineage still has.
pub(super) async fn delete_lineage(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<Counts> {
    let mut counts = Counts::new();
    for (name, statement) in [
        ("snapshots", FORGET_SNAPSHOT_PEERS),
        ("digests", FORGET_DIGEST),
        ("jobs", FORGET_JOBS),
        ("snapshots", FORGET_SNAPSHOTS),
        ("parts", FORGET_PARTS),
        ("contents", FORGET_CONTENTS),
        ("costs", FORGET_COSTS),
        ("events", FORGET_EVENTS),
        ("timers", FORGET_TIMER),
        ("requests", FORGET_REQUESTS),
        ("alignments", FORGET_VIEWS),
        ("texts", FORGET_NODE_MESSAGES),
        ("texts", FORGET_MESSAGES),
        ("answers", FORGET_ANSWERS),
        ("messages", FORGET_NODES),
        ("conversations", FORGET_LINEAGE),
    ] {
        *counts.entry(name).or_default() += run(conn, statement, scope, lineage).await?;
    }
    Ok(counts)
}

/// Returns how many rows were changed.
async fn run(
    conn: &mut SqliteConnection,
    statement: &'static str,
    scope: &Scope,
    lineage: i64,
) -> StoreResult<u64> {
    Ok(scoped_query(statement, scope)
        .bind(lineage)
        .execute(conn)
        .await?
        .rows_affected())
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};
    use sqlx::query;

    use super::*;
    use crate::store::SqliteStore;

    /// A message as it is compared: its link, its content, the ids of its calls, and its origin.
    type Row = (Vec<u8>, Vec<u8>, Option<Vec<u8>>, i64);

    /// The links of messages that prove nothing, because another conversation holds them too.
    fn contested(rows: &[Row]) -> Vec<&[u8]> {
        let is_contested = |(_, content, ids, origin): &&Row| {
            let is_same = |other: &&Row| match ids {
                None => other.1 == *content,
                Some(_) => other.2 == *ids,
            };
            *origin == 0 || rows.iter().filter(is_same).any(|other| other.3 != *origin)
        };
        rows.iter()
            .filter(is_contested)
            .map(|row| &*row.0)
            .collect()
    }

    async fn rows(conn: &mut SqliteConnection) -> Vec<Row> {
        let all = "SELECT link, content, ids, origin FROM nodes";
        sqlx::query_as(all).fetch_all(conn).await.expect("the rows")
    }

    async fn insert_some(conn: &mut SqliteConnection, scope: &Scope, random: &mut StdRng) {
        for lineage in 1..=4 {
            let new =
                "INSERT INTO lineages (id, tenant, resource, model, requests, first_ms, last_ms)
                       VALUES ($1, $2, x'', 'm', 1, 1, 1)";
            let new = query(new).bind(lineage).bind(scope.tenant.as_slice());
            new.execute(&mut *conn).await.expect("a lineage");
        }
        for number in 1..=random.random_range(2..12_u8) {
            let new = "INSERT INTO nodes (tenant, resource, link, parent, count, role, tokens, closed, turn_end, born,
                           confirmed, seen_ms, live, lineage, content, ids, weight, origin)
                       VALUES ($1, x'', $2, $3, 1, 'user', 1, 1, 1, 1, 1, 1, 1, $4, $5, $6, 50, $7)";
            let origins = [-3, -1, 1, 3, 1, 3, 0];
            let ids = random.random_range(0..6_u8);
            let new = query(new)
                .bind(scope.tenant.as_slice())
                .bind([number; 32].to_vec())
                // Some follow a message of another lineage, which then is not deleted but moved.
                .bind([random.random_range(0..number); 32].to_vec())
                .bind(random.random_range(1..=4_i64))
                .bind([random.random_range(0..3_u8); 16].to_vec())
                .bind((ids < 2).then(|| [ids; 16].to_vec()))
                .bind(origins[random.random_range(0..origins.len())]);
            new.execute(&mut *conn).await.expect("a message");
        }
    }

    /// Else the client of a deleted conversation gets the memory of one that got the same answer.
    #[tokio::test]
    async fn what_two_conversations_said_stays_contested_whatever_is_deleted() {
        let scope = Scope::new(b"key", None);
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let mut conn = store.writer().await;
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            insert_some(&mut conn, &scope, &mut random).await;
            for lineage in [3, 1, 4, 2] {
                let before = rows(&mut conn).await;
                forget(&mut conn, &scope, lineage).await.expect("deleted");
                let after = rows(&mut conn).await;
                let (was, is) = (contested(&before), contested(&after));
                for (link, ..) in &after {
                    let is_lost = was.contains(&&**link) && !is.contains(&&**link);
                    assert!(
                        !is_lost,
                        "seed {seed}, lineage {lineage}: {before:?} {after:?}"
                    );
                }
            }
            assert!(rows(&mut conn).await.is_empty(), "seed {seed}");
        }
    }
}
