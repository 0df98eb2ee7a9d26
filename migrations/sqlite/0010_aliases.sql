-- Tenants that the operator says are others: requests of `name` belong to `tenant`, so that a rotated
-- key keeps its memory. Hashes as everywhere; no key is kept.
CREATE TABLE aliases (
    name   BLOB    NOT NULL PRIMARY KEY CHECK (length(name) = 32),
    tenant BLOB    NOT NULL CHECK (length(tenant) = 32 AND tenant <> name),
    at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('aliases', 'aliases', '100 1');
ANALYZE sqlite_schema; -- reads them in
