-- A message that the client put in the place of what it summarises: a short hash of what stands in front of the summary.
-- 0: it is none, or was recorded before.
ALTER TABLE nodes ADD COLUMN summary_start INTEGER NOT NULL DEFAULT 0;
