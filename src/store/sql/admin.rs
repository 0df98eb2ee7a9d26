//! Statements for what people are shown of conversations.

/// Lineages of all owners for the operator, newest first.
pub(in crate::store) const THREADS: &str = "
SELECT l.id, l.tenant, l.resource, l.thread_key, l.model, l.requests, l.first_ms, l.last_ms, l.title
FROM lineages AS l ORDER BY l.last_ms DESC, l.id DESC LIMIT $1";

/// One lineage (`$1`), for the operator.
pub(in crate::store) const THREAD: &str = "
SELECT l.id, l.tenant, l.resource, l.thread_key, l.model, l.requests, l.first_ms, l.last_ms, l.title
FROM lineages AS l WHERE l.id = $1";

/// The title of the lineage of a message (`$3`).
pub(in crate::store) const TITLE: &str = "
SELECT l.title FROM nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

/// Gives the lineage of a message (`$3`) a title (`$4`), where that changes it.
pub(in crate::store) const SET_TITLE: &str = "
UPDATE lineages SET title = $4
WHERE tenant = $1 AND resource = $2 AND title IS NOT $4
  AND id = (SELECT n.lineage FROM nodes AS n
            WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3)";

/// Length, tokens and first link of the longest chain of a lineage (`$3`).
pub(in crate::store) const TOTALS_OF_LINEAGE: &str = "
WITH RECURSIVE up (link) AS (
    SELECT * FROM (
        SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3
        ORDER BY count DESC LIMIT 1)
    UNION ALL
    SELECT n.parent FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link)
SELECT coalesce(max(n.count), 0), coalesce(sum(n.tokens), 0),
       max(CASE WHEN n.count = 1 THEN n.link END)
FROM up CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link";

/// The longest chain of a lineage (`$3`), from its last message back to its first.
pub(in crate::store) const LONGEST_CHAIN: &str = "
WITH RECURSIVE up (link) AS (
    SELECT * FROM (
        SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3
        ORDER BY count DESC LIMIT 1)
    UNION ALL
    SELECT n.parent FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link)
SELECT n.link, n.count, n.role, n.tokens, n.closed, n.turn_end, n.born, n.confirmed, n.seen_ms,
       n.live, n.lineage
FROM up CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.link";

/// Parts of a lineage (`$3`) with their text.
pub(in crate::store) const PARTS_OF_LINEAGE: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.stopgap, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of
FROM nodes AS n CROSS JOIN parts AS t
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND t.tenant = $1 AND t.resource = $2 AND t.to_link = n.link
ORDER BY t.to_count, t.id";

/// Snapshots of a lineage (`$3`) with their text and by which settings they were made.
pub(in crate::store) const SNAPSHOTS_OF_LINEAGE: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, s.segments, s.others, s.made_with
FROM nodes AS n CROSS JOIN snapshots AS s
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND s.tenant = $1 AND s.resource = $2 AND s.to_link = n.link
ORDER BY s.to_count, s.id";

/// How many parts and snapshots a lineage (`$3`) has.
pub(in crate::store) const COUNTS_OF_LINEAGE: &str = "
SELECT coalesce(sum((SELECT count(*) FROM parts AS t
            WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = n.link)), 0),
       coalesce(sum((SELECT count(*) FROM snapshots AS s
            WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = n.link)), 0)
FROM nodes AS n WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3";

// === Forgetting a lineage (`$3`), in this order ===
