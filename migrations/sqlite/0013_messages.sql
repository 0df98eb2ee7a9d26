-- What messages say, where the operator has them kept: secrets taken out, nothing of attachments but
-- their names. Without a row a message is known by its hash alone.
CREATE TABLE messages (
    tenant   BLOB    NOT NULL,
    resource BLOB    NOT NULL,
    link     BLOB    NOT NULL CHECK (length(link) = 32),
    lineage  INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    words    TEXT    NOT NULL,
    PRIMARY KEY (tenant, resource, link),
    FOREIGN KEY (tenant, resource, lineage) REFERENCES lineages (tenant, resource, id)
) STRICT;
CREATE INDEX messages_by_lineage ON messages (tenant, resource, lineage);
CREATE INDEX messages_by_time ON messages (at_ms);

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('messages', 'sqlite_autoindex_messages_1', '500000 5000 5000 1'),
    ('messages', 'messages_by_lineage', '500000 5000 5000 60'),
    ('messages', 'messages_by_time', '500000 2');
ANALYZE sqlite_schema; -- reads them in
