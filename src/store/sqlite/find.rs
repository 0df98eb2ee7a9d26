//! Finding what memory may know a request by: one statement, [`FIND`], and how its rows are read. Reads
//! only. Called for the request path through [`super::SqliteStore`].

use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::scoped::scoped_query;
use crate::history::{Link, Scope};
use crate::memory::SnapshotId;
use crate::memory::alignment::{LineageName, Origin, PathEntry, SummaryCandidate};
use crate::store::rows::{self, corrupt, get};
use crate::store::{Candidates, LookupKeys, PrefixTrim, SentPrefix, StoreResult};

/// Everything that is recorded of a request's chain and of the other chains it may stand on.
///
/// Parameters: `$3` the links, the last one first, `$4` the tip, `$5` pairs of anchor and position, the last one first, `$6` answer hash, position, and
/// content of the message if the model is its author, `$7` the number of links, `$8` the root, `$9` the model
/// (NULL: every model), `$10` the hash of the system message, `$11` whether only an anchor of one message counts.
///
/// The other chains are: the *base* of the longest aligned prefix; the *path* of the latest message that an
/// anchor finds; and the *answered* chain, whose answer the client has put into its history. An answer that
/// something follows in its own chain does not count: a client that quotes it elsewhere talks about
/// something else. Nor does an answer that any chain has as an answer of the model: a summary is first sent back in
/// place of what it summarises, and other answers in their turn. A client that drops its oldest messages may begin with
/// such an answer, and may have rewritten what stood in front of it. Whether the answered chain had the same system message,
/// its requests of more than two messages say: shorter ones may be another conversation's (`MAX_CHANCE_PREFIX`).
///
/// | kind | row |
/// |---|---|
/// | 0 | a snapshot on the chain or on one of the other chains |
/// | 1 | what the tip was sent with |
/// | 2 | how much of the chain itself is recorded |
/// | 3 | the alignment of the longest aligned prefix |
/// | 4, 5, 6 | a message of the base, of the path, of the answered chain; from the end to the beginning |
/// | 7 | what the tip was sent with, if it is an aligned request |
/// | 8, 9 | the positions in the request at which the path and the answer were found |
/// | 10 | how far requests on the chain were trimmed, and for which model |
/// | 11 | what the request was sent with that ended where the path ends |
/// | 12 | the longest prefix that was sent as a request: of the chain, and of each other chain |
/// | 13 | the latest peer intro (a snapshot that covers no message) |
/// | 14 | as 10, for the other chains |
/// | 15 | the peer intros among the snapshots of 12 |
/// | 16 | the names of the lineages at the ends of the other chains |
///
/// For 12, a request also counts as a prefix if only its newest message differs, because some clients
/// take back what they put into that message. It must share more messages with this request than chance
/// explains (`MAX_CHANCE_PREFIX`).
///
/// `CROSS JOIN` fixes the order of a join in SQLite: the links come first. An anchor inside the recorded
/// part of the chain leads to no path. The work is bounded: at most 96 anchors, and chains of at most
/// 20,000 messages together.
///
/// Keys are hashes, so each row that is looked for lies on a page of its own, and after a restart each page is read from the
/// disk. So the search begins at the end of the chain and ends at the first row that is found (`ORDER BY p.rowid LIMIT 1`): of an ordinary
/// conversation, however long, a few rows are read.
const FIND: &str = "
WITH RECURSIVE
depth (count, lineage, origin) AS (
    SELECT coalesce(max(count), 0), lineage, origin FROM (
        SELECT n.count, n.lineage, n.origin FROM json_each($3) AS p CROSS JOIN nodes AS n
        WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
        ORDER BY p.rowid LIMIT 1)),
alias (count, base, runs, client, path, proof, held_from, held_since) AS (
    SELECT * FROM (
        SELECT v.count, v.base, v.runs, v.client, v.path, v.proof, v.held_from, v.held_since
        FROM json_each($3) AS p CROSS JOIN views AS v
        WHERE v.tenant = $1 AND v.resource = $2 AND v.tip = unhex(p.value)
        ORDER BY p.rowid LIMIT 1)),
hit (place, link) AS (
    SELECT * FROM (
        SELECT p.value ->> 1, CASE WHEN $11
               THEN (SELECT CASE count(*) WHEN 1 THEN max(link) END FROM (
                         SELECT n.link FROM nodes AS n
                         WHERE n.tenant = $1 AND n.resource = $2 AND n.anchor = unhex(p.value ->> 0)
                         LIMIT 2))
               ELSE (SELECT n.link FROM nodes AS n
                     WHERE n.tenant = $1 AND n.resource = $2 AND n.anchor = unhex(p.value ->> 0)
                     ORDER BY n.seen_ms DESC LIMIT 1)
               END AS link
        FROM json_each($5) AS p
        WHERE p.value ->> 1 >= (SELECT depth.count FROM depth) AND link IS NOT NULL
        ORDER BY p.rowid LIMIT 1)),
answer (place, link, mark) AS (
    SELECT * FROM (
        SELECT p.value ->> 1, a.tip, a.mark FROM json_each($6) AS p CROSS JOIN answers AS a
        WHERE a.tenant = $1 AND a.resource = $2 AND a.mark = unhex(p.value ->> 0)
          AND a.tip <> zeroblob(32)
          AND NOT EXISTS (SELECT 1 FROM nodes AS n
                          WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = a.tip)
          AND NOT EXISTS (SELECT 1 FROM nodes AS n
                          WHERE n.tenant = $1 AND n.resource = $2 AND n.content = unhex(p.value ->> 2)
                            AND n.role = 'assistant')
        ORDER BY p.rowid LIMIT 1)),
up (kind, link) AS (
    SELECT 4, base FROM alias
    UNION ALL
    SELECT 5, link FROM hit
    UNION ALL
    SELECT 6, answer.link FROM answer
    UNION ALL
    SELECT up.kind, n.parent FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link
    LIMIT 20000),
longest (link, shared) AS (
    SELECT * FROM (
        SELECT unhex(p.value), $7 - p.key FROM json_each($3) AS p
        WHERE EXISTS (SELECT 1 FROM requests AS r
                      WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = unhex(p.value))
           OR ($2 <> x'' AND $7 - p.key >= 3 AND EXISTS (
                   SELECT 1 FROM nodes AS n CROSS JOIN requests AS r
                   WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = unhex(p.value)
                     AND r.tenant = $1 AND r.resource = $2 AND r.tip = n.link))
        ORDER BY p.rowid LIMIT 1)),
begun (kind, tip, shared, snapshot, lineage) AS (
    SELECT * FROM (
        SELECT 0, r.tip, begun.shared, r.snapshot, r.lineage
        FROM (SELECT link, shared, 1 AS own FROM longest
              UNION ALL SELECT n.link, longest.shared, 0 FROM longest CROSS JOIN nodes AS n
              WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = longest.link
                AND $2 <> x'' AND longest.shared >= 3) AS begun
        CROSS JOIN requests AS r
        WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = begun.link
        ORDER BY begun.own DESC, begun.own AND coalesce(r.model = $9, 0) DESC, r.snapshot
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
SELECT 1, r.snapshot, NULL, r.asked_usage, r.trimmed_to, r.trim_pin, r.trim_wording, r.cache_key, r.cache_breakpoint,
       r.placement, NULL, NULL, NULL
FROM requests AS r
WHERE r.tenant = $1 AND r.resource = $2 AND r.tip = $4 AND ($9 IS NULL OR r.model = $9)
UNION ALL
SELECT 2, depth.count, depth.lineage, depth.count BETWEEN 1 AND 2 AND EXISTS (
           SELECT 1 FROM nodes AS n
           WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = unhex($3 ->> ($7 - depth.count))),
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
       n.content, n.ids, n.role, n.anchor, n.parent, n.live + 2 * n.given + 8 * n.summary_start + 4 * (
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
SELECT 7, r.snapshot, NULL, r.asked_usage, r.trimmed_to, r.trim_pin, r.trim_wording, r.cache_key, r.cache_breakpoint,
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
             AND r.count > 2 AND r.system = $10),
       NULL, NULL, answer.mark, NULL, NULL, NULL, NULL, NULL, NULL FROM answer
UNION ALL
SELECT 10, NULL, NULL, NULL, max(c.trimmed_to), c.trim_pin, c.trim_wording, NULL, NULL, c.model, NULL, NULL, NULL
FROM json_each($3) AS p CROSS JOIN requests AS c INDEXED BY requests_trimmed
WHERE c.tenant = $1 AND c.resource = $2 AND c.tip = unhex(p.value) AND c.trimmed_to IS NOT NULL
GROUP BY c.model
UNION ALL
SELECT 11, r.snapshot, NULL, r.asked_usage, r.trimmed_to, r.trim_pin, r.trim_wording, r.cache_key, r.cache_breakpoint,
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
FROM up CROSS JOIN requests AS c INDEXED BY requests_trimmed
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

/// Runs [`FIND`]. An empty chain has no candidates.
pub(super) async fn find_candidates(
    conn: &mut SqliteConnection,
    scope: Scope,
    chain: Vec<Link>,
    keys: LookupKeys,
) -> StoreResult<Candidates> {
    let Some(tip) = chain.last() else {
        return Ok(Candidates::default());
    };
    let root = Link::root(&scope);
    let rows = scoped_query(FIND, &scope)
        .bind(rows::link_list(chain.iter().rev()))
        .bind(tip.as_bytes().as_slice())
        .bind(rows::mark_list(&keys.anchors))
        .bind(rows::answer_list(&keys.answers, &keys.answer_contents))
        .bind(rows::count(chain.len()))
        .bind(root.as_bytes().as_slice())
        .bind(&keys.model)
        .bind(keys.system.map(|mark| mark.as_bytes().to_vec()))
        .bind(keys.unique_anchors)
        .fetch_all(conn)
        .await?;
    read_candidates(&rows)
}

/// Reads the rows of [`FIND`]. Their first column is the kind.
fn read_candidates(rows: &[SqliteRow]) -> StoreResult<Candidates> {
    let mut candidates = Candidates::default();
    let (mut path, mut base, mut answered) = (Vec::new(), Vec::new(), Vec::new());
    let mut hit = None;
    let mut answer: Option<SummaryCandidate> = None;
    for row in rows {
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
                    start: None,
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

/// Messages in the order of their chain; empty unless all messages from the first one on are there.
fn complete_path(mut entries: Vec<(usize, PathEntry)>) -> Vec<PathEntry> {
    entries.sort_unstable_by_key(|(count, _)| *count);
    let gapless = entries
        .iter()
        .enumerate()
        .all(|(index, (count, _))| *count == index + 1);
    if !gapless {
        return Vec::new();
    }
    entries.into_iter().map(|(_, entry)| entry).collect()
}
