-- Messages with a dead-letter queue of their application; storage/tables/own_dead_letters.py.
CREATE TABLE own_dead_letter (
    number   INTEGER PRIMARY KEY,                -- of the message; we are its source
    queue_id INTEGER NOT NULL,                   -- of that dead-letter queue
    place    TEXT NOT NULL,                      -- the table that holds the message
    key      INTEGER NOT NULL                    -- its key there
);
