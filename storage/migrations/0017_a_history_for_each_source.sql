-- A row is a segment of the history of one source; storage/history.py.  What was one row for each
-- message becomes one segment for each source.
ALTER TABLE message_id_history ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE message_id_history ADD COLUMN peer BLOB;
ALTER TABLE message_id_history ADD COLUMN runs TEXT NOT NULL DEFAULT '';

CREATE TABLE merged AS
    SELECT min(position) AS position, source, min(number) AS number, max(at_s) AS at_s,
        group_concat(printf('%08x%08x', number, number), '') AS runs
    FROM (SELECT position, source, number, at_s FROM message_id_history ORDER BY position)
    GROUP BY source;
DELETE FROM message_id_history;
INSERT INTO message_id_history (position, source, number, at_s, runs)
    SELECT position, source, number, at_s, runs FROM merged;
DROP TABLE merged;
