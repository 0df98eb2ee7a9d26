//! Statements about owners themselves: who has memory, who is served as whom, which names stand for many
//! conversations. They stand above owners.

/// All of them, the oldest first.
pub(in crate::store) const ALIASES: &str =
    "SELECT name, tenant, at_ms FROM aliases ORDER BY at_ms, name";

/// A new one: requests of `$1` belong to `$2`.
pub(in crate::store) const NEW_ALIAS: &str =
    "INSERT INTO aliases (name, tenant, at_ms) VALUES ($1, $2, $3)";

/// Takes one back.
pub(in crate::store) const DROP_ALIAS: &str = "DELETE FROM aliases WHERE name = $1";

/// For the operator: who has memory.
pub(in crate::store) const TENANTS: &str = "
SELECT tenant, count(*), coalesce(sum(requests), 0), max(last_ms) FROM lineages GROUP BY tenant";

/// Names that at least `$2` conversations with a request since `$1` go under that were gone on with (see
/// `NAMESAKES`), no more than `$3`.
pub(in crate::store) const SHARED_THREAD_KEYS: &str = "
SELECT tenant, resource, thread_key FROM lineages l
WHERE thread_key IS NOT NULL AND last_ms >= $1
  AND EXISTS (SELECT 1 FROM nodes
              WHERE tenant = l.tenant AND resource = l.resource AND lineage = l.id AND confirmed = 1)
GROUP BY tenant, resource, thread_key HAVING count(*) >= $2
LIMIT $3";
