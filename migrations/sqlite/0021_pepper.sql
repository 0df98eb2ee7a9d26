-- A keyed hash of a constant: it shows whether a pepper is the one of this database. No row: the database has no pepper.
CREATE TABLE pepper (
    id          INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    check_value BLOB    NOT NULL CHECK (length(check_value) = 32)
) STRICT;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('pepper', NULL, '1');
ANALYZE sqlite_schema; -- reads them in
