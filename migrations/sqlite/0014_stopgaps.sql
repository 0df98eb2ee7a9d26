-- What code made of a log that reached its hard limit before a Reflector answered is a stopgap: what a
-- Reflector writes of the same span stands beside it. So whether a part is one belongs to what is
-- unique, and the table is written anew for that.
CREATE TABLE parts_anew (
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
    origins            TEXT    NOT NULL DEFAULT '[]',
    retention          TEXT    NOT NULL DEFAULT '{}',
    asked              INTEGER NOT NULL DEFAULT 0,
    preamble           INTEGER,
    as_of              TEXT,
    stopgap            INTEGER NOT NULL DEFAULT 0 CHECK (stopgap = 0 OR kind = 'reflection'),
    UNIQUE (tenant, resource, to_link, from_link, kind, stopgap)
) STRICT;
INSERT INTO parts_anew (id, tenant, resource, kind, from_link, from_count, to_link, to_count, text,
                        tokens, message_tokens, current_task, suggested_response, sources, model,
                        at_ms, origins, retention, asked, preamble, as_of)
SELECT id, tenant, resource, kind, from_link, from_count, to_link, to_count, text, tokens,
       message_tokens, current_task, suggested_response, sources, model, at_ms, origins, retention,
       asked, preamble, as_of
FROM parts;
-- Ids are not given twice, those of parts that were forgotten neither.
DELETE FROM sqlite_sequence WHERE name = 'parts_anew';
INSERT INTO sqlite_sequence (name, seq) SELECT 'parts_anew', seq FROM sqlite_sequence WHERE name = 'parts';
DROP TABLE parts;
ALTER TABLE parts_anew RENAME TO parts;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('parts', 'sqlite_autoindex_parts_1', '100000 1000 1000 2 2 1 1');
ANALYZE sqlite_schema; -- reads them in
