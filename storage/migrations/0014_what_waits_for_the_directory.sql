-- Acknowledgments to public queues that the directory has not yet resolved; unaddressed.py.
CREATE TABLE unaddressed (
    id       INTEGER PRIMARY KEY,
    queue    BLOB NOT NULL CHECK (length(queue) = 16),  -- of PUBLIC=
    at_s     INTEGER NOT NULL,                   -- by the wall clock
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL
);

-- Changes of our public queues that the directory does not have yet; directory_changes.py.
CREATE TABLE directory_change (
    queue   BLOB PRIMARY KEY CHECK (length(queue) = 16),  -- its object
    path    TEXT NOT NULL,
    deleted INTEGER NOT NULL,                    -- 1: deleted; 0: its properties have changed
    at_s    INTEGER NOT NULL                     -- by the wall clock
) WITHOUT ROWID;
