-- The digest of the queue manager's key, so that a lost key file is detected.
ALTER TABLE identity ADD COLUMN key_digest BLOB;
