-- The sequences of a queue that is no more have its name only, and give its id back.
UPDATE incoming_sequence SET queue_id = -id WHERE former IS NOT NULL;

CREATE INDEX incoming_sequence_former ON incoming_sequence (former) WHERE former IS NOT NULL;
