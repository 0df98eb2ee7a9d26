-- What the conversations of one user (a resource that is vouched for) may be told of each other.

-- Of each conversation its most important observations, as much as a block may hold. The one row of
-- memory that is replaced: it says nothing that parts do not say, and what was sent of it is frozen
-- in snapshots. `at_ms` is when the conversation was last heard of.
CREATE TABLE digests (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    lineage  INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    text     TEXT    NOT NULL,
    PRIMARY KEY (tenant, resource, lineage),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX digests_by_time ON digests (tenant, resource, at_ms);

-- What a snapshot holds of other conversations and whom it serves, as JSON; NULL where it holds
-- nothing of any. `unused` is 1 for one that covers nothing and that no request was recorded with.
ALTER TABLE snapshots ADD COLUMN others TEXT;
ALTER TABLE snapshots ADD COLUMN unused INTEGER NOT NULL DEFAULT 0;
CREATE INDEX snapshots_unused ON snapshots (tenant, resource, at_ms) WHERE unused = 1;

-- Which snapshots hold something of a conversation, so that it can be forgotten.
CREATE TABLE told (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    lineage  INTEGER NOT NULL,
    snapshot INTEGER NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, resource, lineage, snapshot),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX told_by_snapshot ON told (snapshot);

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('digests', 'digests', '10000 100 100 1'),
    ('digests', 'digests_by_time', '10000 100 100 1'),
    ('snapshots', 'snapshots_unused', '1000 10 10 1'),
    ('told', 'told', '100000 1000 1000 20 1'),
    ('told', 'told_by_snapshot', '100000 10');
ANALYZE sqlite_schema; -- reads them in
