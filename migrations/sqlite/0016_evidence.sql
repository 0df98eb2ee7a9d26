-- What proves that a request belongs to a conversation though it does not hold all of it.
--
-- `origin`: a short hash of where a message was first said; copies of it on several chains of one
-- conversation share it. `given`: the upstream gave it as its answer in this conversation. Messages
-- recorded before have neither (0) and prove nothing.
ALTER TABLE nodes ADD COLUMN origin INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN given INTEGER NOT NULL DEFAULT 0;

-- Whether another conversation holds the same words, or the same ids of tool calls.
CREATE INDEX nodes_by_content ON nodes (tenant, resource, content, origin) WHERE content IS NOT NULL;
CREATE INDEX nodes_by_ids ON nodes (tenant, resource, ids, origin) WHERE ids IS NOT NULL;

-- What proved a view: pairs of mark and origin. Views and answers of before rest on weaker evidence, by
-- which another conversation might be told of this one: they are not kept.
ALTER TABLE views ADD COLUMN proof TEXT NOT NULL DEFAULT '[]';
-- From which place on nothing of the chain is told, and how many messages the client sent when that began.
ALTER TABLE views ADD COLUMN held_from INTEGER;
ALTER TABLE views ADD COLUMN held_since INTEGER CHECK ((held_from IS NULL) = (held_since IS NULL));
DELETE FROM views;
DELETE FROM answers;

-- What the first leading system message of a request is known by.
ALTER TABLE requests ADD COLUMN system BLOB CHECK (system IS NULL OR length(system) = 16);

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('nodes', 'nodes_by_content', '1000000 10000 10000 2 1'),
    ('nodes', 'nodes_by_ids', '300000 3000 3000 2 1');
ANALYZE sqlite_schema; -- reads them in
