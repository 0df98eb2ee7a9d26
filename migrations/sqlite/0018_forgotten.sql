-- What an operator had deleted, and by what it is kept from coming back.

-- One row for each deletion. `subject` is a number or a hash, as `diarist threads forgotten` shows it. `counts`
-- says how many rows of which table were deleted. `done` is 0 while rows are still being deleted, `audited` is 0
-- until the audit has a line of it. `lifted_ms` is set when its tombstones were removed.
CREATE TABLE receipts (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    kind      TEXT    NOT NULL CHECK (kind IN ('thread', 'resource', 'tenant')),
    subject   TEXT    NOT NULL,
    tenant    TEXT    NOT NULL,
    at_ms     INTEGER NOT NULL,
    counts    TEXT    NOT NULL DEFAULT '{}',
    done      INTEGER NOT NULL DEFAULT 0,
    audited   INTEGER NOT NULL DEFAULT 0,
    lifted_ms INTEGER
) STRICT;

-- Hashes by which a request of something deleted is recognised. `owner` is the root link of the owner, or a hash
-- of the tenant. `mark` is the beginning of a link, of an anchor, or of the hash of an answer or of a name; it is
-- empty if the whole owner was deleted. All of them are hashes keyed by the owner.
CREATE TABLE tombstones (
    owner   BLOB    NOT NULL CHECK (length(owner) = 32),
    mark    BLOB    NOT NULL CHECK (length(mark) IN (0, 16)),
    receipt INTEGER NOT NULL,
    PRIMARY KEY (owner, mark, receipt)
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_receipt ON tombstones (receipt);

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('tombstones', 'tombstones', '10000 100 2 1'),
    ('tombstones', 'tombstones_by_receipt', '10000 50');
ANALYZE sqlite_schema; -- reads them in
