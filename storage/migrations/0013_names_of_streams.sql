-- A queue can be sent to by several names, and each of them is a stream of its own.
CREATE TABLE incoming_sequence_by_name (
    id          INTEGER PRIMARY KEY,
    source      BLOB NOT NULL CHECK (length(source) = 16),
    queue_id    INTEGER NOT NULL,
    sequence_id BLOB NOT NULL,
    number      INTEGER NOT NULL,
    last_seen_s INTEGER NOT NULL,
    former      TEXT,
    name        BLOB NOT NULL DEFAULT x'',
    UNIQUE (queue_id, source, name)
);
INSERT INTO incoming_sequence_by_name
    SELECT id, source, queue_id, sequence_id, number, last_seen_s, former, x''
    FROM incoming_sequence;
DROP TABLE incoming_sequence;
ALTER TABLE incoming_sequence_by_name RENAME TO incoming_sequence;
