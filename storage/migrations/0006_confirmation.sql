-- The last second of waiting for the final ack, by the queue manager's own clock; NULL: no wait, 0:
-- no limit.  The interval begins when the message is sent, not with the order ack.
ALTER TABLE outgoing RENAME COLUMN confirm_s TO confirm_by_s;

-- 1: the application wants no dead letter, even if the message is never received.
ALTER TABLE awaiting ADD COLUMN discard INTEGER NOT NULL DEFAULT 0;

-- Outgoing messages that became dead letters here: a late final ack may still report their receipt.
CREATE TABLE unconfirmed (
    number   INTEGER PRIMARY KEY,                -- of the message; we are its source
    queue_id INTEGER NOT NULL,                   -- of the outgoing queue
    at_s     INTEGER NOT NULL
);
