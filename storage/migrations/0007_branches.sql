-- Databases that take part in transactions: what is prepared there waits for our decision.
CREATE TABLE branch (
    transaction_id BLOB NOT NULL,
    resource       TEXT NOT NULL,                -- what the application calls the database
    at_s           INTEGER NOT NULL,
    PRIMARY KEY (transaction_id, resource)
) WITHOUT ROWID;
