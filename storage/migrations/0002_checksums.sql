-- Every packet gets a checksum; existing rows have none.
ALTER TABLE message ADD COLUMN checksum INTEGER;

ALTER TABLE outgoing ADD COLUMN checksum INTEGER;

-- Messages that differ from their stored content, by their checksums; kept for an operator.
CREATE TABLE damaged (
    id     INTEGER PRIMARY KEY,
    at_s   INTEGER NOT NULL,                     -- when it was detected
    place  TEXT NOT NULL,                        -- the table that held it, such as message
    key    INTEGER NOT NULL,
    packet BLOB NOT NULL
);
