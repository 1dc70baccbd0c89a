"""Rows of many messages of one local queue, made by the thread that writes them."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from storage.tables.messages import NewMessage


class LocalRows:
    """Rows of messages without parts: one takes 0.5 µs with its share of the garbage collection."""

    def __init__(
        self,
        queue_id: int,
        keys: Sequence[int],
        packets: Sequence[bytes],
        wall_ms: int,
        expiries: Sequence[int | None],
        reason: str | None = None,
        change: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`keys` are lookup ids, `wall_ms` is the time of arrival, and `expiries` are the seconds
        after which the messages are expired; the lists have equal lengths.

        `reason` is that of their end.  `change` makes each packet from the given one.
        """
        self._base, self._keys = queue_id << LOOKUP_BITS, keys
        self._packets = packets
        self._wall_ms = wall_ms
        self._expiries = expiries
        self._reason = reason
        self._change = change

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[NewMessage]:
        count, base = len(self), self._base
        return zip(
            [base | key for key in self._keys],
            repeat(self._wall_ms, count),
            self._expiries,
            repeat(self._reason, count),
            self._packets if self._change is None else map(self._change, self._packets),
            strict=True,
        )
