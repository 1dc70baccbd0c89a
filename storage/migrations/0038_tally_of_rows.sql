-- How many rows each queue must have, so that rows which vanish are noticed.
ALTER TABLE event_block ADD COLUMN tally BLOB;
CREATE TABLE tally (
    place     INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL,
    digest    INTEGER NOT NULL,
    block     INTEGER NOT NULL
);
