-- Messages that have ended in outgoing queues, of whose end we still have to tell; storage/owed.py.
CREATE TABLE owed (
    id            INTEGER PRIMARY KEY,
    message_class INTEGER NOT NULL,
    for_others    INTEGER NOT NULL,              -- 1: it was on its way over this computer
    packet        BLOB NOT NULL,
    checksum      INTEGER NOT NULL
);
