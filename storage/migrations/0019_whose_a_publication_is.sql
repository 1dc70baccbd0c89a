-- The destinations and the publisher of an epoch: qmd/bulk/stage_owners.py.
ALTER TABLE publication ADD COLUMN queues TEXT NOT NULL DEFAULT '';
ALTER TABLE publication ADD COLUMN owner TEXT NOT NULL DEFAULT '';
