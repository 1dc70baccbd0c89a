"""A process that changes a database all the time: `python backup_writer.py FOLDER`.

Each commit moves an amount between rows of many pages, so that their sum stays the same.  The log
is copied back and begun anew often.
"""

import random
import sqlite3
import sys

ROWS = 400
TOTAL = 1_000_000


def main(folder: str) -> None:
    db = sqlite3.connect(f"{folder}/queues.db", isolation_level=None, timeout=60)
    db.execute("PRAGMA wal_autocheckpoint = 40")
    db.execute("PRAGMA synchronous = OFF")
    while True:
        one, other = random.sample(range(ROWS), 2)
        amount = random.randrange(1000)
        db.execute("BEGIN IMMEDIATE")
        for row, change in ((one, amount), (other, -amount)):
            filling = random.randbytes(random.randrange(1500, 6000))
            db.execute(
                "UPDATE account SET amount = amount + ?, filling = ? WHERE id = ?",
                (change, filling, row),
            )
        if random.random() < 0.05:
            db.execute("INSERT INTO noise VALUES (?)", (random.randbytes(20_000),))
        if random.random() < 0.03:
            db.execute("DELETE FROM noise")
        db.execute("COMMIT")
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
