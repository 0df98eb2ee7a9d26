//! Statements for what calls cost and what happened.

/// One more call for the conversation of a message (`$3`).
pub(in crate::store) const ADD_COST: &str = "
INSERT INTO costs (tenant, resource, lineage, kind, calls, sent, cached, written, guessed)
SELECT $1, $2, n.lineage, $4, 1, $5, $6, $7, $8
FROM nodes AS n WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
ON CONFLICT (tenant, resource, lineage, kind)
DO UPDATE SET calls = costs.calls + 1, sent = costs.sent + excluded.sent,
              cached = costs.cached + excluded.cached, written = costs.written + excluded.written,
              guessed = costs.guessed + excluded.guessed";

/// So many tokens (`$4`) more on a day (`$3`).
pub(in crate::store) const ADD_SPENDING: &str = "
INSERT INTO spending (tenant, resource, day, tokens) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, day, resource)
DO UPDATE SET tokens = spending.tokens + excluded.tokens";

/// Days before `$3` are of no use.
pub(in crate::store) const FORGET_SPENDING: &str =
    "DELETE FROM spending WHERE tenant = $1 AND resource = $2 AND day < $3";

/// What a tenant (`$1`) spent on a day (`$2`): a budget is the tenant's, over its resources.
pub(in crate::store) const SPENT_TOKENS: &str =
    "SELECT coalesce(sum(tokens), 0) FROM spending WHERE tenant = $1 AND day = $2";

/// What the calls for a lineage (`$3`) cost.
pub(in crate::store) const COSTS_OF_LINEAGE: &str = "
SELECT kind, calls, sent, cached, written, guessed FROM costs
WHERE tenant = $1 AND resource = $2 AND lineage = $3";

// === Timelines ===

/// The lineage of a message (`$3`), and its key.
pub(in crate::store) const THREAD_OF_LINK: &str = "
SELECT n.lineage, l.thread_key FROM nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

/// What happened in a lineage (`$3`), under a name (`$4`) and at a time (`$5`).
pub(in crate::store) const NEW_EVENT: &str = "
INSERT INTO events (tenant, resource, lineage, kind, place, body)
SELECT $1, $2, $3, $4, max($5 * 1000, coalesce((
           SELECT max(e.place) + 1 FROM events AS e
           WHERE e.tenant = $1 AND e.resource = $2 AND e.lineage = $3 AND e.kind = $4), 0)), $6";

/// Keeps the newest `$5` events of a kind (`$4`) of a lineage (`$3`).
pub(in crate::store) const TRIM_EVENTS: &str = "
DELETE FROM events
WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND kind = $4 AND place <= (
    SELECT e.place FROM events AS e
    WHERE e.tenant = $1 AND e.resource = $2 AND e.lineage = $3 AND e.kind = $4
    ORDER BY e.place DESC LIMIT 1 OFFSET $5)";

/// The timeline of a lineage (`$3`), oldest first; what began comes before what ended at that time.
pub(in crate::store) const EVENTS_OF_LINEAGE: &str = "
SELECT kind, place / 1000, body FROM events
WHERE tenant = $1 AND resource = $2 AND lineage = $3 ORDER BY place, kind DESC";

// === Timers ===
