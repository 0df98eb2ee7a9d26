//! Statements about what the conversations of one user are told of each other. As in [`super`].

/// What others may be told (`$4`) of a lineage (`$3`).
pub(in crate::store) const PUBLISH_DIGEST: &str = "
INSERT INTO digests (tenant, resource, lineage, at_ms, text)
SELECT $1, $2, l.id, l.last_ms, $4
FROM lineages AS l WHERE l.tenant = $1 AND l.resource = $2 AND l.id = $3
ON CONFLICT (tenant, resource, lineage)
DO UPDATE SET at_ms = excluded.at_ms, text = excluded.text";

/// What may be told of the latest conversations (`$5` of them), without some lineages (`$3`) and those
/// under a name (`$4`), nor any branch of their families: it knows as well what stood before it left. What
/// left after `$6` messages at most may share a greeting and nothing else. An index in order under a LIMIT:
/// as much is read of thousands as of a few.
pub(in crate::store) const PEER_DIGESTS: &str = "
SELECT d.lineage, l.thread_key, l.title, d.at_ms, d.text
FROM digests AS d CROSS JOIN lineages AS l
WHERE d.tenant = $1 AND d.resource = $2
  AND d.lineage NOT IN (SELECT p.value FROM json_each($3) AS p)
  AND l.tenant = $1 AND l.resource = $2 AND l.id = d.lineage
  AND ($4 IS NULL OR l.thread_key IS NOT $4)
  AND NOT (
      EXISTS (SELECT 1 FROM json_each($3) AS p CROSS JOIN lineages AS f
              WHERE f.tenant = $1 AND f.resource = $2 AND f.id = p.value AND f.family = l.family)
      AND $6 < (SELECT min(n.count) - 1 FROM nodes AS n
                WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = d.lineage))
ORDER BY d.at_ms DESC LIMIT $5";

/// How many of some lineages (`$3`) are still this owner's.
pub(in crate::store) const COUNT_LINEAGES: &str = "
SELECT count(*) FROM json_each($3) AS p CROSS JOIN lineages AS l
WHERE l.tenant = $1 AND l.resource = $2 AND l.id = p.value";

/// A snapshot (`$4`) holds something of some lineages (`$3`).
pub(in crate::store) const NEW_SNAPSHOT_PEERS: &str = "
INSERT INTO told (tenant, resource, lineage, snapshot)
SELECT $1, $2, p.value, $4 FROM json_each($3) AS p WHERE true";

/// The latest snapshot that covers nothing (`$3`: the root), with its text.
pub(in crate::store) const NEWEST_PEER_INTRO: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, s.segments, s.others
FROM snapshots AS s WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = $3
ORDER BY s.id DESC LIMIT 1";

/// A request was recorded with a snapshot (`$3`).
pub(in crate::store) const USE_PEER_INTRO: &str = "
UPDATE snapshots SET unused = 0
WHERE tenant = $1 AND resource = $2 AND id = $3 AND unused = 1";

/// Snapshots that cover nothing, that were made before `$3` and that no request was recorded with, but
/// for the latest (`$4`).
pub(in crate::store) const DROP_PEER_INTROS: &str = "
DELETE FROM snapshots WHERE tenant = $1 AND resource = $2 AND id IN (
    SELECT s.id FROM snapshots AS s
    WHERE s.tenant = $1 AND s.resource = $2 AND s.unused = 1 AND s.at_ms < $3 AND s.id <> $4
    ORDER BY s.at_ms LIMIT 64)";

/// Snapshots that cover nothing and that requests of a lineage (`$3`) were sent with, with their text.
pub(in crate::store) const PEER_INTROS_OF_LINEAGE: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, s.segments, s.others, s.made_with
FROM requests AS r CROSS JOIN snapshots AS s
WHERE r.tenant = $1 AND r.resource = $2 AND r.lineage = $3
  AND s.tenant = $1 AND s.resource = $2 AND s.id = r.snapshot AND s.to_count = 0
GROUP BY s.id ORDER BY s.id";

// === Forgetting a lineage (`$3`) ===

/// Snapshots that hold something of it, whosever they are.
pub(in crate::store) const FORGET_SNAPSHOT_PEERS: &str = "
DELETE FROM snapshots WHERE tenant = $1 AND resource = $2 AND id IN (
    SELECT t.snapshot FROM told AS t
    WHERE t.tenant = $1 AND t.resource = $2 AND t.lineage = $3)";

/// What others may be told of it.
pub(in crate::store) const FORGET_DIGEST: &str =
    "DELETE FROM digests WHERE tenant = $1 AND resource = $2 AND lineage = $3";
