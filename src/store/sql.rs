//! Every statement, and nothing else.
//!
//! Written in the dialect SQLite and PostgreSQL share where that is possible, with numbered `$n`
//! parameters: `$1` is the tenant and `$2` the resource wherever a statement belongs to an owner
//! (INV-OWN). Lists of links arrive as one JSON array of hexadecimal strings, so that a statement
//! never depends on how long a history is. Two tests read this file: every statement that touches
//! a table of an owner names the owner, and no statement scans a table that grows.

mod find;
mod wishes;

pub(super) use find::{FIND, FORGET_ANSWERS, FORGET_VIEWS, NEW_ANSWER, NEW_VIEW};
pub(super) use wishes::{
    DEMAND, DUE_NOW, GIVEN, OFFER_AGAIN, PART_OF_SPAN, WANT, WANTED, WORDS_OF_LINEAGE,
};

/// One snapshot (`$3`: id) with its text.
pub(super) const SNAPSHOT: &str = "
SELECT 0, id, to_link, to_count, eligible_from, pin, parts, tokens, cause, placement, segments
FROM snapshots WHERE tenant = $1 AND resource = $2 AND id = $3";

/// Recorded messages of a chain (`$3`: links), each with its lineage and the key of that.
pub(super) const NODES_OF_CHAIN: &str = "
SELECT n.link, n.count, n.role, n.tokens, n.closed, n.turn_end, n.born, n.confirmed, n.seen_ms,
       n.live, n.lineage, l.thread_key
FROM json_each($3) AS p CROSS JOIN nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

/// Whether anything follows a link (`$3`).
pub(super) const HAS_SUCCESSOR: &str = "
SELECT EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND parent = $3)";

/// Parts that end in a chain (`$3`: links), without their text.
pub(super) const PARTS_OF_CHAIN: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked
FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = unhex(p.value)";

/// Snapshots that end in a chain (`$3`: links), without their text.
pub(super) const SNAPSHOTS_OF_CHAIN: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement
FROM json_each($3) AS p CROSS JOIN snapshots AS s
WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = unhex(p.value)";

/// Jobs that end in a chain (`$3`: links).
pub(super) const JOBS_OF_CHAIN: &str = "
SELECT j.kind, j.from_link, j.from_count, j.to_link, j.to_count, j.state,
       j.attempts > 0 AND j.leased = 0
FROM json_each($3) AS p CROSS JOIN jobs AS j
WHERE j.tenant = $1 AND j.resource = $2 AND j.to_link = unhex(p.value)";

/// Parts by id (`$3`: ids) with their text.
pub(super) const PARTS: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of
FROM json_each($3) AS p CROSS JOIN parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.id = p.value";

/// The chunk whose range ends at a link (`$3`); of several the longest, as `advance` takes it.
pub(super) const CHUNK_ENDING: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of
FROM parts AS t
WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = $3 AND t.kind = 'chunk'
ORDER BY t.from_count, t.id LIMIT 1";

// === Recording ===

/// Whether a lineage (`$3`) is this owner's.
pub(super) const LINEAGE_EXISTS: &str = "
SELECT EXISTS (SELECT 1 FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3)";

/// The lineage of the deepest of some links (`$3`).
pub(super) const LINEAGE_OF_LINKS: &str = "
SELECT n.lineage FROM json_each($3) AS p CROSS JOIN nodes AS n
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value)
ORDER BY n.count DESC LIMIT 1";

/// Lineages under a name (`$3`) with a request since `$4`, no more than `$5`.
pub(super) const NAMESAKES: &str = "
SELECT count(*) FROM (SELECT 1 FROM lineages
                      WHERE tenant = $1 AND resource = $2 AND thread_key = $3 AND last_ms >= $4
                      LIMIT $5)";

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
                    way = CASE WHEN $7 = x'' THEN way ELSE $7 END
WHERE tenant = $1 AND resource = $2 AND id = $3";

/// New messages (`$4`: an array of arrays) of a lineage (`$3`). The first to record one wins.
pub(super) const NEW_NODES: &str = "
INSERT INTO nodes (tenant, resource, lineage, link, parent, count, role, tokens, closed, turn_end,
                   born, confirmed, seen_ms, live, content, ids, weight, anchor)
SELECT $1, $2, $3, unhex(p.value ->> 0), unhex(p.value ->> 1), p.value ->> 2, p.value ->> 3,
       p.value ->> 4, p.value ->> 5, p.value ->> 6, p.value ->> 7, p.value ->> 8, p.value ->> 9,
       p.value ->> 10, unhex(p.value ->> 11), unhex(p.value ->> 12), p.value ->> 13,
       unhex(p.value ->> 14)
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

/// The request itself; what it was sent with is kept from the first time (INV-SAME).
pub(super) const RECORD_REQUEST: &str = "
INSERT INTO requests (tenant, resource, tip, count, lineage, snapshot, placement, model, times,
                      first_ms, last_ms, asked_usage, trimmed_to, trim_pin, trim_wording)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $9, $10, $11, $12, $13)
ON CONFLICT (tenant, resource, tip)
DO UPDATE SET times = requests.times + 1, last_ms = max(requests.last_ms, excluded.last_ms)";

// === Jobs ===

/// A job, unless its span has one or a part, or its history is not recorded (any more), or it is a
/// chunk that weighs (`$9`) more than the Observer may still be shown. Without a way of its own
/// (`$15`) it goes the one its conversation (`$12`: tip) took last.
pub(super) const OFFER: &str = "
INSERT INTO jobs (tenant, resource, kind, from_link, from_count, to_link, to_count, state, due_ms,
                  leased, fence, attempts, empty_answers, message_tokens, parts, model, tip,
                  tip_count, payload, way, urgency)
SELECT $1, $2, $3, $4, $5, $6, $7, 'open', $8, 0, 0, 0, 0, $9, $10, $11, $12, $13, $14,
       CASE WHEN $15 <> x'' THEN $15 ELSE coalesce((
           SELECT l.way FROM nodes AS n CROSS JOIN lineages AS l
           WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $12
             AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage), x'') END,
       $16
WHERE EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $6)
  AND NOT EXISTS (SELECT 1 FROM parts WHERE tenant = $1 AND resource = $2 AND to_link = $6
                  AND from_link = $4 AND kind = $3)
  AND ($3 <> 'chunk' OR EXISTS (
          SELECT 1 FROM nodes AS n CROSS JOIN lineages AS l CROSS JOIN accounts AS a
          WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $6
            AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage
            AND a.tenant = $1 AND a.resource = $2 AND a.family = l.family
            AND (a.shown_tokens + $9) * 2 <= a.confirmed_tokens * 3))
ON CONFLICT (tenant, resource, to_link, from_link, kind) DO NOTHING";

/// Why `OFFER` did not take a job (`$3`: kind, `$4`: from, `$5`: to): whether its history is
/// recorded, and whether its span has a job or a part.
pub(super) const WHY_NOT_OFFERED: &str = "
SELECT EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $5),
       EXISTS (SELECT 1 FROM jobs WHERE tenant = $1 AND resource = $2 AND to_link = $5
               AND from_link = $4 AND kind = $3)
       OR EXISTS (SELECT 1 FROM parts WHERE tenant = $1 AND resource = $2 AND to_link = $5
                  AND from_link = $4 AND kind = $3)";

/// The Observer is shown so many tokens (`$3`) more of the family of a message (`$4`).
pub(super) const CHARGE: &str = "
UPDATE accounts SET shown_tokens = shown_tokens + $3
WHERE tenant = $1 AND resource = $2
  AND family = (SELECT l.family FROM nodes AS n CROSS JOIN lineages AS l
                WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $4
                  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage)";

/// The next due job. `$1`, `$2`: observe, reflect for anybody; `$3`: pairs of tenant and way it may
/// be claimed for otherwise; `$4`: now; `$5`: end of the lease; `$6`: tokens a tenant may spend on a
/// day; `$7`: today. Tenants with fewest running jobs come first, then conversations closest to
/// their limit.
///
/// It is the one statement that looks across owners: a worker serves them all, each under its own
/// scope, which comes back with the job.
pub(super) const CLAIM: &str = "
UPDATE jobs SET leased = 1, due_ms = $5, attempts = attempts + 1, fence = fence + 1
WHERE id = (
    SELECT j.id FROM jobs AS j
    WHERE j.state = 'open' AND j.due_ms <= $4
      AND ((j.kind = 'chunk' AND $1) OR (j.kind = 'reflection' AND $2)
           OR (j.tenant, j.way) IN (SELECT unhex(p.value ->> 0), unhex(p.value ->> 1)
                                    FROM json_each($3) AS p))
      AND coalesce((SELECT sum(s.tokens) FROM spending AS s
                    WHERE s.tenant = j.tenant AND s.day = $7), 0) < $6
      AND NOT (j.kind = 'chunk' AND EXISTS (
          SELECT 1 FROM jobs AS e
          WHERE e.tenant = j.tenant AND e.resource = j.resource AND e.kind = 'chunk'
            AND e.to_link = j.from_link AND e.state = 'open'))
    ORDER BY (SELECT count(*) FROM jobs AS b
              WHERE b.tenant = j.tenant AND b.state = 'open' AND b.leased = 1 AND b.due_ms > $4),
             j.urgency DESC, j.due_ms, j.id
    LIMIT 1)
RETURNING id, tenant, resource, kind, from_link, from_count, to_link, to_count, message_tokens,
          payload, parts, model, tip, tip_count, attempts, empty_answers, fence, way, urgency";

/// Open jobs that end at some links (`$3`) go another way (`$4`, unless empty); the Observer's are so
/// urgent (`$5`).
pub(super) const STEER: &str = "
UPDATE jobs SET way = CASE WHEN $4 = x'' THEN way ELSE $4 END,
                urgency = CASE WHEN kind = 'chunk' THEN $5 ELSE urgency END
WHERE tenant = $1 AND resource = $2 AND state = 'open'
  AND to_link IN (SELECT unhex(p.value) FROM json_each($3) AS p)";

/// Takes a job (`$3`) away from the worker that holds it (`$4`: fence).
pub(super) const FINISH: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// A part; nothing where the span has one.
pub(super) const NEW_PART: &str = "
INSERT INTO parts (tenant, resource, kind, from_link, from_count, to_link, to_count, text, tokens,
                   message_tokens, current_task, suggested_response, sources, model, at_ms, asked,
                   origins, retention)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
ON CONFLICT (tenant, resource, to_link, from_link, kind) DO NOTHING
RETURNING id";

/// Takes back the job of a span (`$3`: kind, `$4`: from, `$5`: to): code has done it.
pub(super) const DROP_JOB: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND to_link = $5 AND from_link = $4 AND kind = $3";
/// The chunk of a range (`$3`: from, `$4`: to).
pub(super) const CHUNK_OF_SPAN: &str = "
SELECT id FROM parts
WHERE tenant = $1 AND resource = $2 AND to_link = $4 AND from_link = $3 AND kind = 'chunk'";

/// Gives a job back until `$5`; `$6` counts an empty answer.
pub(super) const RETRY: &str = "
UPDATE jobs SET leased = 0, due_ms = $5, empty_answers = empty_answers + $6
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// Keeps a job until `$5`.
pub(super) const RENEW: &str = "
UPDATE jobs SET due_ms = $5
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// Gives a span up. What stays is a tombstone without words.
pub(super) const ABANDON: &str = "
UPDATE jobs SET leased = 0, state = 'abandoned', payload = '', parts = '[]'
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// Jobs waiting or running, of all owners.
pub(super) const OPEN_JOBS: &str = "SELECT count(*) FROM jobs WHERE state = 'open'";

// === What calls cost ===

/// One more call for the conversation of a message (`$3`).
pub(super) const COST: &str = "
INSERT INTO costs (tenant, resource, lineage, kind, calls, sent, cached, written, guessed)
SELECT $1, $2, n.lineage, $4, 1, $5, $6, $7, $8
FROM nodes AS n WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
ON CONFLICT (tenant, resource, lineage, kind)
DO UPDATE SET calls = costs.calls + 1, sent = costs.sent + excluded.sent,
              cached = costs.cached + excluded.cached, written = costs.written + excluded.written,
              guessed = costs.guessed + excluded.guessed";

/// So many tokens (`$4`) more on a day (`$3`).
pub(super) const SPEND: &str = "
INSERT INTO spending (tenant, resource, day, tokens) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, day, resource)
DO UPDATE SET tokens = spending.tokens + excluded.tokens";

/// Days before `$3` are of no use.
pub(super) const FORGET_SPENDING: &str =
    "DELETE FROM spending WHERE tenant = $1 AND resource = $2 AND day < $3";

/// What a tenant (`$1`) spent on a day (`$2`): a budget is the tenant's, over its resources.
pub(super) const SPENT: &str =
    "SELECT coalesce(sum(tokens), 0) FROM spending WHERE tenant = $1 AND day = $2";

/// For the operator: tenants with open jobs, how many, and what they spent on a day (`$1`).
pub(super) const WAITING: &str = "
WITH busy (tenant) AS MATERIALIZED (SELECT tenant FROM jobs WHERE state = 'open')
SELECT busy.tenant, count(*),
       coalesce((SELECT sum(s.tokens) FROM spending AS s
                 WHERE s.tenant = busy.tenant AND s.day = $1), 0)
FROM busy GROUP BY busy.tenant";

/// What the calls for a lineage (`$3`) cost.
pub(super) const COSTS_OF_LINEAGE: &str = "
SELECT kind, calls, sent, cached, written, guessed FROM costs
WHERE tenant = $1 AND resource = $2 AND lineage = $3";

// === Timelines ===

/// The lineage of a message (`$3`), and its key.
pub(super) const THREAD_OF_LINK: &str = "
SELECT n.lineage, l.thread_key FROM nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

/// What happened in a lineage (`$3`), under a name (`$4`) and at a time (`$5`).
pub(super) const NEW_EVENT: &str = "
INSERT INTO events (tenant, resource, lineage, kind, place, body)
SELECT $1, $2, $3, $4, max($5 * 1000, coalesce((
           SELECT max(e.place) + 1 FROM events AS e
           WHERE e.tenant = $1 AND e.resource = $2 AND e.lineage = $3 AND e.kind = $4), 0)), $6";

/// Keeps the newest `$5` events of a kind (`$4`) of a lineage (`$3`).
pub(super) const BOUND_EVENTS: &str = "
DELETE FROM events
WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND kind = $4 AND place <= (
    SELECT e.place FROM events AS e
    WHERE e.tenant = $1 AND e.resource = $2 AND e.lineage = $3 AND e.kind = $4
    ORDER BY e.place DESC LIMIT 1 OFFSET $5)";

/// The timeline of a lineage (`$3`), oldest first; what began comes before what ended at that time.
pub(super) const EVENTS_OF_LINEAGE: &str = "
SELECT kind, place / 1000, body FROM events
WHERE tenant = $1 AND resource = $2 AND lineage = $3 ORDER BY place, kind DESC";

// === Timers ===

/// When a lineage (`$3`) will have been idle for long enough. A newer request moves it, also away from
/// whoever is acting on it.
pub(super) const SET_TIMER: &str = "
INSERT INTO timers (tenant, resource, lineage, tip, model, zone, activate_ms, reflect_ms, due_ms,
                    fence)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0)
ON CONFLICT (tenant, resource, lineage)
DO UPDATE SET tip = excluded.tip, model = excluded.model, zone = excluded.zone,
              activate_ms = excluded.activate_ms, reflect_ms = excluded.reflect_ms,
              due_ms = excluded.due_ms, fence = timers.fence + 1";

/// The next timer that is due now (`$1`), leased until `$2`. Looks across owners, as `CLAIM` does.
pub(super) const CLAIM_TIMER: &str = "
UPDATE timers SET due_ms = $2, fence = fence + 1
WHERE (tenant, resource, lineage) = (
    SELECT t.tenant, t.resource, t.lineage FROM timers AS t
    WHERE t.due_ms <= $1 ORDER BY t.due_ms LIMIT 1)
RETURNING tenant, resource, lineage, tip, model, zone, activate_ms, reflect_ms, fence";

/// What is left of a timer (`$3`: lineage, `$4`: fence) that was acted on.
pub(super) const KEEP_TIMER: &str = "
UPDATE timers SET activate_ms = $5, reflect_ms = $6, due_ms = $7
WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND fence = $4";

/// Takes a timer (`$3`: lineage, `$4`: fence) away.
pub(super) const END_TIMER: &str =
    "DELETE FROM timers WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND fence = $4";

/// When the next timer is due, of all owners.
pub(super) const NEXT_TIMER: &str = "SELECT min(due_ms) FROM timers";

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
pub(super) const FREEZE_PARTS: &str = "
UPDATE parts SET preamble = coalesce(preamble, $4), as_of = $5
WHERE tenant = $1 AND resource = $2 AND as_of IS NULL
  AND id IN (SELECT p.value FROM json_each($3) AS p)";

/// Length of the longest recorded chain that extends a tip (`$3`, `$4` long).
///
/// Bounded: a tip near the root of a much forked tree has everything below it. Where the bound is
/// hit the answer is too small, and only requests that were never recorded could notice: recorded
/// ones are pinned to what they were sent with.
pub(super) const LONGEST: &str = "
WITH RECURSIVE below (link, count) AS (
    SELECT $3, $4
    UNION ALL
    SELECT n.link, n.count FROM below CROSS JOIN nodes AS n
    WHERE n.tenant = $1 AND n.resource = $2 AND n.parent = below.link
    LIMIT 200000)
SELECT max(count) FROM below";

/// A snapshot that says the same and is eligible no later than `$7`.
pub(super) const EQUAL_SNAPSHOT: &str = "
SELECT 0, id, to_link, to_count, eligible_from, pin, parts, tokens, cause, placement
FROM snapshots
WHERE tenant = $1 AND resource = $2 AND to_link = $3 AND parts = $4 AND segments = $5
  AND pin IS $6 AND eligible_from <= $7 AND placement = $8
ORDER BY eligible_from, id LIMIT 1";

/// A snapshot.
pub(super) const NEW_SNAPSHOT: &str = "
INSERT INTO snapshots (tenant, resource, to_link, to_count, eligible_from, pin, parts, tokens,
                       cause, segments, at_ms, placement, made_with)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) RETURNING id";

// === People ===

/// Lineages of all owners for the operator, newest first.
pub(super) const THREADS: &str = "
SELECT l.id, l.tenant, l.resource, l.thread_key, l.model, l.requests, l.first_ms, l.last_ms, l.title
FROM lineages AS l ORDER BY l.last_ms DESC, l.id DESC LIMIT $1";

/// One lineage (`$1`), for the operator.
pub(super) const THREAD: &str = "
SELECT l.id, l.tenant, l.resource, l.thread_key, l.model, l.requests, l.first_ms, l.last_ms, l.title
FROM lineages AS l WHERE l.id = $1";

/// The title of the lineage of a message (`$3`).
pub(super) const TITLE: &str = "
SELECT l.title FROM nodes AS n CROSS JOIN lineages AS l
WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3
  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage";

/// Gives the lineage of a message (`$3`) a title (`$4`), where that changes it.
pub(super) const ENTITLE: &str = "
UPDATE lineages SET title = $4
WHERE tenant = $1 AND resource = $2 AND title IS NOT $4
  AND id = (SELECT n.lineage FROM nodes AS n
            WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $3)";

/// Length, tokens and first link of the longest chain of a lineage (`$3`).
pub(super) const TOTALS_OF_LINEAGE: &str = "
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
pub(super) const LONGEST_CHAIN: &str = "
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
pub(super) const PARTS_OF_LINEAGE: &str = "
SELECT t.id, t.kind, t.from_link, t.from_count, t.to_link, t.to_count, t.tokens, t.message_tokens,
       t.asked, t.text, t.current_task, t.suggested_response, t.sources, t.model, t.origins,
       t.retention, t.preamble, t.as_of
FROM nodes AS n CROSS JOIN parts AS t
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND t.tenant = $1 AND t.resource = $2 AND t.to_link = n.link
ORDER BY t.to_count, t.id";

/// Snapshots of a lineage (`$3`) with their text.
pub(super) const SNAPSHOTS_OF_LINEAGE: &str = "
SELECT 0, s.id, s.to_link, s.to_count, s.eligible_from, s.pin, s.parts, s.tokens, s.cause,
       s.placement, s.segments
FROM nodes AS n CROSS JOIN snapshots AS s
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND s.tenant = $1 AND s.resource = $2 AND s.to_link = n.link
ORDER BY s.to_count, s.id";

/// How many parts and snapshots a lineage (`$3`) has.
pub(super) const COUNTS_OF_LINEAGE: &str = "
SELECT coalesce(sum((SELECT count(*) FROM parts AS t
            WHERE t.tenant = $1 AND t.resource = $2 AND t.to_link = n.link)), 0),
       coalesce(sum((SELECT count(*) FROM snapshots AS s
            WHERE s.tenant = $1 AND s.resource = $2 AND s.to_link = n.link)), 0)
FROM nodes AS n WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3";

// === Forgetting a lineage (`$3`), in this order ===

/// Hands the messages another lineage stands on to that lineage: those below which it goes on, and
/// those at which it ended a request.
pub(super) const HAND_OVER: &str = "
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

/// Jobs of the messages that are left.
pub(super) const FORGET_JOBS: &str = "
DELETE FROM jobs WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Snapshots of the messages that are left.
pub(super) const FORGET_SNAPSHOTS: &str = "
DELETE FROM snapshots WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Parts of the messages that are left.
pub(super) const FORGET_PARTS: &str = "
DELETE FROM parts WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// What the lineage was the first to confirm, the messages it handed over included: where another
/// chain of the heir confirms them again, they count again, which errs on the side of observing.
pub(super) const FORGET_CONTENTS: &str =
    "DELETE FROM contents WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// What its calls cost. What they cost the tenant stays in `spending`.
pub(super) const FORGET_COSTS: &str =
    "DELETE FROM costs WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// What happened in it.
pub(super) const FORGET_EVENTS: &str =
    "DELETE FROM events WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The lineage's timer.
pub(super) const FORGET_TIMER: &str =
    "DELETE FROM timers WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The lineage's requests.
pub(super) const FORGET_REQUESTS: &str =
    "DELETE FROM requests WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The messages that are left.
pub(super) const FORGET_NODES: &str =
    "DELETE FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The lineage.
pub(super) const FORGET_LINEAGE: &str =
    "DELETE FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3";

/// Reads the first page of the file.
pub(super) const PING: &str = "SELECT count(*) FROM sqlite_schema";
