-- Lines of the audit, if audit.store_retention is set. The owner is empty where none was decided; thread is the name that
-- the line has.
CREATE TABLE audit_lines (
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    time_ms    INTEGER NOT NULL,
    request_id TEXT,
    tenant     BLOB    NOT NULL,
    resource   BLOB    NOT NULL,
    thread     TEXT,
    line       TEXT    NOT NULL
) STRICT;
CREATE INDEX audit_lines_by_time ON audit_lines (time_ms);
CREATE INDEX audit_lines_by_request ON audit_lines (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX audit_lines_by_thread ON audit_lines (tenant, resource, thread);

-- How many tokens the provider of a model counted, and how many Diarist counted for the same messages.
CREATE TABLE token_ratios (
    model    TEXT    NOT NULL PRIMARY KEY,
    counted  INTEGER NOT NULL,
    reported INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('audit_lines', 'audit_lines_by_time', '1000000 1'),
    ('audit_lines', 'audit_lines_by_request', '900000 1'),
    ('audit_lines', 'audit_lines_by_thread', '1000000 10000 1000 20'),
    ('token_ratios', 'token_ratios', '100 1');
ANALYZE sqlite_schema; -- reads them in
