-- A start reads no delayed message, and none that waits for its final ack: these tables have what it
-- needs.
CREATE TABLE awaiting_sequence (
    queue_id    INTEGER NOT NULL,
    sequence_id BLOB NOT NULL,
    PRIMARY KEY (queue_id, sequence_id)
) WITHOUT ROWID;

INSERT INTO awaiting_sequence (queue_id, sequence_id)
    SELECT DISTINCT queue_id, sequence_id FROM awaiting;

CREATE TABLE delayed_total (
    queue    TEXT PRIMARY KEY,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO delayed_total (queue, messages, bytes)
    SELECT queue, count(*), sum(bytes) FROM delayed GROUP BY queue;
