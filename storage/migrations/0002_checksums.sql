-- Every packet gets a checksum; rows that are there already have none.
ALTER TABLE message ADD COLUMN checksum INTEGER;

ALTER TABLE outgoing ADD COLUMN checksum INTEGER;

-- Messages that are not what was stored, as their checksums show.  Nothing else touches them.
CREATE TABLE damaged (
    id     INTEGER PRIMARY KEY,
    at_s   INTEGER NOT NULL,                     -- when it was noticed
    place  TEXT NOT NULL,                        -- the table where it was: message or outgoing
    key    INTEGER NOT NULL,
    packet BLOB NOT NULL
);
