-- Whether a queue takes signed messages only, and its level of privacy (0 none, 1 optional, 2 body).
ALTER TABLE queue ADD COLUMN authenticate INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN privacy INTEGER NOT NULL DEFAULT 1;
