-- Total size of all blocks ever written, up to and including this one: the size of the log of
-- events is the difference of two of these values.
ALTER TABLE event_block ADD COLUMN end_bytes INTEGER NOT NULL DEFAULT 0;
