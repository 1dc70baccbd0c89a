-- Restarted sequences, and numbers that a backup may lack: storage/tables/outgoing.py.
ALTER TABLE outgoing_queue ADD COLUMN renumbered_to INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outgoing_queue ADD COLUMN former BLOB NOT NULL DEFAULT x'';
ALTER TABLE outgoing_queue ADD COLUMN unproven_from INTEGER NOT NULL DEFAULT 0;
