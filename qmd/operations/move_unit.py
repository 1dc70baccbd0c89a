"""Move unit: the changes of the database that move messages to another queue, in one commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from qmd.core.packet_fields import message_number, source_of
from storage.tables import events, outcomes, own_dead_letters
from storage.tables import messages as message_rows
from storage.tables import queues as queue_rows
from storage.tables.events import Event
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    import sqlite3

Result = dict[str, Any]


class MessagesGone(Exception):
    """The error that named messages are not there any more; no message is moved."""

    def __init__(self, lookup_ids: set[int]) -> None:
        super().__init__(lookup_ids)
        self.lookup_ids = lookup_ids


class MovedMessage(NamedTuple):
    """A message to move."""

    lookup_id: int
    to_lookup_id: int
    packet: bytes
    new_packet: bytes | None  # replaces the packet; None: it stays
    is_express: bool  # in memory only: it has no row


class Answer(NamedTuple):
    """The answer to the request for a move; `token` is that of the request, or b""."""

    token: bytes
    taken: int
    next: int | None
    until: int

    def result(self, messages: int, size: int) -> Result:
        """Return the answer, with the moved messages and the bytes of their packets."""
        return {
            "messages": messages,
            "bytes": size,
            "taken": self.taken,
            "next": self.next,
            "until": self.until,
        }


class Moved(NamedTuple):
    """The messages that were there and have been moved."""

    lookup_ids: set[int]  # in their old queue
    bytes: int


@dataclass(frozen=True, slots=True)
class MoveUnit:
    """Unit of work of a move: its rows, its events and the outcome of the request."""

    own_id: bytes
    queue_id: int
    to_queue_id: int
    messages: list[MovedMessage]
    recorded: list[Event]  # about all of `messages`
    answer: Answer | None
    is_named: bool  # whether the request names the messages: then all must be there
    at_ms: int
    now_s: int

    def __call__(self, db: sqlite3.Connection) -> Moved:
        """Move the messages.  Raises NoSuchQueue if the target was deleted, and MessagesGone."""
        queue_rows.get(db, self.to_queue_id)
        base, to_base = self.queue_id << LOOKUP_BITS, self.to_queue_id << LOOKUP_BITS
        stored = [each for each in self.messages if not each.is_express]
        found = message_rows.move(
            db,
            [
                message_rows.Move(
                    base | each.lookup_id, to_base | each.to_lookup_id, each.new_packet
                )
                for each in stored
            ],
            self.at_ms,
        )
        gone = {each.lookup_id for each in stored if base | each.lookup_id not in found}
        if gone and self.is_named:
            raise MessagesGone(gone)
        done = [each for each in self.messages if each.lookup_id not in gone]
        own_dead_letters.moved(
            db,
            [
                (message_number(each.packet), base | each.lookup_id, to_base | each.to_lookup_id)
                for each in done
                if not each.is_express and source_of(each.packet) == self.own_id
            ],
        )
        if done:
            events.insert(db, _about(self.recorded, {each.to_lookup_id for each in done}))
        size = sum(len(each.packet) for each in done)
        if self.answer is not None and self.answer.token:
            result = msgspec.msgpack.encode(self.answer.result(len(done), size))
            outcomes.record(db, [(self.answer.token, result, self.now_s)])
        return Moved({each.lookup_id for each in done}, size)


def _about(recorded: list[Event], places: set[int]) -> list[Event]:
    """Return the events, about the messages at these places only."""
    about: list[Event] = []
    for event in recorded:
        kept = [index for index, place in enumerate(event.places) if place in places]
        if len(kept) == len(event.places):
            about.append(event)
        elif kept:
            about.append(
                msgspec.structs.replace(
                    event,
                    numbers=[event.numbers[index] for index in kept],
                    places=[event.places[index] for index in kept],
                    sizes=[event.sizes[index] for index in kept],
                )
            )
    return about
