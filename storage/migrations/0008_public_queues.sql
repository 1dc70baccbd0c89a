-- Public queues: what the directory calls them.
ALTER TABLE queue ADD COLUMN directory_guid BLOB;                     -- of a public queue: its object in the directory
