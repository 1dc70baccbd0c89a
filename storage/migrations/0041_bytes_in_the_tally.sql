-- The tally has the bytes of each queue, and its transactional messages, so that a start need not
-- count them.  The next start counts the rows, once: storage/tables/tally.py.
ALTER TABLE tally ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;

ALTER TABLE tally ADD COLUMN transactional INTEGER NOT NULL DEFAULT 0;

UPDATE counter SET name = 'tally_of_rows' WHERE name = 'tally';
