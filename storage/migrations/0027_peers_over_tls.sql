-- The queue managers and addresses that were met over TLS: storage/tables/tls_peers.py.
CREATE TABLE tls_peer (
    peer          TEXT PRIMARY KEY,
    port          INTEGER NOT NULL,
    key           TEXT NOT NULL,
    issued_s      INTEGER NOT NULL,
    newer_since_s INTEGER NOT NULL,
    met_s         INTEGER NOT NULL
) WITHOUT ROWID;
