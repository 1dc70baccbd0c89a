-- Deliveries of senders over AMQP that were committed, so that a sender that resumes its link learns
-- which of its messages are stored.
CREATE TABLE link_delivery (
    id         INTEGER PRIMARY KEY,
    owner      BLOB NOT NULL,
    link       BLOB NOT NULL,
    position   INTEGER NOT NULL,
    deliveries BLOB NOT NULL,
    at_s       INTEGER NOT NULL,
    UNIQUE (link, position)
);

CREATE INDEX link_delivery_owner ON link_delivery (owner, id);
