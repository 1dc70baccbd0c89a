-- Acknowledgments to public queues that the directory has yet to find; storage/unaddressed.py.
CREATE TABLE unaddressed (
    id       INTEGER PRIMARY KEY,
    queue    BLOB NOT NULL CHECK (length(queue) = 16),  -- of PUBLIC=
    at_s     INTEGER NOT NULL,                   -- by the wall clock
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL
);

-- What the directory has yet to hear of public queues of ours; storage/directory_changes.py.
CREATE TABLE directory_change (
    queue   BLOB PRIMARY KEY CHECK (length(queue) = 16),  -- its object
    path    TEXT NOT NULL,
    deleted INTEGER NOT NULL,                    -- 1: it is no more; 0: its properties are others
    at_s    INTEGER NOT NULL                     -- by the wall clock
) WITHOUT ROWID;
