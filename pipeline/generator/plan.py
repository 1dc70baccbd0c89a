"""The plan of a fleet, and the vocabulary of its logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

DAY_US = 86_400_000_000

KINDS = (
    *("started", "sent", "transmitted", "retransmitted", "out_of_order", "accepted", "duplicate"),
    *("refused", "session_acknowledged", "order_acknowledged", "final_ack_received", "received"),
    *("expired", "lost", "dead_lettered", "discarded", "final_ack_sent"),
)
KIND = {name: code for code, name in enumerate(KINDS)}
CLASSES = ("nack_reach_queue_timeout", "nack_receive_timeout", "nack_access_denied",
            "nack_bad_destination_queue", "nack_queue_exceed_quota")  # fmt: skip
LABELS = ("order", "invoice", "meter reading", "telemetry", "stock")
QUEUES = ("orders", "invoices", "readings", "telemetry", "stock")

Array = Any  # of numpy
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The plan of a fleet.  Figures are totals; `messages` is exact except for gaps."""

    hosts: int = 20
    streams: int = 100
    messages: int = 50_000
    days: int = 2
    start: datetime = datetime(2026, 9, 21, tzinfo=UTC)
    seed: int = 1
    faults: dict[str, int] = field(default_factory=dict)
    plain_share: float = 0.1  # of the streams: recoverable ones, and half as many express ones
    largest_share: float = 0.0  # of all messages in one transactional stream; 0: as it comes
    outages: int = 1  # of each host, on average: no message arrives during an outage

    def __post_init__(self) -> None:
        if self.hosts < 2 or self.streams < 1 or self.messages < self.streams or self.days < 1:
            raise ValueError(
                "a fleet has 2 hosts or more, 1 stream or more, no fewer messages than streams,"
                " and 1 day or more"
            )
        if not 0 <= self.largest_share < 1:
            raise ValueError("the share of the largest stream is at least 0 and below 1")


def host_name(host: int) -> str:
    return f"host{host:03d}"
