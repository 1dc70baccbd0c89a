-- Databases that take part in transactions: prepared transactions wait for our decision.
CREATE TABLE branch (
    transaction_id BLOB NOT NULL,
    resource       TEXT NOT NULL,                -- the application's name of the database
    at_s           INTEGER NOT NULL,
    PRIMARY KEY (transaction_id, resource)
) WITHOUT ROWID;
