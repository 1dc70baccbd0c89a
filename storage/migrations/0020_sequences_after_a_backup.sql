-- Sequences that began anew, and what a backup may not know: storage/outgoing.py.
ALTER TABLE outgoing_queue ADD COLUMN renumbered_to INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outgoing_queue ADD COLUMN former BLOB NOT NULL DEFAULT x'';
ALTER TABLE outgoing_queue ADD COLUMN unproven_from INTEGER NOT NULL DEFAULT 0;
