-- What it takes to know a conversation again whose client drops, replaces or moves its messages.
-- Marks are hashes of 16 bytes seeded by the owner. Messages recorded before have none and are found
-- by their links alone.

-- What a message says, the ids of the tool calls it makes or answers, its bytes of text, and what it
-- and the message before it are looked up by.
ALTER TABLE nodes ADD COLUMN content BLOB CHECK (content IS NULL OR length(content) = 16);
ALTER TABLE nodes ADD COLUMN ids BLOB CHECK (ids IS NULL OR length(ids) = 16);
ALTER TABLE nodes ADD COLUMN weight INTEGER;
ALTER TABLE nodes ADD COLUMN anchor BLOB CHECK (anchor IS NULL OR length(anchor) = 16);
CREATE INDEX nodes_by_anchor ON nodes (tenant, resource, anchor, seen_ms) WHERE anchor IS NOT NULL;

-- Requests whose own chain is not the one that memory knows: `tip` is the last link of what the
-- client sent, `base` the chain it is a view of, `runs` (client, path, length) where its messages
-- stand on it up to (`client`, `path`), from where on both run together.
CREATE TABLE views (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    tip      BLOB    NOT NULL CHECK (length(tip) = 32),
    count    INTEGER NOT NULL,
    base     BLOB    NOT NULL CHECK (length(base) = 32),
    runs     TEXT    NOT NULL,
    client   INTEGER NOT NULL,
    path     INTEGER NOT NULL,
    lineage  INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, tip),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX views_by_lineage ON views (tenant, resource, lineage);

-- Answers of the model by the mark of their text: a client that summarises its history puts the
-- answer to that request into what it sends next. `tip` is the chain that was answered.
CREATE TABLE answers (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    mark     BLOB    NOT NULL CHECK (length(mark) = 16),
    tip      BLOB    NOT NULL CHECK (length(tip) = 32),
    lineage  INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, mark),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX answers_by_lineage ON answers (tenant, resource, lineage);

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('nodes', 'nodes_by_anchor', '500000 5000 5000 2 1'),
    ('views', 'views', '100000 1000 1000 1'),
    ('views', 'views_by_lineage', '100000 1000 1000 20'),
    ('answers', 'answers', '500000 5000 5000 1'),
    ('answers', 'answers_by_lineage', '500000 5000 5000 20');
ANALYZE sqlite_schema; -- reads them in
