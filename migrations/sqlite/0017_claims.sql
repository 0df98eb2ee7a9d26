-- A claim by the routes that a process holds looks at the jobs of these routes, not at all open ones: jobs
-- whose route is gone wait until their conversation goes on, which may be never.
CREATE INDEX jobs_by_route ON jobs (tenant, way, due_ms) WHERE state = 'open';

-- The state of a conversation is computed when somebody asks for it, and not stored with each request.
DELETE FROM events WHERE kind = 'data-om-status';

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('jobs', 'jobs_by_route', '1000 10 5 1');
ANALYZE sqlite_schema; -- reads them in
