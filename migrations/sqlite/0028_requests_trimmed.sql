-- Requests whose history was trimmed are few. Without an index of their own, a look-up of a long conversation reads the row of
-- each of its requests from a different place of the file, to learn that none was trimmed.
CREATE INDEX requests_trimmed ON requests (tenant, resource, tip) WHERE trimmed_to IS NOT NULL;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('requests', 'requests_trimmed', '1000 10 10 2 1');
ANALYZE sqlite_schema; -- reads it in
