-- A commit appends one row, a block of events, instead of writing to the indexes of messages and of
-- tokens too: the block holds what those would have, and every 64 blocks are indexed together.
ALTER TABLE event_block ADD COLUMN ranges BLOB;
ALTER TABLE event_block ADD COLUMN outcomes BLOB;
CREATE TABLE outcome_index (
    last_block INTEGER PRIMARY KEY,
    at_s       INTEGER NOT NULL,
    tokens     BLOB NOT NULL
);
