-- Retry policies of queues, and messages that wait for another attempt: storage/tables/retries.py.
CREATE TABLE retry_policy (
    queue_id     INTEGER PRIMARY KEY,
    attempts     INTEGER NOT NULL,
    immediate    INTEGER NOT NULL,
    delay_ms     INTEGER NOT NULL,
    factor       REAL NOT NULL,
    delay_max_ms INTEGER NOT NULL,
    jitter       REAL NOT NULL,
    ends         TEXT NOT NULL
);
CREATE TABLE retry (
    key    INTEGER PRIMARY KEY,
    due_ms INTEGER NOT NULL
);
CREATE INDEX retry_due ON retry (due_ms);
