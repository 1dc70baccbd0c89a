"""Load of a batch: the amount that its commit writes, and whether the commit is due.

A batch makes those of its parts that are rarely used by `Part`.
"""

from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar, overload

P = TypeVar("P")

#: Taken as the bytes of a deleted packet whose size is not known.
UNKNOWN_BYTES = 64 * 1024


class Load:
    """The number of rows, deletions and units of a batch, and the bytes of its packets."""

    __slots__ = (
        *("_on_act", "bytes", "freed_bytes", "has_calls", "is_empty", "piece_bytes", "rows"),
        "waits",
    )

    def __init__(self, on_act: Callable[[], bool]) -> None:
        """Create an empty load.

        Each change calls `on_act` until it returns True: the batch is then due for commit.
        """
        self.rows = 0
        self.bytes = 0
        self.piece_bytes = 0  # of these, bytes of pieces of large packets
        self.freed_bytes = 0  # of deleted packets: each of their pages is changed, too
        self.is_empty = True
        self.has_calls = False  # units, reads or long ranges, whose time is not known
        self.waits = True  # no change so far requires an immediate commit
        self._on_act = on_act

    @property
    def changed_bytes(self) -> int:
        """Bytes of the packets that are written or deleted."""
        return self.bytes + self.freed_bytes

    def count_deleted(self, rows: int, size: int | None = None) -> None:
        """Add rows that are deleted, with the bytes of their packets if they are known."""
        self.freed_bytes += rows * UNKNOWN_BYTES if size is None else size
        self.count(rows)

    def count(self, rows: int) -> None:
        """Add rows; the caller has added their bytes."""
        self.rows += rows
        if self.waits:
            self.is_empty = False
            self.waits = not self._on_act()


class Loaded(Protocol):
    """An object with a load: a batch."""

    load: Load


class Part(Generic[P]):
    """A part of each batch, made when it is first used: most batches use few of them."""

    def __init__(self, make: Callable[[Load], P]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, batch: None, owner: type) -> Self: ...

    @overload
    def __get__(self, batch: Loaded, owner: type) -> P: ...

    def __get__(self, batch: Loaded | None, owner: type) -> Self | P:
        if batch is None:
            return self
        # From now on the attribute hides this descriptor: a part that was used is in `__dict__`.
        part = batch.__dict__[self._name] = self._make(batch.load)
        return part
