//! Every statement, and nothing else.
//!
//! Written in the dialect SQLite and PostgreSQL share where that is possible, with numbered `$n`
//! parameters: `$1` is the tenant and `$2` the resource wherever a statement belongs to an owner
//! (INV-OWN). Lists of links arrive as one JSON array of hexadecimal strings, so that a statement
//! never depends on how long a history is. Two tests read these files: every statement that touches
//! a table of an owner names the owner, and no statement scans a table that grows.

mod admin;
mod aliases;
mod costs;
mod find;
mod forget;
mod message_archive;
mod operator_requests;
mod peer_memory;
mod queue;
mod timers;

pub(super) use admin::{
    COUNTS_OF_LINEAGE, LONGEST_CHAIN, PARTS_OF_LINEAGE, SET_TITLE, SNAPSHOTS_OF_LINEAGE, THREAD,
    THREADS, TITLE, TOTALS_OF_LINEAGE,
};
pub(super) use aliases::{ALIASES, DROP_ALIAS, NEW_ALIAS, SHARED_THREAD_KEYS, TENANTS};
pub(super) use costs::{
    ADD_COST, ADD_SPENDING, COSTS_OF_LINEAGE, EVENTS_OF_LINEAGE, FORGET_SPENDING, NEW_EVENT,
    SPENT_TOKENS, THREAD_OF_LINK, TRIM_EVENTS,
};
pub(super) use find::{
    ANSWERED_BEFORE, FIND, FORGET_ANSWERS, FORGET_VIEWS, LINEAGES_NAMED, NEW_ANSWER, NEW_VIEW,
    SHARED_MESSAGES,
};
pub(super) use forget::{
    FORGET_CONTENTS, FORGET_COSTS, FORGET_EVENTS, FORGET_JOBS, FORGET_LINEAGE, FORGET_NODES,
    FORGET_PARTS, FORGET_REQUESTS, FORGET_SNAPSHOTS, FORGET_TIMER, REASSIGN_SHARED_ROWS,
};
pub(super) use message_archive::{
    EXPIRE_MESSAGES, FORGET_MESSAGES, FORGET_NODE_MESSAGES, KEEP_MESSAGES, KEPT_MESSAGES,
};
pub(super) use operator_requests::{
    COMPLETE_OPERATOR_REQUEST, DUE_NOW, FORGET_ABANDONED, OPERATOR_REQUEST, PART_OF_SPAN,
    PENDING_TEXTS_OF_LINEAGE, PUT_OPERATOR_REQUEST, REQUEUE_REQUESTED,
};
pub(super) use peer_memory::{
    COUNT_LINEAGES, DROP_PEER_INTROS, FORGET_DIGEST, FORGET_SNAPSHOT_PEERS, NEW_SNAPSHOT_PEERS,
    NEWEST_PEER_INTRO, PEER_DIGESTS, PEER_INTROS_OF_LINEAGE, PUBLISH_DIGEST, USE_PEER_INTRO,
};
pub(super) use queue::{
    ABANDON, CHARGE, CHUNK_OF_SPAN, CLAIM, DROP_JOB, ENQUEUE, FINISH, NEW_PART, OPEN_JOBS, RENEW,
    REPRIORITIZE, RETRY, TENANT_BACKLOGS, WHY_NOT_ENQUEUED,
};
pub(super) use timers::{CLAIM_TIMER, END_TIMER, KEEP_TIMER, NEXT_TIMER, SET_TIMER};

/// One snapshot (`$3`: id) with its text.
pub(super) const SNAPSHOT: &str = "
SELECT 0, id, to_link, to_count, eligible_from, pin, parts, tokens, cause, placement, segments,
       others
FROM snapshots WHERE tenant = $1 AND resource = $2 AND id = $3";

/// Recorded messages of a chain (`$3`: links), each with its lineage, the key and the zone of that.
pub(super) const NODES_OF_CHAIN: &str = "
SELECT n.link, n.count, n.role, n.tokens, n.closed, n.turn_end, n.born, n.confirmed, n.seen_ms,
       n.live, n.lineage, l.thread_key, l.zone
FROM json_each($3) AS p CROSS JOIN nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

/// Whether anything follows a link (`$3`).
pub(super) const HAS_SUCCESSOR: &str = "
SELECT EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND parent = $3)";

/// Parts that end in a chain (`$3`: links), without their text.
pub(super) const PARTS_OF_CHAIN: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.stopgap
FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = unhex(p.value)";

/// Snapshots that end in a chain (`$3`: links), without their text.
pub(super) const SNAPSHOTS_OF_CHAIN: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, NULL, s.others
FROM json_each($3) AS p CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = unhex(p.value)";

/// Jobs that end in a chain, or at some links of it (`$3`: links).
pub(super) const JOBS_OF_CHAIN: &str = "
SELECT j.kind, j.from_link, j.from_count, j.to_link, j.to_count, j.state,
       j.attempts > 0 AND j.leased = 0
FROM json_each($3) AS p CROSS JOIN jobs AS j
WHERE j.tenant = $1 AND j.resource = $2 AND j.to_link = unhex(p.value)";

/// Parts by id (`$3`: ids) with their text.
pub(super) const PARTS: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.stopgap, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of
FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.id = p.value";

/// The part of a kind (`$4`) whose range ends at a link (`$3`); of several the longest, as `advance` takes it,
/// and what a Reflector wrote before what stands in for it.
pub(super) const PART_ENDING: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.stopgap, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of
FROM parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = $3 AND t.kind = $4
ORDER BY t.from_count, t.stopgap, t.id LIMIT 1";

// === Recording ===

/// Whether a lineage (`$3`) is this owner's.
pub(super) const LINEAGE_EXISTS: &str = "
SELECT EXISTS (SELECT 1 FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3)";

/// The lineage of the deepest of some links (`$3`).
pub(super) const LINEAGE_OF_LINKS: &str = "
SELECT n.lineage FROM json_each($3) AS p CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
ORDER BY n.count DESC LIMIT 1";

/// Of the latest lineages under a name (`$3`) with a request since `$4` those that were gone on with. Side
/// calls under the name of their conversation are not: nobody carries them again.
pub(super) const COUNT_LIVE_CONVERSATIONS: &str = "
SELECT count(*) FROM (SELECT id FROM lineages
                      WHERE tenant = $1 AND resource = $2 AND thread_key = $3 AND last_ms >= $4
                      ORDER BY last_ms DESC LIMIT 64) latest
WHERE EXISTS (SELECT 1 FROM nodes
              WHERE tenant = $1 AND resource = $2 AND lineage = latest.id AND confirmed = 1)";

/// A new lineage. It is of the family of the message its first one follows (`$6`), or of its own.
pub(super) const NEW_LINEAGE: &str = "
INSERT INTO lineages (tenant, resource, thread_key, family, model, requests, first_ms, last_ms)
VALUES ($1, $2, $3,
        (SELECT l.family FROM nodes AS n CROSS JOIN lineages AS l
         WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $6
           AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage),
        $4, 0, $5, $5)
RETURNING id";

/// A lineage (`$3`) that follows nothing is the first of its family.
pub(super) const OWN_FAMILY: &str = "
UPDATE lineages SET family = id
WHERE tenant = $1 AND resource = $2 AND id = $3 AND family IS NULL";

/// The family of a lineage (`$3`), and whether it has confirmed anything yet.
pub(super) const FAMILY: &str = "
SELECT l.family, EXISTS (SELECT 1 FROM accounts AS a
                         WHERE a.tenant = $1 AND a.resource = $2 AND a.family = l.family)
FROM lineages AS l WHERE l.tenant = $1 AND l.resource = $2 AND l.id = $3";

/// The family that confirmed most of some contents (`$3`: pairs of content and tokens), and how many
/// tokens of them.
pub(super) const LIKEST_FAMILY: &str = "
SELECT c.family, sum(p.value ->> 1) AS tokens
FROM json_each($3) AS p CROSS JOIN contents AS c
WHERE c.tenant = $1 AND c.resource = $2 AND c.content = unhex(p.value ->> 0)
GROUP BY c.family ORDER BY tokens DESC, c.family LIMIT 1";

/// A family (`$3`) turns out to be of another (`$4`).
pub(super) const JOIN_FAMILY: &str =
    "UPDATE lineages SET family = $4 WHERE tenant = $1 AND resource = $2 AND family = $3";

/// One more request of a lineage (`$3`).
pub(super) const TOUCH_LINEAGE: &str = "
UPDATE lineages SET requests = requests + 1, last_ms = max(last_ms, $4), model = $5,
                    thread_key = coalesce(thread_key, $6),
                    way = CASE WHEN $7 = x'' THEN way ELSE $7 END, zone = coalesce($8, zone)
WHERE tenant = $1 AND resource = $2 AND id = $3";

/// New messages (`$4`: an array of arrays) of a lineage (`$3`). The first to record one wins.
pub(super) const NEW_NODES: &str = "
INSERT INTO nodes (tenant, resource, lineage, link, parent, count, role, tokens, closed, turn_end,
                   born, confirmed, seen_ms, live, content, ids, weight, anchor, origin, given)
SELECT $1, $2, $3, unhex(p.value ->> 0), unhex(p.value ->> 1), p.value ->> 2, p.value ->> 3,
       p.value ->> 4, p.value ->> 5, p.value ->> 6, p.value ->> 7, p.value ->> 8, p.value ->> 9,
       p.value ->> 10, unhex(p.value ->> 11), unhex(p.value ->> 12), p.value ->> 13,
       unhex(p.value ->> 14), p.value ->> 15, p.value ->> 16
FROM json_each($4) AS p WHERE true
ON CONFLICT (tenant, resource, link) DO NOTHING";

/// Messages (`$3`: links) that a longer request carried again.
pub(super) const CONFIRM: &str = "
UPDATE nodes SET confirmed = 1
WHERE tenant = $1 AND resource = $2 AND confirmed = 0
  AND link IN (SELECT unhex(p.value) FROM json_each($3) AS p)";

/// Adds the tokens of those contents (`$3`: pairs of content and tokens) that are new to a family
/// (`$4`). Comes before `NEW_CONTENTS`, which makes them known.
pub(super) const CREDIT: &str = "
INSERT INTO accounts (tenant, resource, family, confirmed_tokens, shown_tokens)
SELECT $1, $2, $4, coalesce(sum(p.value ->> 1), 0), 0 FROM json_each($3) AS p
WHERE NOT EXISTS (SELECT 1 FROM contents AS c
                  WHERE c.tenant = $1 AND c.resource = $2 AND c.content = unhex(p.value ->> 0)
                    AND c.family = $4)
ON CONFLICT (tenant, resource, family)
DO UPDATE SET confirmed_tokens = accounts.confirmed_tokens + excluded.confirmed_tokens";

/// Contents (`$4`: as `CREDIT` takes them) that a lineage (`$3`) of a family (`$5`) confirmed. The
/// first one wins.
pub(super) const NEW_CONTENTS: &str = "
INSERT INTO contents (tenant, resource, family, lineage, content)
SELECT $1, $2, $5, $3, unhex(p.value ->> 0) FROM json_each($4) AS p WHERE true
ON CONFLICT (tenant, resource, content, family) DO NOTHING";

/// The request itself; what it was sent with for its model is kept from the first time (INV-SAME).
pub(super) const RECORD_REQUEST: &str = "
INSERT INTO requests (tenant, resource, tip, count, lineage, snapshot, placement, model, times,
                      first_ms, last_ms, asked_usage, trimmed_to, trim_pin, trim_wording, system)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $9, $10, $11, $12, $13, $14)
ON CONFLICT (tenant, resource, tip, model)
DO UPDATE SET times = requests.times + 1, last_ms = max(requests.last_ms, excluded.last_ms)";

// === Jobs ===

/// The chain that ends at a link (`$3`), from there back to its first message.
pub(super) const CHAIN_TO: &str = "
WITH RECURSIVE up (link, parent, count) AS (
    SELECT * FROM (
        SELECT link, parent, count FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $3)
    UNION ALL
    SELECT n.link, n.parent, n.count FROM up CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.link = up.parent)
SELECT link FROM up ORDER BY count";

// === Snapshots ===

/// Whether a link (`$3`) is recorded.
pub(super) const NODE_EXISTS: &str = "
SELECT EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $3)";

/// How many of some parts (`$3`: ids) are this owner's.
pub(super) const COUNT_PARTS: &str = "
SELECT count(*) FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.id = p.value";

/// Fixes how parts (`$3`: ids) are written, where no block held them yet.
pub(super) const FIX_RENDERING: &str = "
UPDATE parts SET preamble = coalesce(preamble, $4), as_of = $5
WHERE tenant = $1 AND resource = $2 AND as_of IS NULL
  AND id IN (SELECT p.value FROM json_each($3) AS p)";

/// Length of the longest recorded chain that extends a tip (`$3`, `$4` long).
///
/// Bounded: a tip near the root of a much forked tree has everything below it. Where the bound is
/// hit the answer is too small, and only requests that were never recorded could notice: recorded
/// ones are pinned to what they were sent with.
pub(super) const LONGEST_EXTENSION: &str = "
WITH RECURSIVE below (link, count) AS (
    SELECT $3, $4
    UNION ALL
    SELECT n.link, n.count FROM below CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = below.link
    LIMIT 200000)
SELECT max(count) FROM below";

/// A snapshot that says the same and is eligible no later than `$7`.
pub(super) const EQUAL_SNAPSHOT: &str = "
SELECT 0, id, to_link, to_count, eligible_from, pin, parts, tokens, cause, placement, NULL, others
FROM snapshots
WHERE tenant = $1 AND resource = $2 AND to_link = $3 AND parts = $4 AND segments = $5
  AND pin IS $6 AND eligible_from <= $7 AND placement = $8 AND others IS $9
ORDER BY eligible_from, id LIMIT 1";

/// A snapshot.
pub(super) const NEW_SNAPSHOT: &str = "
INSERT INTO snapshots (tenant, resource, to_link, to_count, eligible_from, pin, parts, tokens,
                       cause, segments, at_ms, placement, made_with, others, unused)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) RETURNING id";

// === People ===

/// Reads the first page of the file.
pub(super) const PING: &str = "SELECT count(*) FROM sqlite_schema";
