-- What whoever asked to have a conversation observed wants it to be looked at for, until that is done.
ALTER TABLE lineages ADD COLUMN observe_focus TEXT;
