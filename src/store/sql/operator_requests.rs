//! Statements for what an operator asks for.

/// Somebody wants something (`$4`, see `Wanted`, with the focus `$5`) of a lineage (`$3`); the larger wish
/// holds, and the newest focus.
pub(in crate::store) const PUT_OPERATOR_REQUEST: &str = "
UPDATE lineages SET observe_asked = max(observe_asked, $4),
                    observe_focus = coalesce($5, observe_focus)
WHERE tenant = $1 AND resource = $2 AND id = $3";

/// What somebody wants of a lineage (`$3`).
pub(in crate::store) const OPERATOR_REQUEST: &str = "SELECT observe_asked, observe_focus FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3";

/// What was wanted of a lineage (`$3`) is done.
pub(in crate::store) const COMPLETE_OPERATOR_REQUEST: &str = "UPDATE lineages SET observe_asked = 0, observe_focus = NULL WHERE tenant = $1 AND resource = $2 AND id = $3";

/// Forgets that ranges of a lineage (`$3`) were given up: the next request offers them again.
pub(in crate::store) const FORGET_ABANDONED: &str = "
DELETE FROM jobs
WHERE tenant = $1 AND resource = $2 AND kind = 'chunk' AND state = 'abandoned'
  AND to_link IN (SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Makes the waiting observations of a lineage (`$3`) due at `$4`.
pub(in crate::store) const DUE_NOW: &str = "
UPDATE jobs SET due_ms = $4, attempts = 0
WHERE tenant = $1 AND resource = $2 AND kind = 'chunk' AND state = 'open' AND leased = 0
  AND to_link IN (SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// The part of a span (`$3`: kind, `$4`: from, `$5`: to) that is no stopgap.
pub(in crate::store) const PART_OF_SPAN: &str = "
SELECT id FROM parts
WHERE tenant = $1 AND resource = $2 AND to_link = $5 AND from_link = $4 AND kind = $3
  AND stopgap = 0";

/// Makes the job of a span (`$3`: kind, `$4`: from, `$5`: to) due at `$6` with other words (`$7`) and
/// parts (`$8`), also where it was given up, but not where a worker holds it.
pub(in crate::store) const REQUEUE_REQUESTED: &str = "
UPDATE jobs SET state = 'open', leased = 0, due_ms = $6, attempts = 0, empty_answers = 0,
                payload = $7, parts = $8
WHERE tenant = $1 AND resource = $2 AND to_link = $5 AND from_link = $4 AND kind = $3
  AND (leased = 0 OR due_ms <= $6)";

/// Jobs of a lineage (`$3`) that carry words.
pub(in crate::store) const PENDING_TEXTS_OF_LINEAGE: &str = "
SELECT j.from_link, j.from_count, j.to_link, j.to_count, j.payload
FROM nodes AS n CROSS JOIN jobs AS j
WHERE n.tenant = $1 AND n.resource = $2 AND n.lineage = $3
  AND j.tenant = $1 AND j.resource = $2 AND j.to_link = n.link AND j.kind = 'chunk'";
