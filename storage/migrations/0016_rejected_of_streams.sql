-- Rejected messages and the last accepted message of a sequence: storage/tables/sequences.py.
ALTER TABLE incoming_sequence ADD COLUMN rejected INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incoming_sequence ADD COLUMN contradictions INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incoming_sequence ADD COLUMN last_message INTEGER NOT NULL DEFAULT 0;
