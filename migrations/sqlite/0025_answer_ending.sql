-- The hash of the last bytes of an answer. A text with an unknown ending need not be hashed to know that it is no answer.
-- Answers of before have none: until they are deleted, every text is hashed.
ALTER TABLE answers ADD COLUMN ending BLOB CHECK (length(ending) = 16);
