"""Table `branch`: parts of transactions that databases have to commit or roll back.

A row exists from before the database prepares until it has carried out the decision: so after any
crash the databases that may still wait are known.  The decision itself is the transaction's
outcome, which is kept as long as one of its branches is.
"""

import sqlite3
from typing import NamedTuple


class BranchRow(NamedTuple):
    transaction_id: bytes
    resource: str
    at_s: int


COLUMNS = ", ".join(BranchRow._fields)


def add(db: sqlite3.Connection, row: BranchRow) -> None:
    db.execute(f"INSERT OR REPLACE INTO branch ({COLUMNS}) VALUES (?, ?, ?)", row)


def forget(db: sqlite3.Connection, transaction_id: bytes, resource: str) -> int:
    """Delete a branch; return how many there were: 0 or 1."""
    return db.execute(
        "DELETE FROM branch WHERE transaction_id = ? AND resource = ?", (transaction_id, resource)
    ).rowcount


def list_all(db: sqlite3.Connection) -> list[BranchRow]:
    """Return all branches, the oldest first."""
    rows = db.execute(f"SELECT {COLUMNS} FROM branch ORDER BY at_s, transaction_id, resource")
    return list(map(BranchRow._make, rows))
