-- Messages that ended in outgoing queues, with acknowledgments still to be sent; owed.py.
CREATE TABLE owed (
    id            INTEGER PRIMARY KEY,
    message_class INTEGER NOT NULL,
    for_others    INTEGER NOT NULL,              -- 1: it was being routed through this computer
    packet        BLOB NOT NULL,
    checksum      INTEGER NOT NULL
);
