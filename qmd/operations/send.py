"""Sending of messages: all messages of a request, or none.

check all ──► rows into the open batch ──► (commit) ──► answer, then deliver and transmit
send_checks   send_batch
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from protocol.identifiers import guid_text
from qmd.control_protocol.messages import NewMessage
from qmd.message.prepared import PreparedPackets
from qmd.naming.fan_out import Copies
from qmd.operations.delayed import is_delayed

if TYPE_CHECKING:
    from qmd.message.shared_packet import Packet
    from qmd.operations.delayed import DelayedMessages
    from qmd.operations.packet_composer import Bounds
    from qmd.operations.send_batch import BatchSender
    from qmd.operations.send_checks import Chosen, SendChecks
    from qmd.operations.send_copies import CopySender
    from qmd.runtime.services import Services


Numbers = int | list[int]
#: A message that was checked, its way, its number or those of its copies, and its packets if made.
_Checked = tuple[NewMessage, "Chosen", object, PreparedPackets | None]


def _ignore(ids: list[object]) -> None:
    """Ignore the ids of a released message, which its application has got before."""


def flat(ids: Iterable[object]) -> list[str]:
    """Return the ids of messages and of their copies as one list, in order."""
    found: list[str] = []
    for each in ids:
        found += [each] if isinstance(each, str) else flat(each)  # type: ignore[arg-type]
    return found


class MessageSender:
    """Sender of the messages of requests."""

    def __init__(
        self,
        services: Services,
        checks: SendChecks,
        copies: CopySender,
        begin_batch: Callable[[bytes, str], BatchSender],
        release: Callable[[], None],
        protect: Callable[..., list[NewMessage]],
        delayed: DelayedMessages,
    ) -> None:
        """`begin_batch(token, transaction)` returns the sender of one request, and `release` ends
        the sequences of which all messages are acknowledged.  `protect(messages,
        in_transaction=...)` checks the signatures of messages, and encrypts them."""
        self.protect = protect
        self._delayed = delayed
        self._services = services
        self._checks = checks
        self._copies = copies
        self._begin_batch = begin_batch
        self._release = release
        self._transaction_index: int | None = None  # the last one of this run
        self.sent_count = 0

    def send(
        self,
        messages: list[NewMessage],
        token: bytes,
        done: Callable[[list[object]], None],
        owner: str = "",
    ) -> None:
        """Send all of the messages or none; `done(ids)` is called when they are durable.

        The id of a message to several queues is a list with the id of each copy.  `token` is the
        token of the request, or b""; `owner` the client that may cancel delayed messages.  Raises
        Refusal, MustAsk: then no message is sent.
        """
        self.send_protected(self.protect(messages), token, done, owner)

    def send_protected(
        self,
        messages: list[NewMessage],
        token: bytes,
        done: Callable[[list[object]], None],
        owner: str = "",
    ) -> None:
        """Send messages as `send`; they are those that `protect` has returned."""
        chosen = self._checks.check(messages)
        self.take_over(messages, chosen, token, done, owner=owner)

    def ids(self, numbers: Iterable[object]) -> list[object]:
        """Return the ids, as text, of messages of this queue manager; lists stay lists."""
        own_guid = guid_text(self._services.id)
        return [
            [f"{own_guid}\\{number}" for number in each]
            if isinstance(each, list)
            else f"{own_guid}\\{each}"
            for each in numbers
        ]

    def numbers_of(self, chosen: Sequence[Chosen]) -> list[object]:
        """Allocate a number for each message; for copies, a list of numbers."""
        following = self._services.ids.next_message_number
        return [
            [following() for _ in each.routes] if isinstance(each, Copies) else following()
            for each in chosen
        ]

    def take_over(
        self,
        messages: list[NewMessage],
        chosen: Sequence[Chosen],
        token: bytes,
        done: Callable[[list[object]], None],
        *,
        numbers: list[object] | None = None,
        in_transaction: bool = False,
        owner: str = "",
        prepared: Sequence[PreparedPackets] | None = None,
        answered: Collection[int] = (),
    ) -> None:
        """Send messages that `SendChecks.check` has accepted in the same turn of the event loop.

        `numbers` are set if they were allocated before.  With `in_transaction` the messages are
        one transaction, and `token` is its id.  Otherwise each transactional message is a
        transaction of its own.  Delayed messages are stored for their time, in the same batch.
        `prepared` has the packets of all messages, if they were made before, and `answered` the
        numbers of those of which the caller sends the acknowledgment of arrival.
        """
        self._release()  # a new sequence begins where all messages are acknowledged
        if numbers is None:
            numbers = self.numbers_of(chosen)
        transaction = token.hex() if in_transaction else ""
        batch_sender = self._begin_batch(token, transaction)
        batch_sender.answered = answered
        packets: Sequence[PreparedPackets | None] = prepared or [None] * len(messages)
        all_of_them: list[_Checked] = [*zip(messages, chosen, numbers, packets, strict=True)]
        if any(map(is_delayed, messages)):
            all_of_them = self._delay(batch_sender, all_of_them, transaction, owner)
        index, last = self._next_index(), len(all_of_them) - 1
        bounds = index, True, True
        for place, (new, way, number, packets_of_it) in enumerate(all_of_them):
            if in_transaction:
                bounds = index, place == 0, place == last
            elif place and packets_of_it is None:  # each is a transaction of its own
                bounds = self._next_index(), True, True
            self._put(batch_sender, new, way, number, bounds, packets_of_it)
        batch_sender.end(self.ids(numbers), numbers, done)

    def prepare(
        self, new: NewMessage, way: Chosen, number: object, bounds: Bounds
    ) -> PreparedPackets:
        """Return the packets of a message that `take_over` will send."""
        batch_sender = self._begin_batch(b"", "")
        if isinstance(way, Copies):
            assert isinstance(number, list)
            return self._copies.prepare(batch_sender, new, way, number, bounds)
        assert isinstance(number, int)
        route, delivery = way
        return {delivery: batch_sender.prepared(new, route, delivery, number, bounds)}

    def spread(
        self, new: NewMessage, way: Copies, numbers: object, packets: PreparedPackets
    ) -> list[Packet]:
        """Return the packets of all copies of a message, from those that `prepare` has made."""
        assert isinstance(numbers, list)
        batch_sender = self._begin_batch(b"", "")
        return self._copies.spread(batch_sender, new, way, numbers, packets)

    def release(self, new: NewMessage, way: Chosen, number: object) -> None:
        """Send a delayed message, with the numbers that it got when it was delayed; it is a
        transaction of its own if it is transactional.

        `SendChecks.check` has accepted it in the same turn of the event loop.
        """
        self._release()
        batch_sender = self._begin_batch(b"", "")
        self._put(batch_sender, new, way, number, (self._next_index(), True, True))
        batch_sender.end([], [], _ignore)

    def _put(
        self,
        batch_sender: BatchSender,
        new: NewMessage,
        way: Chosen,
        number: object,
        bounds: Bounds,
        packets: PreparedPackets | None = None,
    ) -> None:
        if isinstance(way, Copies):
            assert isinstance(number, list)
            self._copies.send(batch_sender, new, way, number, bounds, packets)
            self.sent_count += len(number)
        else:
            assert isinstance(number, int)
            prepared = None if packets is None else packets[way[1]]
            batch_sender.one(new, *way, number, bounds, prepared)
            self.sent_count += 1

    def _delay(
        self, batch_sender: BatchSender, messages: list[_Checked], transaction: str, owner: str
    ) -> list[_Checked]:
        """Store the messages that are due later; return the others."""
        now, at_once, later = self._delayed.now, [], []
        for new, way, number, packets in messages:
            row = None
            if is_delayed(new):
                row = self._delayed.keep(
                    new, way, cast(Numbers, number), transaction=transaction, owner=owner, now=now
                )
            if row is None:
                at_once.append((new, way, number, packets))
            else:
                later.append(row)
        if later:
            self._delayed.store(later, batch_sender.batch)
            batch_sender.has_delayed = True
        return at_once

    def _next_index(self) -> int:
        """Allocate the index of a transaction, of 20 bits.  [MS-MQMQ] 2.2.20.5

        They begin at the message number of the time.  Every transaction has a message, so the
        numbers of messages are ahead of the indexes of earlier runs, and a start repeats none.
        """
        if self._transaction_index is None:
            self._transaction_index = self._services.ids.upcoming_message_number
        self._transaction_index = self._transaction_index + 1 & 0xFFFFF
        return self._transaction_index

    def next_indexes(self, count: int) -> int:
        """Allocate `count` consecutive indexes of transactions; return the first."""
        first = self._next_index()
        self._transaction_index = first + count - 1 & 0xFFFFF
        return first
