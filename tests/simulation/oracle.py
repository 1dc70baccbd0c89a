"""What was promised, and whether it was kept.  This file knows nothing of qmd's code.

It hears what applications were told: *confirmed* (the message is safe), *received* (it was removed
for good, and is theirs).  And it looks into the databases, with SQL of its own, where a message is
known by a mark in its body.  Then:

    a confirmed message is in one place: a queue, a dead-letter queue, or an application's hands
    nobody receives a message twice, or two messages of a stream in the wrong order
    a request is done as a whole or not at all

Of a message to several queues each copy is a message here, and all of them are one request.  Their
bodies are the same: they are told apart by where they go, and by the number that their queue
manager gave each (copies.py).

Express messages may be lost when a process dies, and so may what a lost disk held.
"""

from __future__ import annotations

import math
import re
import sqlite3
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tests.ledger import Message, disagreements
from tests.process import wire
from tests.simulation import acknowledgments, vfs
from tests.simulation.acknowledgments import Acknowledgment, Acknowledgments
from tests.simulation.contents import Contents
from tests.simulation.copies import Copies, CopyFound, Received, wire_identity
from tests.simulation.disk import BorrowedDisk
from tests.stored_packets import missing_parts, packets, unshared_parts

_MARK = re.compile(rb"<message (\d+)>")
_LOOKUP_BITS, _ARRIVAL_BITS = 48, 44
_IN_SEQUENCE = 8  # the level of transactional messages on their way: they have numbers
_FOR_OTHERS = " for others"  # a queue of what is only passed on
_ACKNOWLEDGED_TO = f"\\{acknowledgments.QUEUE}\0".encode("utf-16-le")  # the end of a name
_COPIES = ("journal", "kept")  # that say nothing of where the message is
_KINDS = {
    "system$;deadletter": "dead",
    "system$;deadxact": "dead",
    "system$;journal": "journal",
}


def mark(number: int) -> bytes:
    """What the body of a message must contain."""
    return b"<message %d>" % number


def marked(body: bytes) -> int | None:
    found = _MARK.search(body)
    return int(found[1]) if found else None


class Fate(Enum):
    """How a message must end."""

    RECEIVED = "received"
    REFUSED = "refused by its destination"
    PERHAPS = "received, or a dead letter: its time may be over, or its queue full"
    UNCERTAIN = "whatever happens to its queue happens to it as well; at most once received"


@dataclass(slots=True, eq=False)
class Sent:
    """A message that an application sent, or tried to."""

    number: int
    stream: str  # messages of one stream are received in the order of their numbers
    source: str
    target: str
    queue: str
    delivery: str
    fate: Fate
    wants_dead_letter: bool
    wants_journal: bool
    request: int
    lives: tuple[int, ...]  # of the daemons, when it was sent
    rank: int = 0  # in its stream; copies for one queue have the same.  0: that of its number
    is_kept: bool = False  # in the journal of its queue, when it is received from there
    is_ordered: bool = True  # those of its stream are received one after the other
    is_awaited: bool = False  # its source keeps it until it has heard that somebody received it
    wishes: int = 0  # which acknowledgments it asked for
    lifetime_s: int | None = None  # to reach its queue, or to be received
    rejected_in: int | None = None  # in this life of the target's disk somebody rejected it
    confirmed: bool = False
    refused: bool = False  # the queue manager said that it was not sent
    received: list[int | None] = field(default_factory=list)  # in this life of the target's daemon
    removals_in_doubt: int = 0
    may_be_lost: bool = False


@dataclass(slots=True, eq=False)
class Transaction:
    """What an application took from a queue, and what it sent with it."""

    taken: list[int]
    sent: list[Sent]


class Place(NamedTuple):
    """Where a message lies: in a `queue` of `host`, or on its way ("outgoing").

    "relayed": on its way, at neither of its ends.  "awaiting": a copy at its source, which wants to
    hear what became of it.  "journal" and "kept": copies in the journal of its source, and in that
    of its queue.
    """

    host: str
    kind: str  # "queue", "dead", "journal", "kept", "outgoing", "relayed", "awaiting"
    queue: str


class Totals(NamedTuple):
    messages: int
    bytes: int


class Found(NamedTuple):
    """What one host's database holds."""

    places: dict[int, list[Place]]
    queues: dict[str, Totals]
    outgoing: dict[str, Totals]
    awaiting: dict[str, Totals]  # by their destination
    contradictions: Sequence[str] = ()  # between the log of events and the tables
    told: Mapping[str, int] = {}  # of how many messages the log tells what: of each kind of event
    aborts: Mapping[int, int] = {}  # of messages in queues: how often they were received in vain
    copies: Sequence[CopyFound] = ()  # of messages to several queues: not in `places` yet


class Oracle:
    """`fail` is called with a sentence for each broken promise.

    `life_of` tells how often a host's daemon has died: what was in its memory is then gone.
    `was_full`: whether its disk ever was, when no copies are kept.
    """

    def __init__(
        self,
        fail: Callable[[str], None],
        life_of: Callable[[str], int],
        was_full: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._fail = fail
        self._life_of = life_of
        self._was_full = was_full
        self.relays: Sequence[str] = ()  # hosts over which messages may go
        self.is_order_of_plain_kept = True  # not where they go now this way, now that
        self._last_number = 0
        self._last_request = 0
        self.messages: dict[int, Sent] = {}
        self._open: dict[int, Sent] = {}  # of those, what may still be missing somewhere
        self.requests: dict[int, list[Sent]] = defaultdict(list)
        self.disk_lives: Counter[str] = Counter()  # of each host
        self._last: dict[tuple[str, int], int] = {}  # (stream, life of the disk) -> number
        self.in_hands: Counter[tuple[str, str]] = Counter()  # so many may be handed over just now
        self._unseen: Counter[tuple[str, str]] = Counter()  # (host, queue) -> how many at most
        self._repeated: set[tuple[int, int]] = set()  # (number, life of the disk) received
        self.transactions: list[Transaction] = []  # whose outcome nobody knows
        self.copies: dict[int, Copies] = {}  # by the mark that they bear
        self.acknowledgments = Acknowledgments(fail)
        self._aborts: Counter[tuple[int, int]] = Counter()  # (number, life of the disk) -> told of
        self._asking: list[Sent] = []  # of which somebody wants to hear
        # Of which somebody heard that they were received, before an application said so.
        self._told_received: dict[int, Sent] = {}
        self._unheard: dict[str, float] = {}  # (host) -> up to which number it need not hear

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def next_request(self) -> int:
        self._last_request += 1
        return self._last_request

    def lives(self, source: str, target: str) -> tuple[int, ...]:
        return tuple(map(self._life_of, (source, target, *self.relays)))

    # What applications are told.

    def attempted(self, message: Sent) -> None:
        self.messages[message.number] = self._open[message.number] = message
        if message.wishes:
            self._asking.append(message)
        self.requests[message.request].append(message)

    def attempted_copies(self, messages: Sequence[Sent]) -> None:
        """One message to several queues; its mark is the number of the first copy."""
        mark = messages[0].number
        self.copies[mark] = Copies((each.target, each.queue, each.number) for each in messages)
        for message in messages:
            message.rank = mark
            self.attempted(message)

    def confirmed(self, message: Sent, sent_id: str) -> None:
        message.confirmed = True
        if message.wishes:
            self.acknowledgments.known(message.number, sent_id)
            self._check_acknowledged(message)

    def confirmed_copies(self, messages: Sequence[Sent], ids: Sequence[str]) -> None:
        """`ids`: what its sender was told of each, in the order of the queues."""
        if problem := self.copies[messages[0].number].told(ids):
            self._fail(f"of the copies {messages[0].number} to {messages[-1].number} {problem}")
        for message, sent_id in zip(messages, ids, strict=False):
            self.confirmed(message, sent_id)

    def number_of(self, host: str, queue: str, message: Received) -> int | None:
        """Which message somebody has received there."""
        number = marked(message.body)
        if number is None or number not in self.copies:
            return number
        found = self.copies[number].number_of(host, queue, wire_identity(message.id))
        if found is None:
            self._fail(f"message {number} came to {queue}@{host} more often than it was sent")
        return found

    def place_copies(self, found: Found, *, durable: bool) -> None:
        """Find out which copies a host has.  What is not durable may be undone: nothing that it
        shows is remembered."""
        forgotten = {} if durable else {mark: copies.learned() for mark, copies in self._in(found)}
        for copy in found.copies:
            number = self.copies[copy.mark].number_of(copy.target, copy.queue, copy.identity)
            if number is None:
                self._fail(
                    f"message {copy.mark} for {copy.queue}@{copy.target} is in {copy.place}, more"
                    " often than it was sent there"
                )
            else:
                found.places.setdefault(number, []).append(Place(*copy.place))
        for mark, learned in forgotten.items():
            self.copies[mark].forget(learned)

    def _in(self, found: Found) -> Iterator[tuple[int, Copies]]:
        for mark in {copy.mark for copy in found.copies}:
            yield mark, self.copies[mark]

    def refused(self, message: Sent) -> None:
        message.refused = True

    def removing(self, numbers: list[int]) -> None:
        for number in numbers:
            self.messages[number].removals_in_doubt += 1

    def not_removed(self, numbers: list[int]) -> None:
        for number in numbers:
            self.messages[number].removals_in_doubt -= 1

    def rejected(self, host: str, numbers: list[int]) -> None:
        """An application was told that nobody will see them again."""
        for number in numbers:
            self.messages[number].rejected_in = self.disk_lives[host]

    def received(self, host: str, queue: str, number: int, life: int | None) -> None:
        message = self.messages.get(number)
        if message is None:
            self._fail(f"message {number} was received and never sent")
            return
        if message.rejected_in == self.disk_lives[host] and message.delivery != "express":
            self._fail(f"message {number} was received after it had been rejected")
        if (host, queue) != (message.target, message.queue):
            self._fail(f"message {number} for {message.target} came to {queue}@{host}")
        if message.refused:
            self._fail(f"message {number} was received, and its sender was told it is not sent")
        if message.fate is Fate.REFUSED:
            self._fail(f"message {number} was received although {queue}@{host} does not take it")
        disk_life = self.disk_lives[host]
        if (number, disk_life) in self._repeated:
            # Express messages are remembered as long as the process lives.
            if message.delivery != "express" or (life is not None and life in message.received):
                self._fail(f"message {number} ({message.delivery}) was received twice")
        else:
            last = self._last.get((message.stream, disk_life), 0)
            rank = message.rank or number
            has_order = message.delivery == "transactional" or self.is_order_of_plain_kept
            if rank < last and has_order and message.is_ordered:
                self._fail(f"message {number} was received after {last} of {message.stream}")
            self._last[message.stream, disk_life] = max(last, rank)
        self._repeated.add((number, disk_life))
        message.received.append(life)

    def acknowledged(self, host: str, message: Acknowledgment) -> None:
        """Somebody there has an acknowledgment in its hands."""
        number, _ = self.acknowledgments.came(message)
        if number is not None:
            self._check_acknowledged(self.messages[number])
            if self.messages[number].source != host:
                self._fail(f"message {number} was acknowledged to {host}")

    def stops_hearing(self, host: str) -> None:
        """Its administration queue is to be deleted, with what is in it."""
        self._unheard[host] = math.inf

    def hears_again(self, host: str) -> None:
        """It has one: of whatever is sent from now on somebody hears there."""
        if host in self._unheard:
            self._unheard[host] = min(self._unheard[host], self._last_number)

    def _check_acknowledged(self, message: Sent) -> None:
        """When something is heard of it.  What was heard before stays true, but that nobody knows
        whether it was received."""
        self.acknowledgments.check(message, is_exact=not self.disk_lives.total())
        if not message.received and acknowledgments.RECEIVED in self.acknowledgments.of(
            message.number
        ):
            self._told_received[message.number] = message
            self._check_told_received(message)

    def _check_told_received(self, message: Sent) -> None:
        if not self._is_or_may_be_received(message):
            self._fail(f"message {message.number} is acknowledged as received, and nobody has it")

    def _is_or_may_be_received(self, message: Sent) -> bool:
        where = message.target, message.queue
        return bool(
            message.received
            or message.removals_in_doubt
            or self._unseen[where]
            or self.in_hands[where]
        )

    # Transactions: what they take from their queue, and what they send, happens together.

    def committing(self, taken: list[int], sent: list[Sent]) -> Transaction:
        self.removing(taken)
        transaction = Transaction(taken, sent)
        self.transactions.append(transaction)
        return transaction

    def committed(self, transaction: Transaction) -> None:
        self.transactions.remove(transaction)
        self.not_removed(transaction.taken)
        for message in transaction.sent:
            message.confirmed = True

    def aborted(self, transaction: Transaction) -> None:
        """The application was told that nothing was done."""
        self.transactions.remove(transaction)
        self.not_removed(transaction.taken)
        for message in transaction.sent:
            self.refused(message)

    def abort_counts(self, taken: list[int]) -> None:
        """An application was told that the transaction in which it had them is aborted."""
        for number in taken:
            self._aborts[number, self.disk_lives[self.messages[number].target]] += 1

    def seen_aborted(self, number: int, times: int) -> None:
        """A message says that it was received in vain so often."""
        known = self._aborts[number, self.disk_lives[self.messages[number].target]]
        if times < known:
            self._fail(f"message {number} was given back {known} times, and says {times}")

    def reader_died(self, host: str, queue: str) -> None:
        """If messages were handed to it just now, nobody knows which."""
        self._unseen[host, queue] += self.in_hands.pop((host, queue), 0)

    def lost_disk(self, host: str, found: Found) -> None:
        """What it held is gone; what others still hold for it must come, perhaps again."""
        self.disk_lives[host] += 1
        self.acknowledgments.lost_disk()
        for number, places in found.places.items():
            message = self.messages[number]
            if any(self._counts(message, place) for place in places):
                message.may_be_lost = True

    def _counts(self, message: Sent, place: Place) -> bool:
        """A relay is answerable for plain messages; a transactional one is with its source, until
        its destination has it."""
        return place.kind != "relayed" or message.delivery != "transactional"

    def _holds(self, message: Sent, place: Place) -> bool:
        """Whether the message is there, and not a copy of it."""
        return place.kind not in _COPIES and self._counts(message, place)

    # What must hold at any time.

    def check(self, databases: list[Found], *, at_the_end: bool) -> None:
        """`databases`: what all hosts hold, as a loss of power would leave it."""
        places: dict[int, list[Place]] = defaultdict(list)
        for found in databases:
            for number, where in found.places.items():
                places[number] += where
        missing: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        nowhere: list[Place] = []
        chosen = self.messages if at_the_end else self._to_look_at(places)
        for number, message in chosen.items():
            where = places.get(number, nowhere)
            # One that is nowhere can only be missing; where it should have left a copy, too.
            if (where or message.is_kept or at_the_end) and (
                at_the_end or not _is_where_it_should_be(message, where)
            ):
                self._check_places(message, where, at_the_end=at_the_end)
            if (
                message.confirmed
                and not message.received
                and self._is_missing(message, where, at_the_end=at_the_end)
            ):
                missing[message.target, message.queue].append(message)
        for (host, queue), messages in missing.items():
            if len(messages) > self._unseen[host, queue] + self.in_hands[host, queue]:
                numbers = ", ".join(str(message.number) for message in messages[:5])
                self._fail(f"{len(messages)} messages for {queue}@{host} are lost: {numbers}")
        self._check_requests(places)
        self._check_aborts(databases, places)
        for message in list(self._told_received.values()):
            if message.received:
                del self._told_received[message.number]
            else:
                self._check_told_received(message)
        if at_the_end:
            for message in self._asking:
                self._check_acknowledged(message)
            if not self.disk_lives.total():
                self._check_all_acknowledged(places)
            for transaction in self.transactions:
                self._check_transaction(transaction, places)

    def _check_aborts(self, databases: list[Found], places: Mapping[int, list[Place]]) -> None:
        """Whoever was told of an abort finds it counted, whatever happens to the power."""
        counted: dict[int, int] = {}
        for found in databases:
            counted.update(found.aborts)
        for (number, life), times in self._aborts.items():
            message = self.messages[number]
            if life != self.disk_lives[message.target] or number in self.copies:
                continue
            is_there = any(place.kind == "queue" for place in places.get(number, ()))
            if is_there and message.rank in (0, number) and counted.get(number, 0) < times:
                self._fail(f"message {number} was given back {times} times, and its disk says less")

    def _to_look_at(self, places: Mapping[int, list[Place]]) -> dict[int, Sent]:
        """What may be missing, and what is anywhere; of what was received and leaves no copy in
        its queue's journal nothing can be wrong but that it is there again."""
        self._open = {
            number: message
            for number, message in self._open.items()
            if message.is_kept or not message.received
        }
        again = {number: self.messages[number] for number in places if number in self.messages}
        return again | self._open

    def _check_all_acknowledged(self, places: dict[int, list[Place]]) -> None:
        """Whatever was promised has ended, and whoever asked to hear of it did."""
        for message in self._asking:
            if (
                not message.confirmed
                or message.delivery == "express"
                or message.may_be_lost
                or message.number <= self._unheard.get(message.source, 0)
                or any(place.kind == "queue" for place in places[message.number])
            ):
                continue
            was_received = bool(message.received)
            if was_received or not self._is_or_may_be_received(message):
                self.acknowledgments.check_end(message, was_received=was_received)

    def _check_transaction(self, transaction: Transaction, places: dict[int, list[Place]]) -> None:
        """Nobody heard how it ended; but it was all done, or nothing of it."""
        sent = transaction.sent
        taken = [self.messages[number] for number in transaction.taken]
        if any(
            message.may_be_lost
            or self.disk_lives[message.source]
            or self.disk_lives[message.target]
            or self._unseen[message.target, message.queue]
            or self.in_hands[message.target, message.queue]
            for message in (*sent, *taken)
        ):
            return
        done = [  # who may have removed one had it in its hands
            bool(message.received or message.removals_in_doubt or places[message.number])
            for message in sent
        ]
        back = [
            # A copy of what was received is kept in the journal of its source.
            bool(
                message.received or any(each.kind not in _COPIES for each in places[message.number])
            )
            for message in taken
        ]
        if any(done) and (not all(done) or any(back)):
            self._fail(
                f"a transaction was done in part: it sent {sent[0].number} to {sent[-1].number},"
                f" and what it took, {transaction.taken}, is there again"
            )
        # What another transaction may have taken since then is in its hands, or was rejected in it.
        if not any(done) and not all(
            is_back or message.removals_in_doubt > 1 or message.rejected_in is not None
            for is_back, message in zip(back, taken, strict=True)
        ):
            self._fail(f"a transaction took {transaction.taken}, and what it sent is nowhere")

    def _is_missing(self, message: Sent, places: list[Place], *, at_the_end: bool) -> bool:
        if message.delivery == "express" and (
            not at_the_end or message.lives != self.lives(message.source, message.target)
        ):
            return False
        return not (
            message.received
            or any(self._holds(message, place) for place in places)
            or message.removals_in_doubt
            or message.may_be_lost
            or message.fate is Fate.UNCERTAIN
            or (message.fate is Fate.PERHAPS and not message.wants_dead_letter)
        )

    def _check_places(self, message: Sent, places: list[Place], *, at_the_end: bool) -> None:
        number = message.number
        if len(places) > 1:
            for place in places:
                if places.count(place) > 1:
                    self._fail(f"message {number} is in {place} twice")
            self._check_one_place(number, places)
        kinds = Counter([place.kind for place in places])
        disk_life = self.disk_lives[message.target]
        is_here = (number, disk_life) in self._repeated
        may_return = message.delivery == "express" or message.removals_in_doubt
        if is_here and kinds["queue"] and not may_return:
            self._fail(f"message {number} was received, and is in its queue again")
        if kinds["queue"] > 1:
            self._fail(f"message {number} is in two queues: {places}")
        for place in places:
            expected = (message.target, message.queue)
            base = place.queue.partition(";")[0]  # it may have been moved to a subqueue
            if place.kind == "queue" and (place.host, base) != expected:
                self._fail(f"message {number} for {expected} is in {place}")
        if message.rejected_in == disk_life and kinds["queue"] and message.delivery != "express":
            self._fail(f"message {number} was rejected, and is in its queue again")
        self._check_kept(message, kinds, disk_life)
        if (
            message.is_awaited
            and kinds["queue"]
            and message.source != message.target
            and not (self.disk_lives[message.source] or self.disk_lives[message.target])
            and all(place.host != message.source for place in places)
        ):
            self._fail(f"message {number} was not received, and its source has let it go: {places}")
        if message.refused and places:
            self._fail(f"message {number} is in {places}, and its sender was told it is not sent")
        if message.fate is Fate.RECEIVED and kinds["dead"]:
            self._fail(f"message {number} is in a dead-letter queue: {places}")
        if message.fate is Fate.REFUSED:
            if kinds["queue"]:
                self._fail(f"message {number} should have been refused, and is in {places}")
            if at_the_end and message.confirmed:
                self._check_refused(message, places)
        if kinds["dead"] and message.delivery == "transactional":
            ends = message.source, message.target
            if any(place.kind == "dead" and place.host not in ends for place in places):
                self._fail(f"message {number} is a dead letter at neither of its ends: {places}")
        if kinds["journal"] and not message.wants_journal:
            self._fail(f"message {number} is in a journal unasked: {places}")
        if at_the_end and self._misses_in_journal(message, kinds["journal"]):
            self._fail(f"message {number} was delivered, and is not in the journal of its source")
        if at_the_end and (kinds["outgoing"] or kinds["relayed"]):
            self._fail(f"message {number} was not delivered: {places}")
        if at_the_end and kinds["awaiting"] and not self.disk_lives.total():
            self._fail(f"nobody told the source what became of message {number}: {places}")

    def _check_one_place(self, number: int, places: list[Place]) -> None:
        """What moves within a computer does so in one commit."""
        for host in {place.host for place in places}:
            kinds = [place.kind for place in places if place.host == host]
            held = [kind for kind in kinds if kind in ("queue", "dead", "outgoing", "awaiting")]
            # The copy of its source is made when that lets it go.
            if len(held) > 1 or (
                "journal" in kinds and not {"outgoing", "awaiting"}.isdisjoint(held)
            ):
                self._fail(f"message {number} is in more than one place of {host}: {places}")

    def _check_kept(self, message: Sent, kinds: Counter[str], disk_life: int) -> None:
        """What is received is copied to its queue's journal, in the commit that removes it."""
        number = message.number
        if kinds["kept"] and not message.is_kept:
            self._fail(f"message {number} is in the journal of a queue that has none")
        if message.delivery == "express":
            return
        if kinds["kept"] and kinds["queue"]:
            self._fail(f"message {number} is in the journal of its queue, and still in the queue")
        is_here = (number, disk_life) in self._repeated
        may_lack_it = (
            message.may_be_lost
            or self._was_full(message.target)
            or message.fate is Fate.UNCERTAIN  # its journal goes with its queue
        )
        if message.is_kept and is_here and not kinds["kept"] and not may_lack_it:
            self._fail(f"message {number} was received, and is not in the journal of its queue")

    def _misses_in_journal(self, message: Sent, copies: int) -> bool:
        """A message for elsewhere is kept here when it has arrived there, a transactional one when
        it was received: in the commit that lets it go."""
        return (
            message.wants_journal
            and message.confirmed
            and message.fate is Fate.RECEIVED
            and (
                (message.delivery == "recoverable" and message.source != message.target)
                or (message.delivery == "transactional" and bool(message.received))
            )
            and not (message.may_be_lost or self.disk_lives.total())
            and not copies
        )

    def _check_refused(self, message: Sent, places: list[Place]) -> None:
        """Kept where it was refused; a transactional one at its source as well, if it asked."""
        if message.may_be_lost or message.delivery == "express" or self.disk_lives[message.target]:
            return
        dead_at = Counter(place.host for place in places if place.kind == "dead")
        expected = Counter({message.target: 1})
        is_elsewhere = message.source != message.target  # who refuses its own tells itself nothing
        if message.delivery == "transactional" and message.wants_dead_letter and is_elsewhere:
            expected[message.source] += 1
        if dead_at != expected:
            self._fail(f"message {message.number} was refused, and is in {places}")

    def _check_requests(self, places: dict[int, list[Place]]) -> None:
        """Whatever else became of them: where one is, or was, all are, or may have been.  Express
        ones are with their readers at once, and may be lost: they say nothing of the others."""
        for request, messages in list(self.requests.items()):
            if len(messages) == 1:
                continue
            if all(message.received for message in messages):
                del self.requests[request]  # done as a whole, whatever comes
                continue
            stored = [message for message in messages if message.delivery != "express"]
            undone = [
                message
                for message in stored
                if not (message.received or message.removals_in_doubt or places[message.number])
            ]
            if len(undone) in (0, len(stored)):
                continue
            for message in undone:
                if not (
                    message.may_be_lost
                    or message.fate in (Fate.PERHAPS, Fate.UNCERTAIN)
                    or self._unseen[message.target, message.queue]
                    or self.in_hands[message.target, message.queue]
                ):
                    self._fail(
                        f"request {request} was done in part: of {messages[0].number} to"
                        f" {messages[-1].number} there is no {message.number}"
                    )
                    break


def _is_where_it_should_be(message: Sent, places: list[Place]) -> bool:
    """Whether it is plain to see, as of most messages, that all is well with it on its way."""
    if len(places) != 1 or (
        message.received
        or message.refused
        or message.is_kept
        or message.is_awaited
        or message.rejected_in is not None
    ):
        return False
    (place,) = places
    return place.kind == "outgoing" or (
        place.kind == "queue"
        and message.fate is not Fate.REFUSED
        and place.host == message.target
        and place.queue == message.queue
    )


def examine(
    image: dict[str, Contents],
    host: str,
    *,
    with_log: bool = False,
    thorough: bool = False,
    has_stopped: bool = False,
    copies: Container[int] = (),
    hosts: Mapping[str, str] = {},
) -> Found:
    """What a host's database holds; `with_log`: and whether its log of events says the same;
    `thorough`: and whether SQLite finds it sound; `has_stopped`: its daemon has, in good order, so
    that the log has to say what became of all that was in its memory.

    `copies`: marks of messages to several queues; `hosts` are by what direct names call them.
    Raises sqlite3.Error when it cannot be read.
    """
    own_paths = {path.replace(f"/{host}/", "/oracle/", 1): data for path, data in image.items()}
    disk = BorrowedDisk("oracle", own_paths)
    vfs.mount(disk)
    if disk.find("/oracle/data/queues.db") is None:
        return Found({}, {}, {}, {})
    database = vfs.connect("/oracle/data/queues.db")
    try:
        reader = _Reading(database, host, copies, hosts)
        found = reader.read(thorough=thorough)
        if with_log and found.queues:
            reader.check_dead_letters()
            told: Counter[str] = Counter()
            in_memory: set[tuple[str, int | Message]] | None = set() if has_stopped else None
            problems = [*disagreements(database, in_memory, seen=told), *reader.problems]
            return found._replace(contradictions=problems, told=told)
        return found
    finally:
        disk.put_away()
        database.close()


class _Reading:
    """One look into a database."""

    def __init__(
        self,
        database: sqlite3.Connection,
        host: str,
        copies: Container[int],
        hosts: Mapping[str, str],
    ) -> None:
        self._database = database
        self._host = host
        self._marks_of_copies = copies
        self._hosts = hosts
        self._places: dict[int, list[Place]] = defaultdict(list)
        self._copies: list[CopyFound] = []
        self._aborts: dict[int, int] = {}
        self.problems: list[str] = []

    def read(self, *, thorough: bool) -> Found:
        database, host = self._database, self._host
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'queue'").fetchone():
            return Found(self._places, {}, {}, {})
        verdict = "ok"
        if thorough:
            (verdict,) = database.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the database of {host} is damaged: {verdict}")
        self._check_parts()
        names = dict(database.execute("SELECT id, key FROM queue"))
        kinds = {id_: (name, _kind(name)) for id_, name in names.items()}
        queues = _Sums(names)
        aborted = dict(
            database.execute("SELECT key, abort_count FROM message WHERE abort_count > 0")
        )
        for key, packet in packets(database, "message"):
            if key in aborted and (number := marked(packet)) is not None:
                self._aborts[number] = aborted[key]
            queue_id = key >> _LOOKUP_BITS
            if queue_id not in kinds:
                raise sqlite3.DatabaseError(
                    f"a message of {host} is in a queue that does not exist"
                )
            queues.add(queue_id, packet)
            name, kind = kinds[queue_id]
            self._see(packet, kind, name)
        names = dict(database.execute("SELECT id, destination FROM outgoing_queue"))
        kinds = {
            id_: (name, "relayed" if name.endswith(_FOR_OTHERS) else "outgoing")
            for id_, name in names.items()
        }
        outgoing = _Sums(names)
        positions = {
            id_: base + next_number
            for id_, base, next_number in database.execute(
                "SELECT id, base, next_number FROM outgoing_queue"
            )
        }
        for key, packet in packets(database, "outgoing"):
            queue_id = key >> _LOOKUP_BITS
            name, kind = kinds[queue_id]
            level, position = key >> _ARRIVAL_BITS & 0xF, key & (1 << _ARRIVAL_BITS) - 1
            if level == _IN_SEQUENCE and position >= positions[queue_id]:
                raise sqlite3.DatabaseError(
                    f"{host} will give a number of {name} again: {position} is there, and"
                    f" {positions[queue_id]} would come next"
                )
            outgoing.add(queue_id, packet)
            self._see(packet, kind, name)
        awaiting = _Sums(names)
        for queue_id, packet in packets(database, "awaiting", "queue_id"):
            awaiting.add(queue_id, packet)
            self._see(packet, "awaiting", names[queue_id])
        return Found(
            self._places,
            queues.totals(),
            outgoing.totals(),
            {name: each for name, each in awaiting.totals().items() if each.messages},
            copies=self._copies,
            aborts=self._aborts,
        )

    def _see(self, packet: bytes, kind: str, queue: str) -> None:
        number = marked(packet)
        if _is_acknowledgment(packet):
            # Whatever becomes of one is told to nobody, and it is kept nowhere.
            if kind in ("dead", "journal", "kept", "awaiting"):
                self.problems.append(f"an acknowledgment is kept in {queue}")
            return  # a negative one brings the body back
        if number is None:
            return
        place = Place(self._host, kind, queue)
        if number in self._marks_of_copies:
            self._copies.append(CopyFound.of(number, packet, place, self._hosts))
        else:
            self._places[number].append(place)

    def check_dead_letters(self) -> None:
        """Each says why it died: to people, and by its class."""
        dead = {
            id_: name
            for id_, name in self._database.execute("SELECT id, key FROM queue")
            if _kind(name) == "dead"
        }
        reasons = dict(self._database.execute("SELECT key, reason FROM message"))
        for key, packet in packets(self._database, "message"):
            if key >> _LOOKUP_BITS not in dead:
                continue
            if not reasons[key] or _class_of(packet) == 0:
                self.problems.append(f"dead letter {marked(packet)} does not say why it died")

    def _check_parts(self) -> None:
        """What copies share is there as long as any of them, whole, and no longer."""
        database = self._database
        if missing := missing_parts(database):
            raise sqlite3.DatabaseError(f"copies of {self._host} lack their body: {missing[:3]}")
        if unshared := unshared_parts(database):
            raise sqlite3.DatabaseError(f"bodies of {self._host} belong to no copy: {unshared[:3]}")
        for part_id, packet, checksum in database.execute(
            "SELECT id, packet, checksum FROM shared_part"
        ):
            if zlib.crc32(packet) != checksum:
                raise sqlite3.DatabaseError(f"body {part_id} of {self._host} is not what it was")


class _Sums:
    """What lies in each of some queues, by their ids."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._messages = dict.fromkeys(names, 0)
        self._bytes = dict.fromkeys(names, 0)

    def add(self, queue_id: int, packet: bytes) -> None:
        self._messages[queue_id] += 1
        self._bytes[queue_id] += len(packet)

    def totals(self) -> dict[str, Totals]:
        return {
            name: Totals(self._messages[id_], self._bytes[id_]) for id_, name in self._names.items()
        }


def _is_acknowledgment(packet: bytes) -> bool:
    """By the queue that it is for: nothing else goes there."""
    size = int.from_bytes(packet[64:66], "little")
    return _ACKNOWLEDGED_TO in packet[66 : 66 + size]


@lru_cache(4096)  # dead letters stay where they are, and are looked at again and again
def _class_of(packet: bytes) -> int | None:
    """None of one that cannot be understood: it never was to go anywhere, and has no number."""
    try:
        message = wire.parse(packet)
    except wire.Violation:
        return None
    assert isinstance(message, wire.Message)
    return message.message_class


def _kind(queue: str) -> str:
    return _KINDS.get(queue) or ("kept" if queue.endswith(";journal") else "queue")


def compare(name: str, told: dict[str, Totals], found: dict[str, Totals]) -> Iterator[str]:
    """Where what a queue manager tells about its queues differs from what there is."""
    for queue in sorted(told.keys() | found.keys()):
        if told.get(queue) != found.get(queue):
            yield f"{name} says of {queue} {told.get(queue)}, and there is {found.get(queue)}"
