"""A transaction of an application that has not ended."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from qmd.control_protocol.messages import NewMessage
from qmd.naming.fan_out import Several
from qmd.queues.local_queue import LocalQueue, Reader


@dataclass(slots=True, eq=False)
class Transaction:
    """One that has not ended."""

    id: bytes
    owner: Hashable  # the connection that began it
    idle_s: float
    began_at: float  # loop time
    used_at: float
    reader: Reader = field(default_factory=Reader)
    messages: list[NewMessage] = field(default_factory=list)
    numbers: list[object] = field(default_factory=list)  # of the messages
    #: Of those to several queues, which these were when they were sent.
    several: list[Several | None] = field(default_factory=list)
    bytes: int = 0  # of their bodies
    kept_bytes: int = 0  # of memory
    #: What is to be done with received messages other than to remove them: by queue and place.
    moves: dict[tuple[LocalQueue, int], tuple[LocalQueue, str]] = field(default_factory=dict)
    rejections: dict[tuple[LocalQueue, int], str] = field(default_factory=dict)
    is_committing: bool = False
    doom: str = ""  # why a message could not be sent in it: it can only be aborted
    choosing: int = 0  # requests for messages that are meant, and not answered yet

    def __post_init__(self) -> None:
        self.reader.who = f"transaction {self.id.hex()}"

    @property
    def taken_count(self) -> int:
        return sum(len(mine) for mine in self.reader.taken.values())
