-- Whose dead letters their application keeps itself; storage/own_dead_letters.py.
CREATE TABLE own_dead_letter (
    number   INTEGER PRIMARY KEY,                -- of the message; its source are we
    queue_id INTEGER NOT NULL,                   -- of ours, where it is to be when it has died
    place    TEXT NOT NULL,                      -- the table where the message is
    key      INTEGER NOT NULL                    -- its key there
);
