//! Finding what memory may know a request by: one statement, [`FIND`], and how its rows are read. Reads
//! only. Called for the request path through [`super::SqliteStore`].

use sqlx::sqlite::SqliteConnection;

use super::scoped::scoped_query;
use crate::history::{Link, Scope};
use crate::memory::SnapshotId;
use crate::memory::alignment::{LineageName, Origin, PathEntry, SummaryCandidate};
use crate::store::rows::{self, corrupt, get};
use crate::store::{Candidates, LookupKeys, PrefixTrim, SentPrefix, StoreResult};

/// A request as `FIND` takes it.
pub(super) struct FindQuery {
    links: String,
    tip: Link,
    root: Link,
    length: usize,
    anchors: String,
    answers: String,
    model: Option<String>,
    system: Option<Vec<u8>>,
}

impl FindQuery {
    pub(super) fn new(scope: &Scope, chain: &[Link], keys: &LookupKeys) -> Option<Self> {
        Some(Self {
            links: rows::link_list(chain),
            tip: *chain.last()?,
            root: Link::root(scope),
            length: chain.len(),
            anchors: rows::mark_list(&keys.anchors),
            answers: rows::mark_list(&keys.answers),
            model: keys.model.clone(),
            system: keys.system.map(|mark| mark.as_bytes().to_vec()),
        })
    }
}

/// What is known of a request's chain (`$3`: links), and of the path it may stand on.
///
/// Snapshots on either (rows of kind 0), what the tip (`$4`) was sent with (1), how much of the chain
/// itself is recorded (2), the longest beginning of it that is a view of another chain (3), that
/// chain from its end to its beginning (4), the same of the path that was found by the anchors (`$5`:
/// pairs of anchor and place) (5) or by an answer that the client put into its history (`$6`: pairs
/// of mark and place) (6), what the tip was sent with if it is a view (`$7`: its length) (7), and
/// where in the request 5 and 6 were found (8, 9), how far requests of the chain were trimmed, for which
/// model (10), what a request was sent with that ended where 5 begins (11), the longest beginning of the
/// chain that went out, and of each of 4 to 6 (12), the latest snapshot that covers nothing (`$8`: the
/// root) (13), what 10 says for the chains of 4 to 6 (14), and the snapshots among 12 that cover nothing
/// (15). A beginning is also a request that differs in its newest message alone, since there are clients
/// that take back what they put into that, if it has more in common with this one than chance
/// (`memory::others::CHANCE` messages). What was sent counts for the model `$9`, where one is named. An answer that was followed in its own chain is an
/// ordinary one: whoever quotes it elsewhere talks of something else.
///
/// `CROSS JOIN` is SQLite's way to say that the links drive the join. The latest message of the
/// request that is known anywhere leads to the path; one that the chain itself holds leads nowhere.
/// Bounded: a list of at most a hundred anchors, and paths of at most so many messages.
const FIND: &str = "
WITH RECURSIVE
depth (count, lineage, origin) AS (
    SELECT coalesce(max(n.count), 0), n.lineage, n.origin FROM json_each($3) AS p CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)),
alias (count, base, runs, client, path, proof, held_from, held_since) AS (
    SELECT * FROM (
        SELECT v.count, v.base, v.runs, v.client, v.path, v.proof, v.held_from, v.held_since
        FROM json_each($3) AS p CROSS JOIN views AS v
        WHERE v.tenant = $1 AND v.resource = $2 AND v.tip = unhex(p.value)
        ORDER BY v.count DESC LIMIT 1)),
hit (place, link) AS (
    SELECT * FROM (
        SELECT p.value ->> 1 AS place,
               (SELECT n.link FROM nodes AS n
                WHERE n.tenant = $1 AND n.resource = $2 AND n.anchor = unhex(p.value ->> 0)
                ORDER BY n.seen_ms DESC LIMIT 1) AS link
        FROM json_each($5) AS p)
    WHERE link IS NOT NULL ORDER BY place DESC LIMIT 1),
answer (place, link, mark) AS (
    SELECT * FROM (
        SELECT p.value ->> 1, a.tip, a.mark FROM json_each($6) AS p CROSS JOIN answers AS a
        WHERE a.tenant = $1 AND a.resource = $2 AND a.mark = unhex(p.value ->> 0)
          AND a.tip <> zeroblob(32)
          AND NOT EXISTS (SELECT 1 FROM nodes AS n
                          WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = a.tip)
        ORDER BY p.key LIMIT 1)),
up (kind, link) AS (
    SELECT 4, base FROM alias
    UNION ALL
    SELECT 5, hit.link FROM hit CROSS JOIN depth WHERE hit.place >= depth.count
    UNION ALL
    SELECT 6, answer.link FROM answer
    UNION ALL
    SELECT up.kind, n.parent FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link
    LIMIT 20000),
begun (kind, tip, shared, snapshot, lineage) AS (
    SELECT * FROM (
        SELECT 0, r.tip, begun.shared, r.snapshot, r.lineage
        FROM (SELECT unhex(p.value) AS link, p.key + 1 AS shared, 1 AS own FROM json_each($3) AS p
              UNION ALL SELECT n.link, p.key + 1, 0 FROM json_each($3) AS p CROSS JOIN nodes AS n
              WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = unhex(p.value)
                AND $2 <> x'' AND p.key >= 2) AS begun
        CROSS JOIN requests AS r
        WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = begun.link
        ORDER BY begun.shared DESC, begun.own DESC,
                 begun.own AND coalesce(r.model = $9, 0) DESC, r.snapshot
        LIMIT 1)
    UNION ALL
    SELECT kind, tip, count, snapshot, lineage FROM (
        SELECT up.kind, r.tip, r.count, r.snapshot, r.lineage, row_number() OVER (
            PARTITION BY up.kind
            ORDER BY r.count DESC, coalesce(r.model = $9, 0) DESC, r.snapshot) AS place
        FROM up CROSS JOIN requests AS r
        WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = up.link)
    WHERE place = 1),
newest (id) AS (
    SELECT * FROM (
        SELECT s.id FROM snapshots AS s
        WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = $8
        ORDER BY s.id DESC LIMIT 1))
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, NULL, s.others, NULL
FROM json_each($3) AS p CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = unhex(p.value)
UNION ALL
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, NULL, s.others, NULL
FROM up CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = up.link
UNION ALL
SELECT 1, r.snapshot, NULL, r.asked_usage, r.trimmed_to, r.trim_pin, r.trim_wording, NULL, NULL,
       r.placement, NULL, NULL, NULL
FROM requests AS r
WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = $4 AND ($9 IS NULL OR r.model = $9)
UNION ALL
SELECT 2, depth.count, depth.lineage, depth.count BETWEEN 1 AND 2 AND EXISTS (
           SELECT 1 FROM nodes AS n
           WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = unhex($3 ->> (depth.count - 1))),
       depth.origin, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM depth
UNION ALL
SELECT 3, alias.count, alias.base, alias.client, alias.path, alias.held_from, alias.held_since, NULL,
       alias.runs, NULL, NULL, alias.proof, EXISTS (
           SELECT 1 FROM json_each(alias.proof) AS w CROSS JOIN nodes AS n
           WHERE n.tenant = $1 AND n.resource = $2 AND n.content = unhex(w.value ->> 0)
             AND (n.origin < w.value ->> 1 OR n.origin > w.value ->> 1))
       OR EXISTS (
           SELECT 1 FROM json_each(alias.proof) AS w CROSS JOIN nodes AS n
           WHERE n.tenant = $1 AND n.resource = $2 AND n.ids = unhex(w.value ->> 0)
             AND n.role = 'assistant' AND (n.origin < w.value ->> 1 OR n.origin > w.value ->> 1))
       OR EXISTS (
           SELECT 1 FROM json_each(alias.proof) AS w CROSS JOIN answers AS a
           WHERE a.tenant = $1 AND a.resource = $2 AND a.mark = unhex(w.value ->> 0)
             AND a.tip = zeroblob(32))
FROM alias
UNION ALL
SELECT up.kind, n.count, n.link, n.weight, n.lineage, (EXISTS (
           SELECT 1 FROM parts AS t
           WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = n.link AND t.kind = 'chunk')
       OR EXISTS (
           SELECT 1 FROM jobs AS j
           WHERE j.tenant = $1 AND j.resource = $2 AND j.to_link = n.link AND j.kind = 'chunk'
             AND j.state = 'open'))
       + 2 * EXISTS (SELECT 1 FROM messages AS m
                     WHERE m.tenant = $1 AND m.resource = $2 AND m.link = n.link),
       n.content, n.ids, n.role, n.anchor, n.parent, n.live + 2 * n.given + 4 * (
           n.origin = 0 OR CASE WHEN n.ids IS NULL
           THEN EXISTS (
               SELECT 1 FROM nodes AS o
               WHERE o.tenant = $1 AND o.resource = $2 AND o.content = n.content AND o.origin < n.origin)
             OR EXISTS (
               SELECT 1 FROM nodes AS o
               WHERE o.tenant = $1 AND o.resource = $2 AND o.content = n.content AND o.origin > n.origin)
           ELSE EXISTS (
               SELECT 1 FROM nodes AS o
               WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = n.ids AND o.origin < n.origin)
             OR EXISTS (
               SELECT 1 FROM nodes AS o
               WHERE o.tenant = $1 AND o.resource = $2 AND o.ids = n.ids AND o.origin > n.origin)
           END), n.origin
FROM up CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link
UNION ALL
SELECT 7, r.snapshot, NULL, r.asked_usage, r.trimmed_to, r.trim_pin, r.trim_wording, NULL, NULL,
       r.placement, NULL, NULL, NULL
FROM alias CROSS JOIN requests AS r
WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = alias.base AND alias.count = $7
  AND ($9 IS NULL OR r.model = $9)
UNION ALL
SELECT 8, hit.place, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM hit
UNION ALL
SELECT 9, answer.place, NULL, EXISTS (
           SELECT 1 FROM up CROSS JOIN requests AS r
           WHERE up.kind = 6 AND r.tenant = $1 AND r.resource = $2 AND r.tip = up.link
             AND r.system = $10),
       NULL, NULL, answer.mark, NULL, NULL, NULL, NULL, NULL, NULL FROM answer
UNION ALL
SELECT 10, NULL, NULL, NULL, max(c.trimmed_to), c.trim_pin, c.trim_wording, NULL, NULL, c.model, NULL, NULL, NULL
FROM json_each($3) AS p CROSS JOIN requests AS c
WHERE c.tenant = $1 AND c.resource = $2 AND c.tip = unhex(p.value) AND c.trimmed_to IS NOT NULL
GROUP BY c.model
UNION ALL
SELECT 11, r.snapshot, NULL, r.asked_usage, r.trimmed_to, r.trim_pin, r.trim_wording, NULL, NULL,
       r.placement, NULL, NULL, NULL
FROM hit CROSS JOIN requests AS r
WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = hit.link
  AND ($9 IS NULL OR r.model = $9)
UNION ALL
SELECT 12, begun.kind, begun.tip, begun.shared, begun.snapshot, l.thread_key,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM begun CROSS JOIN lineages AS l
WHERE l.tenant = $1 AND l.resource = $2 AND l.id = begun.lineage
UNION ALL
SELECT 15, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, NULL, s.others, NULL
FROM begun CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.id = begun.snapshot AND s.to_count = 0
UNION ALL
SELECT 13, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, NULL, s.others, NULL
FROM newest CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.id = newest.id
UNION ALL
SELECT 14, NULL, c.tip, NULL, max(c.trimmed_to), c.trim_pin, c.trim_wording, NULL, NULL, c.model, NULL, NULL, NULL
FROM up CROSS JOIN requests AS c
WHERE c.tenant = $1 AND c.resource = $2 AND c.tip = up.link AND c.trimmed_to IS NOT NULL
GROUP BY c.model
UNION ALL
SELECT DISTINCT 16, l.id, NULL, 2 > (
           SELECT count(*) FROM (
               SELECT 1 FROM lineages AS o
               WHERE o.tenant = $1 AND o.resource = $2 AND o.thread_key = l.thread_key LIMIT 2)),
       NULL, l.thread_key, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM (SELECT link FROM hit UNION ALL SELECT base FROM alias UNION ALL SELECT link FROM answer) AS ends
CROSS JOIN nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = ends.link
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

pub(super) async fn find_candidates(
    conn: &mut SqliteConnection,
    scope: Scope,
    query_values: FindQuery,
) -> StoreResult<Candidates> {
    let rows = scoped_query(FIND, &scope)
        .bind(query_values.links)
        .bind(query_values.tip.as_bytes().as_slice())
        .bind(query_values.anchors)
        .bind(query_values.answers)
        .bind(rows::count(query_values.length))
        .bind(query_values.root.as_bytes().as_slice())
        .bind(query_values.model)
        .bind(query_values.system)
        .fetch_all(conn)
        .await?;
    let mut candidates = Candidates::default();
    let (mut path, mut base, mut answered) = (Vec::new(), Vec::new(), Vec::new());
    let mut hit = None;
    let mut answer: Option<SummaryCandidate> = None;
    for row in &rows {
        match get::<i64>(row, 0)? {
            0 => {
                let meta = rows::snapshot_meta(row)?;
                if candidates.snapshots.iter().all(|known| known.id != meta.id) {
                    candidates.snapshots.push(meta);
                }
            }
            1 => candidates.sent_with = Some(rows::sent_with(row)?),
            2 => {
                candidates.depth = rows::int(row, 1)?;
                candidates.lineage = get(row, 2)?;
                candidates.continued_elsewhere = get(row, 3)?;
                candidates.depth_origin = Origin(get::<Option<i64>>(row, 4)?.unwrap_or_default());
            }
            3 => {
                candidates.alignment = Some(rows::stored_alignment(row)?);
                candidates.alignment_holds = !get::<bool>(row, 12)?;
            }
            4 => base.push(rows::step(row)?),
            5 => path.push(rows::step(row)?),
            6 => answered.push(rows::step(row)?),
            7 => candidates.aligned_sent_with = Some(rows::sent_with(row)?),
            8 => hit = Some(rows::int(row, 1)?),
            9 => {
                answer = Some(SummaryCandidate {
                    count: rows::int(row, 1)?,
                    hash: rows::mark(row, 6)?.ok_or_else(|| corrupt("an answer without a mark"))?,
                    path: Vec::new(),
                    same_system: get(row, 3)?,
                    is_unique: true,
                });
            }
            10 => {
                let model = get(row, 9)?;
                let carried = rows::trim(row)?.map(|trim| PrefixTrim { trim, model });
                candidates.prefix_trims.extend(carried);
            }
            11 => candidates.path_sent_with = Some(rows::sent_with(row)?),
            12 => {
                let on_other_chain = get::<i64>(row, 1)? != 0;
                let tip = on_other_chain.then(|| rows::link(row, 2)).transpose()?;
                let sent_prefix = SentPrefix {
                    shared_messages: rows::int(row, 3)?,
                    snapshot: get::<Option<i64>>(row, 4)?.map(SnapshotId),
                    thread_key: get(row, 5)?,
                };
                candidates.sent_prefixes.push((tip, sent_prefix));
            }
            13 => candidates.newest_peer_intro = Some(rows::snapshot_meta(row)?),
            14 => {
                let (tip, model) = (rows::link(row, 2)?, get(row, 9)?);
                let carried = rows::trim(row)?.map(|trim| PrefixTrim { trim, model });
                candidates
                    .path_trims
                    .extend(carried.map(|carried| (tip, carried)));
            }
            15 => candidates.peer_intros.push(rows::snapshot_meta(row)?),
            16 => {
                let name = LineageName {
                    key: get(row, 5)?,
                    is_unique: get(row, 3)?,
                };
                candidates.lineage_names.push((get(row, 1)?, name));
            }
            _ => return Err(corrupt("an unknown kind of row")),
        }
    }
    candidates.tip_recorded = candidates.depth == query_values.length;
    candidates
        .snapshots
        .sort_unstable_by_key(|s| (s.to_count, s.id));
    candidates.base_chain = complete_path(base);
    candidates.path = hit.map(|place| (place, complete_path(path)));
    candidates.answered = answer.map(|answer| SummaryCandidate {
        path: complete_path(answered),
        ..answer
    });
    Ok(candidates)
}

/// Steps in the order of their chain; nothing unless they reach from its first message on.
fn complete_path(mut steps: Vec<(usize, PathEntry)>) -> Vec<PathEntry> {
    steps.sort_unstable_by_key(|(count, _)| *count);
    let gapless = steps
        .iter()
        .enumerate()
        .all(|(index, (count, _))| *count == index + 1);
    if !gapless {
        return Vec::new();
    }
    steps.into_iter().map(|(_, step)| step).collect()
}
