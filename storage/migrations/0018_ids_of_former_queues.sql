-- The sequences of a deleted queue keep only its name, and release its id.
UPDATE incoming_sequence SET queue_id = -id WHERE former IS NOT NULL;

CREATE INDEX incoming_sequence_former ON incoming_sequence (former) WHERE former IS NOT NULL;
