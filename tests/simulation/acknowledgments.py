"""The acknowledgments that administration queues receive, and whether they are true.

A message may ask for an acknowledgment of its arrival, of its receipt, or of the failure of either.
It gets each acknowledgment that it asks for once, and no other.  A positive one is a promise like
that of a queue manager to its application.  This file knows nothing of qmd's code.
[MS-MQMQ] 2.2.18.1.6, 2.2.20.6; [MS-MQQB] 3.1.5.8.10, 3.1.7.15
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.message_copies import Identity, wire_identity

QUEUE = "acks"  # the administration queue that the writers of a host name

# The acknowledgments that a message can ask for, MessagePropertiesHeader.Flags.
ARRIVAL, RECEIPT, NO_ARRIVAL, NO_RECEIPT = 1, 2, 4, 8
REQUESTS = (
    15,
    15,
    15,
    ARRIVAL | NO_ARRIVAL,
    RECEIPT | NO_RECEIPT,
    NO_ARRIVAL | NO_RECEIPT,
    RECEIPT,
)

# Classes of acknowledgments.
REACHED, RECEIVED, REACH_TIMEOUT = 0x0002, 0x4000, 0x8002
_NEGATIVE, _OF_RECEIPT = 0x8000, 0x4000
_MACHINE_BYTES = 16


def required_flag(message_class: int) -> int:
    """Return the flag with which a message asks for acknowledgments of this class."""
    is_of_receipt, is_negative = message_class & _OF_RECEIPT, message_class & _NEGATIVE
    return (RECEIPT if is_of_receipt else ARRIVAL) << (2 if is_negative else 0)


class Acknowledged(Protocol):
    """A message that asked for acknowledgments."""

    number: int
    delivery: str
    requested_acks: int
    lifetime_s: int | None


class Acknowledgment(Protocol):
    """An acknowledgment as an application receives it."""

    @property
    def id(self) -> str: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def delivery(self) -> str: ...
    @property
    def message_class_number(self) -> int: ...


@dataclass(slots=True)
class _Received:
    """The acknowledgments of one message: their classes by their identities."""

    classes: dict[Identity, int] = field(default_factory=dict)


class Acknowledgments:
    """Received acknowledgments; `fail` is called with a sentence for each broken promise."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._received: dict[Identity, _Received] = defaultdict(_Received)
        self._done: set[Identity] = set()  # acknowledgments that were removed for good
        self._identities: dict[int, Identity] = {}
        self._numbers: dict[Identity, int] = {}

    def sent(self, number: int, sent_id: str) -> Identity:
        """Record the id that the sender of a message got, and return its identity."""
        identity = self._identities[number] = wire_identity(sent_id)
        self._numbers[identity] = number
        return identity

    def received(self, message: Acknowledgment) -> tuple[int | None, int]:
        """Record an acknowledgment; return the number of its message, if known, and its class.

        It may be received again until it is `removed`.
        """
        identity = wire_identity(message.id)
        if identity in self._done and message.delivery != "express":
            self._fail(f"acknowledgment {message.id} was received twice")
        original = message.correlation_id
        assert original is not None, "an acknowledgment without correlation id"
        received = self._received[wire_identity(original)]
        received.classes[identity] = message.message_class_number
        return self._numbers.get(wire_identity(original)), message.message_class_number

    def removed(self, message: Acknowledgment) -> None:
        """Record that an acknowledgment was removed for good."""
        self._done.add(wire_identity(message.id))

    def lost_disk(self) -> None:
        """Record that a host lost its disk: acknowledgments may be received again."""
        self._done.clear()

    def classes_of(self, number: int) -> list[int]:
        """Return the classes of all acknowledgments of a message."""
        identity = self._identities.get(number)
        received = self._received.get(identity) if identity is not None else None
        return [] if received is None else sorted(received.classes.values())

    def _classes_by_source(self, number: int) -> list[tuple[bytes, int]]:
        """Return the source and the class of each acknowledgment of a message."""
        identity = self._identities.get(number)
        received = self._received[identity] if identity is not None else _Received()
        return [(source, each) for (source, _), each in received.classes.items()]

    def check(self, message: Acknowledged, *, is_exact: bool) -> None:
        """Check the acknowledgments of a message at any time; `is_exact`: no disk was lost."""
        classes = self.classes_of(message.number)
        reported: list[int] | list[tuple[bytes, int]]
        for each in classes:
            if not required_flag(each) & message.requested_acks:
                self._fail(f"message {message.number} did not ask for acknowledgment {each:#06x}")
        if message.delivery == "express" or not is_exact:
            return  # these may be doubled
        # Both ends detect the end of a limited lifetime; and the source may give a message up while
        # its destination has it already.
        reported = (
            self._classes_by_source(message.number) if message.lifetime_s is not None else classes
        )
        if len(set(reported)) != len(reported):
            self._fail(f"message {message.number} was acknowledged twice: {_text(classes)}")
        if message.lifetime_s is not None:
            return
        ends = [each for each in classes if each != REACHED]
        if len(ends) > 1 or (REACHED in classes and any(_is_refusal(each) for each in ends)):
            self._fail(f"message {message.number} has several ends: {_text(classes)}")

    def check_end(self, message: Acknowledged, *, was_received: bool) -> None:
        """Check that a message that was not lost has its acknowledgments, after all are sent."""
        classes, requested = self.classes_of(message.number), message.requested_acks
        negative = [each for each in classes if each & _NEGATIVE]
        if was_received:
            missing = [
                each
                for each in (REACHED, RECEIVED)
                if required_flag(each) & requested and each not in classes
            ]
        else:
            is_complete = negative or (NO_ARRIVAL | NO_RECEIPT) & ~requested
            missing = [] if is_complete else [_NEGATIVE]
        if missing:
            self._fail(
                f"message {message.number} asked for {requested:#x}, and got no acknowledgment"
                f" {_text(missing)}, only {_text(classes)}"
            )


def _is_refusal(message_class: int) -> bool:
    return bool(message_class & _NEGATIVE) and not message_class & _OF_RECEIPT


def _text(classes: list[int]) -> str:
    return ", ".join(f"{each:#06x}" for each in classes) or "nothing"
