-- Messages that are to be delivered at a later time: storage/tables/delayed.py.
CREATE TABLE delayed (
    number     INTEGER PRIMARY KEY,
    clock      INTEGER NOT NULL,
    due_ms     INTEGER NOT NULL,
    queue      TEXT NOT NULL,
    bytes      INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    sent_at_ms INTEGER NOT NULL,
    data       BLOB NOT NULL,
    checksum   INTEGER NOT NULL,
    seal       BLOB
);
CREATE INDEX delayed_due ON delayed (clock, due_ms, number, queue);
CREATE INDEX delayed_queue ON delayed (queue, number, bytes);
