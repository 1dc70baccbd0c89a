"""The state that the parts of the oracle share: what applications have reported so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulation.message_records import Place, Sent

COPY_KINDS = ("journal", "kept")  # places of copies, which do not count as the message itself


@dataclass(slots=True, eq=False)
class OracleState:
    """Messages, their deliveries and the losses of disks.

    `fail` is called with a sentence for each broken promise.  `life_of` returns how often a host's
    daemon has died: each death loses its memory.  `was_full` returns whether a host's disk was ever
    full: a full disk may keep no copies.
    """

    fail: Callable[[str], None]
    life_of: Callable[[str], int]
    was_full: Callable[[str], bool]
    relays: Sequence[str] = ()  # hosts over which messages may go
    messages: dict[int, Sent] = field(default_factory=dict)
    disk_lives: Counter[str] = field(default_factory=Counter)  # host -> number of lost disks
    #: (host, queue) -> number of messages that a reader may be receiving now.
    in_delivery: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: (host, queue) -> number of messages that readers may have received before they died.
    lost_in_delivery: Counter[tuple[str, str]] = field(default_factory=Counter)
    delivered: set[tuple[int, int]] = field(default_factory=set)  # (number, life of the disk)

    def lives(self, source: str, target: str) -> tuple[int, ...]:
        """Return the lives of the daemons that a message from `source` to `target` may meet."""
        return tuple(map(self.life_of, (source, target, *self.relays)))

    @property
    def has_lost_disk(self) -> bool:
        return bool(self.disk_lives.total())

    def begin_removal(self, numbers: Iterable[int]) -> None:
        """Record that an application asks for the removal of messages."""
        for number in numbers:
            self.messages[number].removals_in_doubt += 1

    def end_removal(self, numbers: Iterable[int]) -> None:
        """Record that the outcome of a removal is known."""
        for number in numbers:
            self.messages[number].removals_in_doubt -= 1

    def may_be_in_delivery(self, message: Sent) -> bool:
        """Return whether a reader may have received the message without reporting it."""
        queue = message.target, message.queue
        return bool(self.lost_in_delivery[queue] or self.in_delivery[queue])

    def may_be_received(self, message: Sent) -> bool:
        """Return whether the message was received, or may have been."""
        return bool(
            message.received or message.removals_in_doubt or self.may_be_in_delivery(message)
        )


def counts(message: Sent, place: Place) -> bool:
    """Return whether a message in this place is safe.

    A relay is responsible for plain messages.  A transactional message stays at its source until
    its destination has it.
    """
    return place.kind != "relayed" or message.delivery != "transactional"


def holds(message: Sent, place: Place) -> bool:
    """Return whether this place holds the message itself, not a copy."""
    return place.kind not in COPY_KINDS and counts(message, place)
