-- What happens to messages, told in the same commit; storage/events.py.
CREATE TABLE event_block (
    id          INTEGER PRIMARY KEY,             -- only grows: the newest block is never deleted
    first_at_ms INTEGER NOT NULL,
    last_at_ms  INTEGER NOT NULL,
    events      INTEGER NOT NULL,                -- how many, one for each message
    data        BLOB NOT NULL                    -- MessagePack
);

-- Which messages a block may speak of.
CREATE TABLE event_range (
    source BLOB NOT NULL,
    first  INTEGER NOT NULL,
    last   INTEGER NOT NULL,
    block  INTEGER NOT NULL,
    PRIMARY KEY (source, first, last, block)
) WITHOUT ROWID;

-- How long after the order ack the final ack is waited for: NULL not at all, 0 for ever, else s.
ALTER TABLE outgoing ADD COLUMN confirm_s INTEGER;

-- 1: its application wants no dead letter, even if it is never delivered.
ALTER TABLE outgoing ADD COLUMN discard INTEGER NOT NULL DEFAULT 0;

-- Order-acknowledged messages whose source wants to hear of their receipt.  [MS-MQQB] 3.1.5.6, .7
CREATE TABLE awaiting (
    number      INTEGER PRIMARY KEY,             -- of the message; its source are we
    queue_id    INTEGER NOT NULL,                -- of the outgoing queue
    sequence_id BLOB NOT NULL,                   -- unsigned 64 bits, big-endian
    position    INTEGER NOT NULL,                -- in that sequence
    since_s     INTEGER NOT NULL,
    expires_at_s INTEGER,                        -- the last second of waiting; NULL: for ever
    packet      BLOB NOT NULL,
    checksum    INTEGER NOT NULL
);

CREATE INDEX awaiting_expiry ON awaiting (expires_at_s) WHERE expires_at_s IS NOT NULL;

-- A subqueue or journal belongs to another queue: orders;retry, orders;journal.
ALTER TABLE queue ADD COLUMN parent_id INTEGER;
