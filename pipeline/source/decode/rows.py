"""Messages as a queue manager sends them: numbers in columns, and all packets in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]


@dataclass(slots=True)
class Rows:
    """Messages of one queue, in columns; packet i is packets[offsets[i]:offsets[i + 1]]."""

    positions: Whole
    lookup_ids: Whole
    arrived_at_ms: Whole
    abort_counts: npt.NDArray[np.int32]
    move_counts: npt.NDArray[np.int32]
    offsets: Whole
    packets: bytes
    reasons: Sequence[str | None] | None = None
    # Whether each packet was cut at its body.
    headers_only: bool = False

    def __len__(self) -> int:
        return len(self.positions)

    def packet(self, index: int) -> bytes:
        return self.packets[self.offsets[index] : self.offsets[index + 1]]

    def chosen(self, rows: Whole) -> Rows:
        """Return only these rows, in this order."""
        packets = [self.packet(int(row)) for row in rows]
        return Rows(
            self.positions[rows],
            self.lookup_ids[rows],
            self.arrived_at_ms[rows],
            self.abort_counts[rows],
            self.move_counts[rows],
            np.concatenate(([0], np.cumsum([len(packet) for packet in packets], dtype=np.int64))),
            b"".join(packets),
            None if self.reasons is None else [self.reasons[int(row)] for row in rows],
            self.headers_only,
        )

    def aligned(self) -> Rows:
        """Return the same rows with every packet at a multiple of four bytes, padded with zeros."""
        if not (self.offsets & 3).any():
            return self
        packets = [self.packet(index) for index in range(len(self))]
        padded = [packet + bytes(-len(packet) & 3) for packet in packets]
        lengths = np.fromiter(map(len, padded), np.int64, len(padded))
        return Rows(
            self.positions,
            self.lookup_ids,
            self.arrived_at_ms,
            self.abort_counts,
            self.move_counts,
            np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
            b"".join(padded),
            self.reasons,
            self.headers_only,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The common columns of all messages of one read."""

    host: str
    queue_manager: str
    queue: str
