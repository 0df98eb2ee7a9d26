-- What a history was sent with is a decision of its own for each model it is asked of: where the block
-- may stand, what had to be left out and which thresholds count depend on the model.
CREATE TABLE requests_by_model (
    tenant       BLOB    NOT NULL,
    resource     BLOB    NOT NULL,
    tip          BLOB    NOT NULL,
    model        TEXT    NOT NULL,
    count        INTEGER NOT NULL,
    lineage      INTEGER NOT NULL,
    snapshot     INTEGER,
    placement    TEXT    NOT NULL,
    times        INTEGER NOT NULL,
    first_ms     INTEGER NOT NULL,
    last_ms      INTEGER NOT NULL,
    asked_usage  INTEGER CHECK (asked_usage IN (0, 1)),
    trimmed_to   INTEGER CHECK (trimmed_to > 0),
    trim_pin     INTEGER CHECK (trim_pin < trimmed_to),
    trim_wording INTEGER CHECK ((trimmed_to IS NULL) = (trim_wording IS NULL)),
    PRIMARY KEY (tenant, resource, tip, model),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
INSERT INTO requests_by_model (tenant, resource, tip, model, count, lineage, snapshot, placement, times,
                               first_ms, last_ms, asked_usage, trimmed_to, trim_pin, trim_wording)
SELECT tenant, resource, tip, model, count, lineage, snapshot, placement, times, first_ms, last_ms,
       asked_usage, trimmed_to, trim_pin, trim_wording
FROM requests;
DROP TABLE requests;
ALTER TABLE requests_by_model RENAME TO requests;
CREATE INDEX requests_by_lineage ON requests (tenant, resource, lineage);

-- The zone the client of a conversation last named: a restart knows it before the next request says it.
ALTER TABLE lineages ADD COLUMN zone TEXT;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('requests', 'requests', '500000 5000 5000 2 1'),
    ('requests', 'requests_by_lineage', '500000 5000 5000 50');
ANALYZE sqlite_schema; -- reads them in
