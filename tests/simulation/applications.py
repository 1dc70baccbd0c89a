"""The common parts of applications, which report every result to the oracle.

An application uses a queue manager through `qmd.client`.  It is the main function of a process that
may be killed at any moment and is started again; its task is kept here, outside of the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from qmd.client import (
    Message,
    copies_of,
)
from tests.simulation.message_records import Outcome, Sent
from tests.simulation.oracle import Oracle
from tests.simulation.world import Host

RECONNECT_S = 5.0
PAUSE_S = 0.2  # after each failure
WAIT_S, WAIT_S_MAX = 5.0, 60.0  # for messages; it grows while none arrive


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that the operator of each host creates."""

    name: str
    transactional: bool
    quota_bytes: int | None = None
    journal: bool = False  # it keeps copies of received messages
    retry_delay_s: float = 0.0  # how long a message waits that a transaction has aborted
    groups: bool = False  # it gives the messages of a group to one reader at a time

    @property
    def key(self) -> str:
        return f"private$\\{self.name}"


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A kind of message: its queue, its delivery and its outcome."""

    queue: str
    delivery: str
    outcome: Outcome = Outcome.RECEIVED
    lifetime_s: int | None = None  # to reach the queue
    receive_within_s: int | None = None
    keeps: bool = False  # the queue has a journal
    is_ordered: bool = True  # False if several readers share the queue


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue on a host, and the kind of the messages for it."""

    host: str
    format_name: str
    kind: MessageKind

    @property
    def elements(self) -> tuple[Destination, ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class DestinationList:
    """The queues that get copies of one message.

    `kind` is that of the message; each element has the outcome of its copy.
    """

    elements: tuple[Destination, ...]
    kind: MessageKind

    @property
    def format_name(self) -> str:
        return ",".join(each.format_name for each in self.elements)


@dataclass(frozen=True, slots=True)
class Topic(DestinationList):
    """A topic with a subscription for each element."""

    name: str = ""

    @property
    def format_name(self) -> str:
        return f"topic:{self.name}"


def attempt(
    host: Host,
    oracle: Oracle,
    messages: list[Sent],
    how: str,
    destination: Destination | DestinationList,
) -> int:
    """Report to the oracle that messages are about to be sent, and return their common mark.

    Several messages are the copies of one.
    """
    number = messages[0].number
    if len(messages) > 1:
        oracle.attempted_copies(messages)
        host.world.happened("sent to several queues", host.name)
    else:
        oracle.attempted(messages[0])
    host.world.note("send", host.name, number, how, destination.format_name)
    return number


@dataclass(frozen=True, slots=True)
class Sending:
    """A message of an application, as it is sent."""

    messages: list[Sent]  # one for each copy
    destination: Destination | DestinationList
    body: bytes
    properties: dict[str, Any]

    def confirmed(self, oracle: Oracle, sent_id: str) -> None:
        if len(self.messages) > 1:
            oracle.confirmed_copies(self.messages, copies_of(sent_id))
        else:
            oracle.confirmed(self.messages[0], sent_id)


def numbers_of(oracle: Oracle, host: Host, queue: Queue, messages: Iterable[Message]) -> list[int]:
    found = (oracle.number_of(host.name, queue.key, message) for message in messages)
    return [number for number in found if number is not None]
