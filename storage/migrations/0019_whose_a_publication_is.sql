-- Which queues an epoch was published to, and by whom: qmd/stage_owners.py.
ALTER TABLE publication ADD COLUMN queues TEXT NOT NULL DEFAULT '';
ALTER TABLE publication ADD COLUMN owner TEXT NOT NULL DEFAULT '';
