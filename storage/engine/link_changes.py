"""Deliveries of the links of doors, collected for the next commit."""

import sqlite3

from storage.engine.load import Load
from storage.tables import link_deliveries
from storage.tables.link_deliveries import LinkRow


class LinkChanges:
    """The rows of one batch."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._rows: list[LinkRow] = []

    def record(self, row: LinkRow) -> None:
        """Record deliveries of a link; the rows of those that its sender has settled end."""
        self._rows.append(row)
        self._load.count(1)

    def write(self, db: sqlite3.Connection) -> None:
        """Write all rows, on the writer's thread."""
        if self._rows:
            link_deliveries.record(db, self._rows)
