-- What a stream has rejected, and which message it has accepted last: storage/sequences.py.
ALTER TABLE incoming_sequence ADD COLUMN rejected INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incoming_sequence ADD COLUMN contradictions INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incoming_sequence ADD COLUMN last_message INTEGER NOT NULL DEFAULT 0;
