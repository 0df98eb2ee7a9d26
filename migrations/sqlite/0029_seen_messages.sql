-- What a process has seen of a tenant and perhaps not recorded, written when the process stops: hashes only. The next one
-- reads it, since a message proves a conversation only as long as nobody else has it. Each column is a list of records of
-- one length, see `lookup/seen_messages.rs`.
CREATE TABLE seen_messages (
    id              INTEGER PRIMARY KEY,
    tenant          BLOB    NOT NULL CHECK (length(tenant) = 32),
    at_ms           INTEGER NOT NULL,
    messages        BLOB    NOT NULL,
    answers         BLOB    NOT NULL,
    summary_answers BLOB    NOT NULL,
    -- Whether something that was seen of the tenant before is gone, because of what other tenants said. The tenant of zeros
    -- stands for those of which everything is gone.
    has_lost        INTEGER NOT NULL
) STRICT;
