-- Over whom the messages of a queue manager came that is not beside us; storage/ways_back.py.
CREATE TABLE way_back (
    source BLOB PRIMARY KEY CHECK (length(source) = 16),
    via    BLOB NOT NULL CHECK (length(via) = 16),
    host   TEXT NOT NULL,                        -- where that one was
    seen_s INTEGER NOT NULL
) WITHOUT ROWID;

-- Which start of a queue manager was met last, against two of one identity; peer_instances.py.
CREATE TABLE peer_instance (
    queue_manager BLOB PRIMARY KEY CHECK (length(queue_manager) = 16),
    starts        INTEGER NOT NULL,              -- how often it had been started
    nonce         BLOB NOT NULL,                 -- of that start
    host          TEXT NOT NULL,                 -- where it was
    seen_s        INTEGER NOT NULL
) WITHOUT ROWID;

-- Where its messages go now instead of to the address of its name; NULL: there.
ALTER TABLE outgoing_queue ADD COLUMN redirect TEXT;
-- The queue manager that transactional messages were last handed to at that address.
ALTER TABLE outgoing_queue ADD COLUMN peer BLOB;
