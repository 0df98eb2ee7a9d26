-- How many conversations go under one name is asked whenever another one begins under it.
CREATE INDEX lineages_by_key ON lineages (tenant, resource, thread_key, last_ms)
    WHERE thread_key IS NOT NULL;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('lineages', 'lineages_by_key', '8000 80 80 2 1');
ANALYZE sqlite_schema; -- reads them in
