//! Statements that forget a conversation, in the order in which they run.

/// Hands the messages another lineage stands on to that lineage: those below which it goes on, and
/// those at which it ended a request.
pub(in crate::store) const REASSIGN_SHARED_ROWS: &str = "
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
pub(in crate::store) const FORGET_JOBS: &str = "
DELETE FROM jobs WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Snapshots of the messages that are left.
pub(in crate::store) const FORGET_SNAPSHOTS: &str = "
DELETE FROM snapshots WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// Parts of the messages that are left.
pub(in crate::store) const FORGET_PARTS: &str = "
DELETE FROM parts WHERE tenant = $1 AND resource = $2 AND to_link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";

/// What the lineage was the first to confirm, the messages it handed over included: where another
/// chain of the heir confirms them again, they count again, which errs on the side of observing.
pub(in crate::store) const FORGET_CONTENTS: &str =
    "DELETE FROM contents WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// What its calls cost. What they cost the tenant stays in `spending`.
pub(in crate::store) const FORGET_COSTS: &str =
    "DELETE FROM costs WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// What happened in it.
pub(in crate::store) const FORGET_EVENTS: &str =
    "DELETE FROM events WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The lineage's timer.
pub(in crate::store) const FORGET_TIMER: &str =
    "DELETE FROM timers WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The lineage's requests.
pub(in crate::store) const FORGET_REQUESTS: &str =
    "DELETE FROM requests WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The messages that are left.
pub(in crate::store) const FORGET_NODES: &str =
    "DELETE FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The lineage.
pub(in crate::store) const FORGET_LINEAGE: &str =
    "DELETE FROM lineages WHERE tenant = $1 AND resource = $2 AND id = $3";
