-- What the copies of a message to many queues have in common: the end of their packets, from the
-- label and the body on.
CREATE TABLE shared_part (
    id       INTEGER PRIMARY KEY,
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL
);

-- A row that names a part holds only what stands before it.
ALTER TABLE message ADD COLUMN part_id INTEGER;
ALTER TABLE message ADD COLUMN part_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outgoing ADD COLUMN part_id INTEGER;
ALTER TABLE outgoing ADD COLUMN part_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE awaiting ADD COLUMN part_id INTEGER;
ALTER TABLE awaiting ADD COLUMN part_bytes INTEGER NOT NULL DEFAULT 0;

-- Whether a part is still needed.
CREATE INDEX message_part ON message (part_id) WHERE part_id IS NOT NULL;
CREATE INDEX outgoing_part ON outgoing (part_id) WHERE part_id IS NOT NULL;
CREATE INDEX awaiting_part ON awaiting (part_id) WHERE part_id IS NOT NULL;
