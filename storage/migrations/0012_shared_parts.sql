-- The common end of the packets of one message's copies to many queues, from the label and the body
-- on.
CREATE TABLE shared_part (
    id       INTEGER PRIMARY KEY,
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL
);

-- A row with a part_id holds only the bytes before that part.
ALTER TABLE message ADD COLUMN part_id INTEGER;
ALTER TABLE message ADD COLUMN part_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outgoing ADD COLUMN part_id INTEGER;
ALTER TABLE outgoing ADD COLUMN part_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE awaiting ADD COLUMN part_id INTEGER;
ALTER TABLE awaiting ADD COLUMN part_bytes INTEGER NOT NULL DEFAULT 0;

-- These show whether a part is still in use.
CREATE INDEX message_part ON message (part_id) WHERE part_id IS NOT NULL;
CREATE INDEX outgoing_part ON outgoing (part_id) WHERE part_id IS NOT NULL;
CREATE INDEX awaiting_part ON awaiting (part_id) WHERE part_id IS NOT NULL;
