-- A reservation is a run of messages instead of one, so that a batch is a few rows:
-- storage/tables/reservations.py.
ALTER TABLE reservation ADD COLUMN messages INTEGER NOT NULL DEFAULT 1;

-- Rows with successive positions and successive keys become one.  Those of a run have the same
-- difference between both, and no position among them is missing.
CREATE TEMP TABLE reserved_run AS
    SELECT max(id) AS id, max(key) AS key, count(*) AS messages FROM (
        SELECT id, key, id - key AS distance,
               id - row_number() OVER (PARTITION BY id - key ORDER BY id) AS begin
        FROM main.reservation
    ) GROUP BY distance, begin;

DELETE FROM main.reservation;

INSERT INTO main.reservation (id, key, messages)
    SELECT id, key, messages FROM temp.reserved_run ORDER BY id;

DROP TABLE temp.reserved_run;
