-- Hosts whose sessions have places when there are few: qmd/peers/known_hosts.py.
CREATE TABLE known_host (
    host   TEXT PRIMARY KEY,
    seen_s INTEGER NOT NULL
) WITHOUT ROWID;
