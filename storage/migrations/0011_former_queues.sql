-- The name of a queue that was deleted, so that the next one of that name goes on where it was.
ALTER TABLE incoming_sequence ADD COLUMN former TEXT;
