-- The end of a large packet is stored in pieces, before the row that refers to the last of them, so
-- that no commit writes many bytes: storage/tables/shared_parts.py.
ALTER TABLE shared_part ADD COLUMN follows INTEGER;

CREATE INDEX shared_part_follows ON shared_part (follows) WHERE follows IS NOT NULL;

CREATE TABLE part_ahead (
    id INTEGER PRIMARY KEY
);
