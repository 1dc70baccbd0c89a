-- The requests of operators and their results, each chained to the one before it.
CREATE TABLE audit_entry (
    number INTEGER PRIMARY KEY,
    entry  TEXT NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32)
);
CREATE TABLE audit_anchor (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32)
);
