"""Load of a batch: the amount that its commit writes, and whether the commit is due."""

from collections.abc import Callable


class Load:
    """The number of rows, deletions and units of a batch, and the bytes of its packets."""

    __slots__ = ("_on_act", "bytes", "is_empty", "rows", "waits")

    def __init__(self, on_act: Callable[[], bool]) -> None:
        """Create an empty load.

        Each change calls `on_act` until it returns True: the batch is then due for commit.
        """
        self.rows = 0
        self.bytes = 0
        self.is_empty = True
        self.waits = True  # no change so far requires an immediate commit
        self._on_act = on_act

    def count(self, rows: int) -> None:
        """Add rows; the caller has added their bytes."""
        self.rows += rows
        if self.waits:
            self.is_empty = False
            self.waits = not self._on_act()
