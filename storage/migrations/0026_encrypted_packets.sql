-- The seals of encrypted packets, and the keys that rows may need.
ALTER TABLE message ADD COLUMN seal BLOB;
ALTER TABLE outgoing ADD COLUMN seal BLOB;
ALTER TABLE damaged ADD COLUMN seal BLOB;
ALTER TABLE awaiting ADD COLUMN seal BLOB;
ALTER TABLE stage ADD COLUMN seal BLOB;
ALTER TABLE shared_part ADD COLUMN seal BLOB;
ALTER TABLE unaddressed ADD COLUMN seal BLOB;
ALTER TABLE owed ADD COLUMN seal BLOB;

CREATE TABLE sealing_key (
    id      INTEGER PRIMARY KEY,
    key_id  BLOB NOT NULL UNIQUE CHECK (length(key_id) = 8),
    since_s INTEGER NOT NULL
);
