-- Sequences and histories of message ids belong to one origin of their source: any program can state
-- the GUID of another one.  The origin of older rows is not known.
CREATE TABLE incoming_sequence_by_origin (
    id          INTEGER PRIMARY KEY,
    source      BLOB NOT NULL CHECK (length(source) = 16),
    queue_id    INTEGER NOT NULL,
    sequence_id BLOB NOT NULL,
    number      INTEGER NOT NULL,
    last_seen_s INTEGER NOT NULL,
    former      TEXT,
    name        BLOB NOT NULL DEFAULT x'',
    rejected    INTEGER NOT NULL DEFAULT 0,
    contradictions INTEGER NOT NULL DEFAULT 0,
    last_message INTEGER NOT NULL DEFAULT 0,
    origin      TEXT NOT NULL DEFAULT '',
    host        TEXT NOT NULL DEFAULT '',
    UNIQUE (queue_id, source, name, origin)
);
INSERT INTO incoming_sequence_by_origin
    SELECT id, source, queue_id, sequence_id, number, last_seen_s, former, name, rejected,
        contradictions, last_message, '', ''
    FROM incoming_sequence;
DROP TABLE incoming_sequence;
ALTER TABLE incoming_sequence_by_origin RENAME TO incoming_sequence;
CREATE INDEX incoming_sequence_former ON incoming_sequence (former) WHERE former IS NOT NULL;
ALTER TABLE message_id_history ADD COLUMN origin TEXT NOT NULL DEFAULT '';
