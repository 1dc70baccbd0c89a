-- Public queues: the GUID of their object in the directory.
ALTER TABLE queue ADD COLUMN directory_guid BLOB;                     -- of a public queue: its object in the directory
