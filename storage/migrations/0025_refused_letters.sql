-- The dead letters that messages of other hosts have caused: storage/tables/refused_letters.py.
CREATE TABLE refused_letter (
    key   INTEGER PRIMARY KEY,
    host  TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    at_s  INTEGER NOT NULL
);
