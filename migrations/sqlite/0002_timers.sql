-- When conversations will have been idle for long enough. One row per lineage: its newest request moves
-- it, and whoever acts on it takes it away. `activate_ms` and `reflect_ms` say when observations and a
-- reflection may be used early; what was acted on is NULL. `due_ms` is the earlier of them, or the end
-- of the lease of whoever is acting. `zone` is the client's, empty where it named none.
CREATE TABLE timers (
    tenant      BLOB    NOT NULL,
    resource    BLOB    NOT NULL,
    lineage     INTEGER NOT NULL,
    tip         BLOB    NOT NULL CHECK (length(tip) = 32),
    model       TEXT    NOT NULL,
    zone        TEXT    NOT NULL,
    activate_ms INTEGER,
    reflect_ms  INTEGER,
    due_ms      INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, lineage),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX timers_due ON timers (due_ms);

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('timers', 'timers', '10000 100 100 1'),
    ('timers', 'timers_due', '10000 1');
ANALYZE sqlite_schema; -- reads them in
