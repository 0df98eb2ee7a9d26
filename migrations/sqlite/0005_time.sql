-- What a snapshot fixes beside its text, and how its parts are written.
--
-- A part is written into blocks for the first time on some day and under some preamble; both are set
-- once, then, and never change: `as_of` is that day (YYYY-MM-DD). NULL: no block held it yet.
ALTER TABLE parts ADD COLUMN preamble INTEGER;
ALTER TABLE parts ADD COLUMN as_of TEXT;

-- Every block so far has the first preamble, which relates no dates: what begins with one of these
-- parts goes on as it was.
UPDATE parts SET preamble = 1
WHERE id IN (SELECT p.value FROM snapshots AS s, json_each(s.parts) AS p);

-- Where the block stands: what was configured when the snapshot was made. `made_with` is a JSON object
-- that says by which settings it was made; nothing is decided by it.
ALTER TABLE snapshots ADD COLUMN placement TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN made_with TEXT NOT NULL DEFAULT '{}';

-- The snapshots there are stay where they were last sent.
UPDATE snapshots SET placement = sent.placement
FROM (
    SELECT snapshot, placement, max(last_ms) FROM requests
    WHERE snapshot IS NOT NULL GROUP BY snapshot
) AS sent
WHERE sent.snapshot = snapshots.id;
