//! Statements for the words of messages, where they are kept.

/// The words (`$5`: pairs of link and words) of messages of a lineage (`$3`), kept since `$4`. The
/// first that is kept of a message stays.
pub(in crate::store) const KEEP_MESSAGES: &str = "
INSERT INTO messages (tenant, resource, lineage, at_ms, link, words)
SELECT $1, $2, $3, $4, unhex(p.value ->> 0), p.value ->> 1 FROM json_each($5) AS p WHERE true
ON CONFLICT (tenant, resource, link) DO NOTHING";

/// The words of some messages (`$3`: links), as far as they are kept.
pub(in crate::store) const KEPT_MESSAGES: &str = "
SELECT m.link, m.words FROM json_each($3) AS p CROSS JOIN messages AS m
WHERE m.tenant = $1 AND m.resource = $2 AND m.link = unhex(p.value)";

/// What was kept before `$1`, of whomever, goes.
pub(in crate::store) const EXPIRE_MESSAGES: &str =
    "DELETE FROM messages WHERE at_ms < $1 RETURNING tenant, link";

/// The words of a lineage (`$3`), those of messages it handed over included.
pub(in crate::store) const FORGET_MESSAGES: &str =
    "DELETE FROM messages WHERE tenant = $1 AND resource = $2 AND lineage = $3";

/// The words of messages that are left: another lineage may have been the one to keep them.
pub(in crate::store) const FORGET_NODE_MESSAGES: &str = "
DELETE FROM messages WHERE tenant = $1 AND resource = $2 AND link IN (
    SELECT link FROM nodes WHERE tenant = $1 AND resource = $2 AND lineage = $3)";
