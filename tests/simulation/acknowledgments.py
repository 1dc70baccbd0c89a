"""What senders hear of their messages in their administration queues, and whether that is true.

A message may ask for an acknowledgment of its arrival, of its receipt, or of the failure of either.
Each that it asks for comes once, and none that it does not; a positive one is a promise as good as
that of a queue manager to its application.  This file knows nothing of qmd's code.
[MS-MQMQ] 2.2.18.1.6, 2.2.20.6; [MS-MQQB] 3.1.5.8.10, 3.1.7.15
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.copies import Identity, wire_identity

QUEUE = "acks"  # where the writers of a host have them sent

# What a message asks for, MessagePropertiesHeader.Flags.
ARRIVAL, RECEIPT, NO_ARRIVAL, NO_RECEIPT = 1, 2, 4, 8
WISHES = (15, 15, 15, ARRIVAL | NO_ARRIVAL, RECEIPT | NO_RECEIPT, NO_ARRIVAL | NO_RECEIPT, RECEIPT)

# What an acknowledgment says, by its class.
REACHED, RECEIVED, REACH_TIMEOUT = 0x0002, 0x4000, 0x8002
_NEGATIVE, _OF_RECEIPT = 0x8000, 0x4000
_MACHINE_BYTES = 16


def wish(message_class: int) -> int:
    """What has to be asked for to be told so."""
    is_of_receipt, is_negative = message_class & _OF_RECEIPT, message_class & _NEGATIVE
    return (RECEIPT if is_of_receipt else ARRIVAL) << (2 if is_negative else 0)


class Acknowledged(Protocol):
    """What is known of a message that asked for something."""

    number: int
    delivery: str
    wishes: int
    lifetime_s: int | None


class Acknowledgment(Protocol):
    """As an application receives it."""

    @property
    def id(self) -> str: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def delivery(self) -> str: ...
    @property
    def message_class_number(self) -> int: ...


@dataclass(slots=True)
class _Heard:
    """Of one message: by the identity of each acknowledgment, its class."""

    classes: dict[Identity, int] = field(default_factory=dict)


class Acknowledgments:
    """`fail` is called with a sentence for each broken promise."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._heard: dict[Identity, _Heard] = defaultdict(_Heard)
        self._done: set[Identity] = set()  # of acknowledgments that were removed for good
        self._identities: dict[int, Identity] = {}
        self._numbers: dict[Identity, int] = {}

    def known(self, number: int, sent_id: str) -> Identity:
        """A message's sender was told its id."""
        identity = self._identities[number] = wire_identity(sent_id)
        self._numbers[identity] = number
        return identity

    def came(self, message: Acknowledgment) -> tuple[int | None, int]:
        """An application has one in its hands; of which message, and its class.  It may come again
        until it is `removed`."""
        identity = wire_identity(message.id)
        if identity in self._done and message.delivery != "express":
            self._fail(f"acknowledgment {message.id} was received twice")
        original = message.correlation_id
        assert original is not None, "an acknowledgment of nothing"
        heard = self._heard[wire_identity(original)]
        heard.classes[identity] = message.message_class_number
        return self._numbers.get(wire_identity(original)), message.message_class_number

    def removed(self, message: Acknowledgment) -> None:
        self._done.add(wire_identity(message.id))

    def lost_disk(self) -> None:
        """Some host remembers no more what came to it."""
        self._done.clear()

    def of(self, number: int) -> list[int]:
        """The classes of all that came for a message."""
        identity = self._identities.get(number)
        heard = self._heard.get(identity) if identity is not None else None
        return [] if heard is None else sorted(heard.classes.values())

    def _tellings(self, number: int) -> list[tuple[bytes, int]]:
        """The same, and who says so."""
        heard = self._heard[self._identities[number]] if number in self._identities else _Heard()
        return [(teller, each) for (teller, _), each in heard.classes.items()]

    def check(self, message: Acknowledged, *, is_exact: bool) -> None:
        """What must hold of a message at any time; `is_exact`: no disk was lost on the way."""
        classes = self.of(message.number)
        told: list[int] | list[tuple[bytes, int]]
        for each in classes:
            if not wish(each) & message.wishes:
                self._fail(f"message {message.number} did not ask to hear {each:#06x}")
        if message.delivery == "express" or not is_exact:
            return  # such may be doubled
        # Where time is limited both ends find out by themselves that it is over; and its source
        # may give a message up while its destination has it already.
        told = self._tellings(message.number) if message.lifetime_s is not None else classes
        if len(set(told)) != len(told):
            self._fail(f"message {message.number} was acknowledged twice: {_text(classes)}")
        if message.lifetime_s is not None:
            return
        ends = [each for each in classes if each != REACHED]
        if len(ends) > 1 or (REACHED in classes and any(_is_refusal(each) for each in ends)):
            self._fail(f"message {message.number} has several ends: {_text(classes)}")

    def check_end(self, message: Acknowledged, *, was_received: bool) -> None:
        """And when nothing is under way any more, of one that was not lost."""
        classes, wishes = self.of(message.number), message.wishes
        negative = [each for each in classes if each & _NEGATIVE]
        if was_received:
            missing = [
                each for each in (REACHED, RECEIVED) if wish(each) & wishes and each not in classes
            ]
        else:
            is_told = negative or (NO_ARRIVAL | NO_RECEIPT) & ~wishes
            missing = [] if is_told else [_NEGATIVE]
        if missing:
            self._fail(
                f"message {message.number} asked for {wishes:#x}, and nobody told it"
                f" {_text(missing)}, only {_text(classes)}"
            )


def _is_refusal(message_class: int) -> bool:
    return bool(message_class & _NEGATIVE) and not message_class & _OF_RECEIPT


def _text(classes: list[int]) -> str:
    return ", ".join(f"{each:#06x}" for each in classes) or "nothing"
