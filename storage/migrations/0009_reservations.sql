-- Pipelines: who reads which queue in batches, what is reserved for them, and what waits to be sent
-- as one; storage/reservations.py, storage/stages.py.
CREATE TABLE reader (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    fence       INTEGER NOT NULL,                -- of its latest run; never given twice
    opened_at_s INTEGER NOT NULL                 -- by the wall clock
);

CREATE TABLE reader_queue (
    id                INTEGER PRIMARY KEY CHECK (id < 262144),
    reader_id         INTEGER NOT NULL,
    queue_id          INTEGER NOT NULL,
    queue             BLOB NOT NULL CHECK (length(queue) = 16),  -- its GUID: ids are given again
    shared            INTEGER NOT NULL,          -- what it consumes stays in the queue
    position          INTEGER NOT NULL,          -- consumed up to it
    next_number       INTEGER NOT NULL,          -- the position that is given next
    arrival           INTEGER NOT NULL,          -- what arrived up to it is not for this reader
    reserved_at_s     INTEGER NOT NULL,
    consumed_messages INTEGER NOT NULL,
    consumed_bytes    INTEGER NOT NULL,
    UNIQUE (reader_id, queue)
);

CREATE TABLE reservation (
    id  INTEGER PRIMARY KEY,                     -- reader_queue.id << 44 | position
    key INTEGER NOT NULL                         -- of a row of `message`
);

CREATE TABLE stage (
    id        INTEGER PRIMARY KEY,
    query     TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    part      INTEGER NOT NULL,
    attempt   TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    at_s      INTEGER NOT NULL,                  -- by the wall clock
    data      BLOB NOT NULL,                     -- MessagePack: new messages, as they were given
    UNIQUE (query, epoch, part, attempt, first_row)
);

CREATE TABLE publication (
    id       INTEGER PRIMARY KEY,
    query    TEXT NOT NULL,
    epoch    INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    UNIQUE (query, epoch)
);
