-- The name of a deleted queue, so that the next queue of that name continues its sequences.
ALTER TABLE incoming_sequence ADD COLUMN former TEXT;
