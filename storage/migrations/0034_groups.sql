-- Whether the messages of a group go to one reader at a time.
ALTER TABLE queue ADD COLUMN grouped INTEGER NOT NULL DEFAULT 0;
