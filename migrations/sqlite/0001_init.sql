-- The first schema. Applied files are never edited (their checksum is stored): add a new one.
--
-- Every table but `lineages` starts its key with the owner (tenant, resource). `resource` is empty
-- where there is none, never NULL, so that keys compare. Times are milliseconds since 1970, hashes
-- are BLOBs of 32 bytes, lists are JSON. The composite foreign keys make it impossible to hang a
-- row of one owner on a lineage of another.

PRAGMA application_id = 1147748722; -- "DiAr"

-- A conversation as it is listed. AUTOINCREMENT: an id that was forgotten is never given again.
-- `family` is the first of the lineages that say largely the same (branches, and chains a client
-- made by editing or pruning its history); it is never NULL once the row is written.
CREATE TABLE lineages (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     BLOB    NOT NULL CHECK (length(tenant) = 32),
    resource   BLOB    NOT NULL CHECK (length(resource) IN (0, 32)),
    thread_key TEXT,
    family     INTEGER,
    model      TEXT    NOT NULL,
    requests   INTEGER NOT NULL,
    first_ms   INTEGER NOT NULL,
    last_ms    INTEGER NOT NULL,
    UNIQUE (tenant, resource, id)
) STRICT;
CREATE INDEX lineages_by_time ON lineages (last_ms);
CREATE INDEX lineages_by_family ON lineages (tenant, resource, family);

-- One row per message of an accepted request; no text.
CREATE TABLE nodes (
    tenant    BLOB    NOT NULL,
    resource  BLOB    NOT NULL,
    link      BLOB    NOT NULL CHECK (length(link) = 32),
    parent    BLOB    NOT NULL CHECK (length(parent) = 32),
    count     INTEGER NOT NULL,
    role      TEXT    NOT NULL,
    tokens    INTEGER NOT NULL,
    closed    INTEGER NOT NULL,
    turn_end  INTEGER NOT NULL,
    born      INTEGER NOT NULL,
    confirmed INTEGER NOT NULL,
    seen_ms   INTEGER NOT NULL,
    live      INTEGER NOT NULL,
    lineage   INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, link),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX nodes_by_parent ON nodes (tenant, resource, parent);
CREATE INDEX nodes_by_lineage ON nodes (tenant, resource, lineage, count);

-- What was confirmed, by content: each message once per family however many chains carry it.
-- `content` is a hash seeded by the owner; `lineage` is who confirmed it first, so that forgetting
-- finds it.
CREATE TABLE contents (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    content  BLOB    NOT NULL CHECK (length(content) = 32),
    family   INTEGER NOT NULL,
    lineage  INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, content, family),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX contents_by_lineage ON contents (tenant, resource, lineage);

-- What the Observer was shown of a family of conversations against what was confirmed of it. Both
-- only grow: what was paid for stays paid for, also when it is forgotten.
CREATE TABLE accounts (
    tenant           BLOB    NOT NULL,
    resource         BLOB    NOT NULL,
    family           INTEGER NOT NULL,
    confirmed_tokens INTEGER NOT NULL,
    shown_tokens     INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, family)
) STRICT, WITHOUT ROWID;

-- Chunks and reflections. Immutable.
CREATE TABLE parts (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant             BLOB    NOT NULL,
    resource           BLOB    NOT NULL,
    kind               TEXT    NOT NULL CHECK (kind IN ('chunk', 'reflection')),
    from_link          BLOB    NOT NULL,
    from_count         INTEGER NOT NULL,
    to_link            BLOB    NOT NULL,
    to_count           INTEGER NOT NULL,
    text               TEXT    NOT NULL,
    tokens             INTEGER NOT NULL,
    message_tokens     INTEGER NOT NULL,
    current_task       TEXT,
    suggested_response TEXT,
    sources            TEXT    NOT NULL,
    model              TEXT    NOT NULL,
    at_ms              INTEGER NOT NULL,
    UNIQUE (tenant, resource, to_link, from_link, kind)
) STRICT;

-- What can be sent. Immutable.
CREATE TABLE snapshots (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant        BLOB    NOT NULL,
    resource      BLOB    NOT NULL,
    to_link       BLOB    NOT NULL,
    to_count      INTEGER NOT NULL,
    eligible_from INTEGER NOT NULL,
    pin           INTEGER,
    parts         TEXT    NOT NULL,
    tokens        INTEGER NOT NULL,
    cause         TEXT    NOT NULL,
    segments      TEXT    NOT NULL,
    at_ms         INTEGER NOT NULL
) STRICT;
CREATE INDEX snapshots_by_to ON snapshots (tenant, resource, to_link);

-- One row per accepted history: what exactly it was sent with the first time.
CREATE TABLE requests (
    tenant    BLOB    NOT NULL,
    resource  BLOB    NOT NULL,
    tip       BLOB    NOT NULL,
    count     INTEGER NOT NULL,
    lineage   INTEGER NOT NULL,
    snapshot  INTEGER,
    placement TEXT    NOT NULL,
    model     TEXT    NOT NULL,
    times     INTEGER NOT NULL,
    first_ms  INTEGER NOT NULL,
    last_ms   INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, tip),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_by_lineage ON requests (tenant, resource, lineage);

-- Work for the Observer and the Reflector. The only table that ever holds words of the client, and
-- only until the work is done. `due_ms` is when a job may be claimed: its start, its next try, or
-- the end of its lease.
CREATE TABLE jobs (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant         BLOB    NOT NULL,
    resource       BLOB    NOT NULL,
    kind           TEXT    NOT NULL CHECK (kind IN ('chunk', 'reflection')),
    from_link      BLOB    NOT NULL,
    from_count     INTEGER NOT NULL,
    to_link        BLOB    NOT NULL,
    to_count       INTEGER NOT NULL,
    state          TEXT    NOT NULL CHECK (state IN ('open', 'abandoned')),
    due_ms         INTEGER NOT NULL,
    leased         INTEGER NOT NULL,
    fence          INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    empty_answers  INTEGER NOT NULL,
    message_tokens INTEGER NOT NULL,
    parts          TEXT    NOT NULL,
    model          TEXT    NOT NULL,
    tip            BLOB    NOT NULL,
    tip_count      INTEGER NOT NULL,
    payload        TEXT    NOT NULL,
    UNIQUE (tenant, resource, to_link, from_link, kind)
) STRICT;
CREATE INDEX jobs_due ON jobs (due_ms, id, kind, tenant, state) WHERE state = 'open';
CREATE INDEX jobs_running ON jobs (tenant, due_ms) WHERE state = 'open' AND leased = 1;

-- Statistics of a large database, written down instead of measured. Without any, SQLite takes the
-- owner alone, the first two columns of every key, for selective and walks everything an owner has
-- where an index leads straight to one row; and measured early, they would be those of a database
-- that is nearly empty. Nothing runs ANALYZE later, so a plan that was tested is the plan that runs.
-- (rows, then rows per distinct value of the first column, of the first two, ...)
ANALYZE sqlite_schema;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('lineages', 'sqlite_autoindex_lineages_1', '10000 100 100 1'),
    ('lineages', 'lineages_by_time', '10000 1'),
    ('lineages', 'lineages_by_family', '10000 100 100 2'),
    ('nodes', 'nodes', '1000000 10000 10000 1'),
    ('nodes', 'nodes_by_parent', '1000000 10000 10000 2'),
    ('nodes', 'nodes_by_lineage', '1000000 10000 10000 100 1'),
    ('contents', 'contents', '1000000 10000 10000 2 1'),
    ('contents', 'contents_by_lineage', '1000000 10000 10000 100 1'),
    ('accounts', 'accounts', '10000 100 100 1'),
    ('parts', 'sqlite_autoindex_parts_1', '100000 1000 1000 2 2 1'),
    ('snapshots', 'snapshots_by_to', '100000 1000 1000 2'),
    ('requests', 'requests', '500000 5000 5000 1'),
    ('requests', 'requests_by_lineage', '500000 5000 5000 50'),
    ('jobs', 'sqlite_autoindex_jobs_1', '1000 10 10 2 2 1'),
    ('jobs', 'jobs_due', '1000 1 1 1 1 1'),
    ('jobs', 'jobs_running', '100 2 1');
ANALYZE sqlite_schema; -- reads them in
