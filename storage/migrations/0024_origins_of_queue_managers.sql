-- What is known about other queue managers, by the origin of their sessions: the table of their runs
-- was keyed by the GUID alone, which any program can state.
CREATE TABLE peer_origin (
    queue_manager BLOB NOT NULL CHECK (length(queue_manager) = 16),
    fact          TEXT NOT NULL,
    origin        TEXT NOT NULL,
    bound         INTEGER NOT NULL,
    is_qmd        INTEGER NOT NULL,
    host          TEXT NOT NULL,
    public_key    BLOB NOT NULL,
    starts        INTEGER NOT NULL,
    nonce         BLOB NOT NULL,
    first_seen_s  INTEGER NOT NULL,
    last_seen_s   INTEGER NOT NULL,
    PRIMARY KEY (queue_manager, fact)
) WITHOUT ROWID;
INSERT INTO peer_origin
    SELECT queue_manager, host, host, 1, 1, host, x'', 0, x'', seen_s, seen_s FROM peer_instance;
DROP TABLE peer_instance;
