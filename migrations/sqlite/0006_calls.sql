-- Model calls of memory: who pays for a job, how urgent it is, what calls have cost, what happened.

-- The way to the upstream the conversation last took, by its hash: `lineages` remembers it, a job is
-- claimed only where it is held. Empty where none is known.
ALTER TABLE lineages ADD COLUMN way BLOB NOT NULL DEFAULT x'' CHECK (length(way) IN (0, 32));
ALTER TABLE jobs ADD COLUMN way BLOB NOT NULL DEFAULT x'' CHECK (length(way) IN (0, 32));
-- How close the conversation is to its limit, in thousandths of it.
ALTER TABLE jobs ADD COLUMN urgency INTEGER NOT NULL DEFAULT 0;

-- What memory's own model calls cost a conversation, by kind of job. `guessed` is how many of the
-- tokens were counted here, since the endpoint reported none.
CREATE TABLE costs (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    lineage  INTEGER NOT NULL,
    kind     TEXT    NOT NULL CHECK (kind IN ('chunk', 'reflection')),
    calls    INTEGER NOT NULL,
    sent     INTEGER NOT NULL,
    cached   INTEGER NOT NULL,
    written  INTEGER NOT NULL,
    guessed  INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, lineage, kind),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;

-- The same by tenant and UTC day (days since 1970), for the daily budget. It stays when a
-- conversation is forgotten: what was paid for stays paid for.
CREATE TABLE spending (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    day      INTEGER NOT NULL,
    tokens   INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, resource)
) STRICT, WITHOUT ROWID;

-- What happened in a conversation, for its timeline: numbers and names, never words. In one tree,
-- by what it is asked for: one comes with every request, and each page that it touches is written.
-- `place` is the time in thousandths of milliseconds, moved on where that is taken.
CREATE TABLE events (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    lineage  INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    place    INTEGER NOT NULL,
    body     TEXT    NOT NULL,
    PRIMARY KEY (tenant, resource, lineage, kind, place),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('costs', 'costs', '20000 200 200 2 1'),
    ('spending', 'spending', '10000 100 2 1'),
    ('events', 'events', '1000000 10000 10000 100 20 1');
ANALYZE sqlite_schema;
