-- The last hop over which messages of a distant queue manager came; storage/tables/ways_back.py.
CREATE TABLE way_back (
    source BLOB PRIMARY KEY CHECK (length(source) = 16),
    via    BLOB NOT NULL CHECK (length(via) = 16),
    host   TEXT NOT NULL,                        -- address of that hop
    seen_s INTEGER NOT NULL
) WITHOUT ROWID;

-- The last known start of each queue manager, to detect two with one identity; peer_instances.py.
CREATE TABLE peer_instance (
    queue_manager BLOB PRIMARY KEY CHECK (length(queue_manager) = 16),
    starts        INTEGER NOT NULL,              -- number of its starts
    nonce         BLOB NOT NULL,                 -- of that start
    host          TEXT NOT NULL,                 -- its address
    seen_s        INTEGER NOT NULL
) WITHOUT ROWID;

-- The address that replaces the one of its name; NULL: not replaced.
ALTER TABLE outgoing_queue ADD COLUMN redirect TEXT;
-- The queue manager that last received transactional messages at that address.
ALTER TABLE outgoing_queue ADD COLUMN peer BLOB;
