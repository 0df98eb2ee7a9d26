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
    for statement in [NOTE_SHARED_TEXTS, NOTE_SHARED_CALLS, REASSIGN_SHARED_ROWS] {
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
