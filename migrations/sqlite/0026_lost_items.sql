-- The items of its source that a part does not have (names, numbers, dates, paths), as text: the audit has only their number. A
-- JSON object, bounded, without secrets like the source itself. Nobody noted them for parts of before: null.
ALTER TABLE parts ADD COLUMN lost TEXT;
