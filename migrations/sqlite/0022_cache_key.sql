-- Whether a request went out with a prompt cache key of Diarist's: its repetition goes out with the same. Requests of
-- before had none.
ALTER TABLE requests ADD COLUMN cache_key INTEGER NOT NULL DEFAULT 0 CHECK (cache_key IN (0, 1));
