-- Pipelines: readers of queues, their reservations, and rows staged to be sent together;
-- storage/tables/reservations.py, storage/tables/stages.py.
CREATE TABLE reader (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    fence       INTEGER NOT NULL,                -- of its latest run; never assigned twice
    opened_at_s INTEGER NOT NULL                 -- by the wall clock
);

CREATE TABLE reader_queue (
    id                INTEGER PRIMARY KEY CHECK (id < 262144),
    reader_id         INTEGER NOT NULL,
    queue_id          INTEGER NOT NULL,
    queue             BLOB NOT NULL CHECK (length(queue) = 16),  -- its GUID: ids are reused
    shared            INTEGER NOT NULL,          -- consumed messages stay in the queue
    position          INTEGER NOT NULL,          -- the last consumed position
    next_number       INTEGER NOT NULL,          -- the next position to assign
    arrival           INTEGER NOT NULL,          -- only later arrivals are for this reader
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
    data      BLOB NOT NULL,                     -- MessagePack: new messages, as received
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
