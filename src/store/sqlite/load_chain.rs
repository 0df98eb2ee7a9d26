//! Reading all that is recorded of a chain, in one statement: each statement costs two switches between threads. Reads only.
//! Called for the recorder through [`super::SqliteStore`].

use sqlx::sqlite::SqliteConnection;

use super::scoped::scoped_query;
use crate::history::{Link, Scope};
use crate::store::rows::{self, corrupt, get};
use crate::store::{RecordedChain, StoreResult};

/// What is recorded of a chain (`$3`: its links, the last one first). The last column says what a row is:
///
/// | kind | row |
/// |---|---|
/// | 0 | a recorded message, with its lineage, and the key and the zone of that |
/// | 1 | the last recorded message, if another one follows it |
/// | 2 | a part that ends in the chain, without its text |
/// | 3 | a snapshot that ends in the chain, without its text |
/// | 4 | a job that ends in the chain |
const CHAIN: &str = "
SELECT n.link, n.count, n.role, n.tokens, n.closed, n.turn_end, n.born, n.confirmed, n.seen_ms,
       n.live, n.lineage, l.thread_key, l.zone, 0
FROM json_each($3) AS p CROSS JOIN nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage
UNION ALL
SELECT depth.link, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1
FROM (SELECT n.link FROM json_each($3) AS p CROSS JOIN nodes AS n
      WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
      ORDER BY p.rowid LIMIT 1) AS depth
WHERE EXISTS (SELECT 1 FROM nodes AS n
              WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = depth.link)
UNION ALL
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.stopgap, NULL, NULL, NULL, 2
FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = unhex(p.value)
UNION ALL
SELECT NULL, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, NULL, s.others, NULL, 3
FROM json_each($3) AS p CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = unhex(p.value)
UNION ALL
SELECT j.kind, j.from_link, j.from_count, j.to_link, j.to_count, j.state,
       j.attempts > 0 AND j.leased = 0, NULL, NULL, NULL, NULL, NULL, NULL, 4
FROM json_each($3) AS p CROSS JOIN jobs AS j
WHERE j.tenant = $1 AND j.resource = $2 AND j.to_link = unhex(p.value)";

pub(super) async fn load_chain(
    conn: &mut SqliteConnection,
    scope: Scope,
    chain: Vec<Link>,
) -> StoreResult<RecordedChain> {
    let found = scoped_query(CHAIN, &scope)
        .bind(rows::link_list(chain.iter().rev()))
        .fetch_all(conn)
        .await?;
    let mut recorded = RecordedChain::default();
    let mut messages = Vec::new();
    let mut continued = None;
    for row in &found {
        match get::<i64>(row, 13)? {
            0 => messages.push((rows::node(row)?, row)),
            1 => continued = Some(rows::link(row, 0)?),
            2 => recorded.parts.push(rows::part_meta(row)?),
            3 => recorded.snapshots.push(rows::snapshot_meta(row)?),
            4 => recorded.jobs.push(rows::work(row)?),
            _ => return Err(corrupt("an unknown kind of row")),
        }
    }
    messages.sort_unstable_by_key(|(node, _)| node.count);
    let recorded_count = messages.len();
    for (node, row) in messages {
        // A gap ends the prefix.
        if node.count != recorded.nodes.len() + 1 {
            break;
        }
        recorded.nodes.push(node);
        let lineage = get(row, 10)?;
        if recorded.lineage.replace(lineage) != Some(lineage) {
            recorded.lineages.retain(|(other, _)| *other != lineage);
            recorded.lineages.insert(0, (lineage, get(row, 11)?));
            recorded.zone = get(row, 12)?;
        }
    }
    let Some(last) = recorded.nodes.last() else {
        return Ok(RecordedChain::default());
    };
    let has_gap = recorded.nodes.len() < recorded_count;
    recorded.has_successor = has_gap || continued == Some(last.link);
    recorded
        .parts
        .sort_unstable_by_key(|part| (part.span.to_count, part.id));
    recorded
        .snapshots
        .sort_unstable_by_key(|snapshot| (snapshot.to_count, snapshot.id));
    Ok(recorded)
}
