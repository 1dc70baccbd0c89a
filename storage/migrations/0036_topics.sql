-- Names of which messages go to several queues, by selectors: storage/tables/topics.py.
CREATE TABLE topic (
    key       TEXT PRIMARY KEY,
    name      TEXT NOT NULL,
    unmatched TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE subscription (
    topic       TEXT NOT NULL,
    key         TEXT NOT NULL,
    name        TEXT NOT NULL,
    destination TEXT NOT NULL,
    selector    TEXT NOT NULL,
    PRIMARY KEY (topic, key)
) WITHOUT ROWID;
