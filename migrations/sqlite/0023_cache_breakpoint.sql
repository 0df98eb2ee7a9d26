-- Whether a request went out with a cache breakpoint of Diarist's: its repetition goes out with the same. Requests of
-- before had none.
ALTER TABLE requests ADD COLUMN cache_breakpoint INTEGER NOT NULL DEFAULT 0 CHECK (cache_breakpoint IN (0, 1));
