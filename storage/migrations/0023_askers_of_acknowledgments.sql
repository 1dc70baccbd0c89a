-- The hosts that ask for acknowledgments, which are limited for each: qmd/queues/answer_limits.py.
ALTER TABLE outgoing_queue ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';
