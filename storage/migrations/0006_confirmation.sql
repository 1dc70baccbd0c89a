-- The last second of waiting for the final ack, by the queue manager's own clock; NULL: it is not
-- waited for, 0: for ever.  The interval begins with the sending, not with the order ack.
ALTER TABLE outgoing RENAME COLUMN confirm_s TO confirm_by_s;

-- 1: its application wants no dead letter, even if nobody receives it.
ALTER TABLE awaiting ADD COLUMN discard INTEGER NOT NULL DEFAULT 0;

-- Messages for elsewhere that became dead letters here: a final ack may say that they were received
-- after all.
CREATE TABLE unconfirmed (
    number   INTEGER PRIMARY KEY,                -- of the message; its source are we
    queue_id INTEGER NOT NULL,                   -- of the outgoing queue
    at_s     INTEGER NOT NULL
);
