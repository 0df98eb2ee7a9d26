-- What the Observer calls a conversation. It is shown to people and to the Observer, never sent.
ALTER TABLE lineages ADD COLUMN title TEXT;

-- A range that was given up because its row could not be read blocks every range after it, and its
-- words come again with the next request: it may be offered anew.
DELETE FROM jobs WHERE state = 'abandoned' AND kind = 'chunk';
