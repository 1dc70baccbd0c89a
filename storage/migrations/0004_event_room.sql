-- What all blocks took that there ever were, up to and with this one: how much room the log of
-- events takes is the difference of two of these.
ALTER TABLE event_block ADD COLUMN end_bytes INTEGER NOT NULL DEFAULT 0;
