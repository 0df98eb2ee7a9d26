//! Statements for the timers of conversations that may fall idle.

/// When a lineage (`$3`) will have been idle for long enough. A newer request moves it, also away from
/// whoever is acting on it.
pub(in crate::store) const SET_TIMER: &str = "
INSERT INTO timers (tenant, resource, lineage, tip, model, zone, activate_ms, reflect_ms, due_ms,
                    fence)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0)
ON CONFLICT (tenant, resource, lineage)
DO UPDATE SET tip = excluded.tip, model = excluded.model, zone = excluded.zone,
              activate_ms = excluded.activate_ms, reflect_ms = excluded.reflect_ms,
              due_ms = excluded.due_ms, fence = timers.fence + 1";

/// The next timer that is due now (`$1`), leased until `$2`. Looks across owners, as `CLAIM` does.
pub(in crate::store) const CLAIM_TIMER: &str = "
UPDATE timers SET due_ms = $2, fence = fence + 1
WHERE (tenant, resource, lineage) = (
    SELECT t.tenant, t.resource, t.lineage FROM timers AS t
    WHERE t.due_ms <= $1 ORDER BY t.due_ms LIMIT 1)
RETURNING tenant, resource, lineage, tip, model, zone, activate_ms, reflect_ms, fence";

/// What is left of a timer (`$3`: lineage, `$4`: fence) that was acted on.
pub(in crate::store) const KEEP_TIMER: &str = "
UPDATE timers SET activate_ms = $5, reflect_ms = $6, due_ms = $7
WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND fence = $4";

/// Takes a timer (`$3`: lineage, `$4`: fence) away.
pub(in crate::store) const END_TIMER: &str =
    "DELETE FROM timers WHERE tenant = $1 AND resource = $2 AND lineage = $3 AND fence = $4";

/// When the next timer is due, of all owners.
pub(in crate::store) const NEXT_TIMER: &str = "SELECT min(due_ms) FROM timers";
