-- The first accepted message of a sequence: another first one belongs to another sequence with its id.
ALTER TABLE incoming_sequence ADD COLUMN first_number INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incoming_sequence ADD COLUMN first_message INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incoming_sequence ADD COLUMN first_digest INTEGER NOT NULL DEFAULT 0;
