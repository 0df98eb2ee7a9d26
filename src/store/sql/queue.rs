//! Statements for the queue: jobs, and the parts they end in.

/// A job, unless its span has one or a part that is no stopgap, or its history is not recorded (any more), or it is a
/// chunk that weighs (`$9`) more than the Observer may still be shown. Without a way of its own
/// (`$15`) it goes the one its conversation (`$12`: tip) took last.
pub(in crate::store) const ENQUEUE: &str = "
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
                  AND from_link = $4 AND kind = $3 AND stopgap = 0)
  AND ($3 <> 'chunk' OR EXISTS (
          SELECT 1 FROM nodes AS n CROSS JOIN lineages AS l CROSS JOIN accounts AS a
          WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $6
            AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage
            AND a.tenant = $1 AND a.resource = $2 AND a.family = l.family
            AND (a.shown_tokens + $9) * 2 <= a.confirmed_tokens * 3))
ON CONFLICT (tenant, resource, to_link, from_link, kind) DO NOTHING";

/// Why `OFFER` did not take a job (`$3`: kind, `$4`: from, `$5`: to): whether its history is
/// recorded, and whether its span has a job or a part.
pub(in crate::store) const WHY_NOT_ENQUEUED: &str = "
SELECT EXISTS (SELECT 1 FROM nodes WHERE tenant = $1 AND resource = $2 AND link = $5),
       EXISTS (SELECT 1 FROM jobs WHERE tenant = $1 AND resource = $2 AND to_link = $5
               AND from_link = $4 AND kind = $3)
       OR EXISTS (SELECT 1 FROM parts WHERE tenant = $1 AND resource = $2 AND to_link = $5
                  AND from_link = $4 AND kind = $3 AND stopgap = 0)";

/// The Observer is shown so many tokens (`$3`) more of the family of a message (`$4`).
pub(in crate::store) const CHARGE: &str = "
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
pub(in crate::store) const CLAIM: &str = "
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
/// urgent (`$5`) and the Reflector's so much (`$6`), which one that somebody asked for may be already.
pub(in crate::store) const REPRIORITIZE: &str = "
UPDATE jobs SET way = CASE WHEN $4 = x'' THEN way ELSE $4 END,
                urgency = CASE WHEN kind = 'chunk' THEN $5 ELSE max(urgency, $6) END
WHERE tenant = $1 AND resource = $2 AND state = 'open'
  AND to_link IN (SELECT unhex(p.value) FROM json_each($3) AS p)";

/// Takes a job (`$3`) away from the worker that holds it (`$4`: fence).
pub(in crate::store) const FINISH: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// A part; nothing where the span has one. A stopgap is none of a model's.
pub(in crate::store) const NEW_PART: &str = "
INSERT INTO parts (tenant, resource, kind, from_link, from_count, to_link, to_count, text, tokens,
                   message_tokens, current_task, suggested_response, sources, model, at_ms, asked,
                   origins, retention, stopgap)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
ON CONFLICT (tenant, resource, to_link, from_link, kind, stopgap) DO NOTHING
RETURNING id";

/// Takes back the job of a span (`$3`: kind, `$4`: from, `$5`: to): somebody else has done it.
pub(in crate::store) const DROP_JOB: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND to_link = $5 AND from_link = $4 AND kind = $3";

/// The chunk of a range (`$3`: from, `$4`: to).
pub(in crate::store) const CHUNK_OF_SPAN: &str = "
SELECT id FROM parts
WHERE tenant = $1 AND resource = $2 AND to_link = $4 AND from_link = $3 AND kind = 'chunk'";

/// Gives a job back until `$5`; `$6` counts an empty answer.
pub(in crate::store) const RETRY: &str = "
UPDATE jobs SET leased = 0, due_ms = $5, empty_answers = empty_answers + $6
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// Keeps a job until `$5`.
pub(in crate::store) const RENEW: &str = "
UPDATE jobs SET due_ms = $5
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// Gives a span up. What stays is a tombstone without words.
pub(in crate::store) const ABANDON: &str = "
UPDATE jobs SET leased = 0, state = 'abandoned', payload = '', parts = '[]'
WHERE tenant = $1 AND resource = $2 AND id = $3 AND fence = $4 AND leased = 1 AND state = 'open'";

/// Jobs waiting or running, of all owners.
pub(in crate::store) const OPEN_JOBS: &str = "SELECT count(*) FROM jobs WHERE state = 'open'";

// === What calls cost ===

/// For the operator: tenants with open jobs, how many, and what they spent on a day (`$1`).
pub(in crate::store) const TENANT_BACKLOGS: &str = "
WITH busy (tenant) AS MATERIALIZED (SELECT tenant FROM jobs WHERE state = 'open')
SELECT busy.tenant, count(*),
       coalesce((SELECT sum(s.tokens) FROM spending AS s
                 WHERE s.tenant = busy.tenant AND s.day = $1), 0)
FROM busy GROUP BY busy.tenant";
