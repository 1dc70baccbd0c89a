"""The oracle: what queue managers promised to applications, and whether they kept it.

This file knows nothing of qmd's code.  Applications report what they learn: *confirmed* (the
message is safe) and *received* (it was removed for good, and the application has it).  The oracle
also reads the databases, with SQL of its own, and knows each message by a mark in its body.  Then:

    a confirmed message is in one place: a queue, a dead-letter queue, or received
    no message is received twice, and no two messages of a stream in the wrong order
    a request is done as a whole or not at all

Each copy of a message to several queues is a message here, and all copies are one request.  Their
bodies are equal, so that they are known by their destination and by the number that their queue
manager gave each (message_copies.py).

Express messages may be lost when a process dies, and so may the contents of a lost disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.simulation.acknowledgment_oracle import AcknowledgmentOracle
from tests.simulation.message_copies import Copies, Received, wire_identity
from tests.simulation.message_records import Found, Outcome, Place, Sent, marked
from tests.simulation.oracle_state import OracleState, counts, holds
from tests.simulation.place_checks import PlaceChecks, is_clearly_in_place
from tests.simulation.reservation_oracle import ReservationOracle
from tests.simulation.transaction_oracle import TransactionOracle


class Oracle:
    """Order, duplicates and losses; `transactions` and `acknowledgments` have their own oracles.

    `fail`, `life_of` and `was_full` are described in `OracleState`.
    """

    def __init__(
        self,
        fail: Callable[[str], None],
        life_of: Callable[[str], int],
        was_full: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._fail = fail
        self.state = OracleState(fail, life_of, was_full)
        self.transactions = TransactionOracle(self.state)
        self.acknowledgments = AcknowledgmentOracle(self.state)
        self.reservations = ReservationOracle(self.state)
        self.messages = self.state.messages
        self.copies: dict[int, Copies] = {}  # by the mark that they carry
        self.now: Callable[[], float] = lambda: 0.0  # the time of the world
        #: False where plain messages may take several routes, and so overtake each other.
        self.is_order_of_plain_kept = True
        self._places = PlaceChecks(self.state)
        self._last_number = 0
        self._last_request = 0
        self._open: dict[int, Sent] = {}  # messages that may still be missing somewhere
        self._requests: dict[int, list[Sent]] = defaultdict(list)
        self._last: dict[tuple[str, int], int] = {}  # (stream, life of the disk) -> number

    def next_number(self) -> int:
        """Allocate the number of a message."""
        self._last_number += 1
        return self._last_number

    def next_request(self) -> int:
        """Allocate the number of a request."""
        self._last_request += 1
        return self._last_request

    # Reports of applications.

    def attempted(self, message: Sent) -> None:
        """Record that an application is about to send a message."""
        self.messages[message.number] = self._open[message.number] = message
        if message.requested_acks:
            self.acknowledgments.attempted(message)
        self._requests[message.request].append(message)

    def attempted_copies(self, messages: Sequence[Sent]) -> None:
        """Record one message to several queues; its mark is the number of the first copy."""
        mark = messages[0].number
        self.copies[mark] = Copies((each.target, each.queue, each.number) for each in messages)
        for message in messages:
            message.rank = mark
            self.attempted(message)

    def confirmed(self, message: Sent, sent_id: str) -> None:
        """Record that the sender was notified that its message is safe, and its id."""
        message.confirmed = True
        if message.requested_acks:
            self.acknowledgments.confirmed(message, sent_id)

    def confirmed_copies(self, messages: Sequence[Sent], ids: Sequence[str]) -> None:
        """Record the ids that the sender got for the copies, in the order of the queues."""
        if problem := self.copies[messages[0].number].assign_ids(ids):
            self._fail(f"of the copies {messages[0].number} to {messages[-1].number} {problem}")
        for message, sent_id in zip(messages, ids, strict=False):
            self.confirmed(message, sent_id)

    def refused(self, message: Sent) -> None:
        """Record that the sender got an error, and the message was not sent."""
        message.refused = True

    def rejected(self, host: str, numbers: list[int]) -> None:
        """Record that a rejection of messages was confirmed: no reader may receive them again."""
        for number in numbers:
            self.messages[number].rejected_in = self.state.disk_lives[host]

    def had_step_without_power(self, host: str) -> None:
        """Expect delayed messages of a host at any time: it takes the step for time that passed."""
        for message in self.messages.values():
            if message.source == host:
                message.not_before_s = 0.0

    def received(self, host: str, queue: str, number: int, life: int | None) -> None:
        """Check a message that an application received; `life`: of the daemon, if it is known."""
        message = self.messages.get(number)
        if message is None:
            self._fail(f"message {number} was received and never sent")
            return
        if message.not_before_s > self.now() > 0:
            self._fail(
                f"message {number} was received {message.not_before_s - self.now():.3f} s early"
            )
        disk_life = self.state.disk_lives[host]
        if message.rejected_in == disk_life and message.delivery != "express":
            self._fail(f"message {number} was received after it had been rejected")
        if (host, queue) != (message.target, message.queue):
            self._fail(f"message {number} for {message.target} came to {queue}@{host}")
        if message.refused:
            self._fail(f"message {number} was received, and its sender got an error for it")
        if message.outcome is Outcome.REFUSED:
            self._fail(f"message {number} was received although {queue}@{host} does not take it")
        if (number, disk_life) in self.state.delivered:
            # A daemon remembers express messages as long as it lives.
            if message.delivery != "express" or (life is not None and life in message.received):
                self._fail(f"message {number} ({message.delivery}) was received twice")
        else:
            last = self._last.get((message.stream, disk_life), 0)
            rank = message.rank or number
            has_order = message.delivery == "transactional" or self.is_order_of_plain_kept
            if rank < last and has_order and message.is_ordered:
                self._fail(f"message {number} was received after {last} of {message.stream}")
            self._last[message.stream, disk_life] = max(last, rank)
        self.state.delivered.add((number, disk_life))
        message.received.append(life)

    def set_in_delivery(self, host: str, queue: str, count: int) -> None:
        """Record how many messages of a queue a reader may be receiving now."""
        self.state.in_delivery[host, queue] = count

    def reader_died(self, host: str, queue: str) -> None:
        """Record the death of a reader: messages in delivery to it are not known."""
        state = self.state
        state.lost_in_delivery[host, queue] += state.in_delivery.pop((host, queue), 0)

    def administration_queue_exists(self, host: str) -> None:
        """Record that messages of `host` from now on are acknowledged there."""
        self.acknowledgments.queue_exists(host, self._last_number)

    def lost_disk(self, host: str, found: Found) -> None:
        """Record the loss of a disk that held `found`.

        Messages that other hosts still hold for it must arrive, perhaps a second time.
        """
        self.state.disk_lives[host] += 1
        self.acknowledgments.lost_disk()
        for number, places in found.places.items():
            message = self.messages[number]
            if any(counts(message, place) for place in places):
                message.may_be_lost = True

    # Copies of messages to several queues.

    def number_of(self, host: str, queue: str, message: Received) -> int | None:
        """Return the number of a message that was received from a queue of `host`."""
        number = marked(message.body)
        if number is None or number not in self.copies:
            return number
        found = self.copies[number].number_of(host, queue, wire_identity(message.id))
        if found is None:
            self._fail(f"message {number} came to {queue}@{host} more often than it was sent")
        return found

    def place_copies(self, found: Found, *, durable: bool) -> None:
        """Move the copies of `found` into its places.

        A state that is not durable may be undone, so that nothing is learned from it.
        """
        learned = {} if durable else {mark: copies.learned() for mark, copies in self._in(found)}
        for copy in found.copies:
            number = self.copies[copy.mark].number_of(copy.target, copy.queue, copy.identity)
            if number is None:
                self._fail(
                    f"message {copy.mark} for {copy.queue}@{copy.target} is in {copy.place}, more"
                    " often than it was sent there"
                )
            else:
                found.places.setdefault(number, []).append(Place(*copy.place))
        for mark, count in learned.items():
            self.copies[mark].forget(count)

    def _in(self, found: Found) -> Iterator[tuple[int, Copies]]:
        for mark in {copy.mark for copy in found.copies}:
            yield mark, self.copies[mark]

    # The databases.

    def check(self, databases: list[Found], *, at_the_end: bool) -> None:
        """Check the databases of all hosts, as a loss of power would leave them."""
        places: dict[int, list[Place]] = defaultdict(list)
        for found in databases:
            for number, where in found.places.items():
                places[number] += where
        missing: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        nowhere: list[Place] = []
        chosen = self.messages if at_the_end else self._to_check(places)
        for number, message in chosen.items():
            where = places.get(number, nowhere)
            # A message without place can only be missing, unless a journal must have a copy.
            if (where or message.is_kept or at_the_end) and (
                at_the_end or not is_clearly_in_place(message, where)
            ):
                self._places.check(message, where, at_the_end=at_the_end)
            if (
                message.confirmed
                and not message.received
                and self._is_missing(message, where, at_the_end=at_the_end)
            ):
                missing[message.target, message.queue].append(message)
        for (host, queue), messages in missing.items():
            state = self.state
            if len(messages) > state.lost_in_delivery[host, queue] + state.in_delivery[host, queue]:
                numbers = ", ".join(str(message.number) for message in messages[:5])
                self._fail(f"{len(messages)} messages for {queue}@{host} are lost: {numbers}")
        self._check_requests(places)
        self.transactions.check_stored_abort_counts(databases, places, self.copies)
        self.acknowledgments.check_unreported()
        if at_the_end:
            self.acknowledgments.check_end(places)
            self.transactions.check_end(places)

    def _to_check(self, places: Mapping[int, list[Place]]) -> dict[int, Sent]:
        """Return the messages that may be missing, and those that are in any place.

        A received message that leaves no copy in its queue's journal can only be wrong by being in
        a place again.
        """
        self._open = {
            number: message
            for number, message in self._open.items()
            if message.is_kept or not message.received
        }
        again = {number: self.messages[number] for number in places if number in self.messages}
        return again | self._open

    def _is_missing(self, message: Sent, places: list[Place], *, at_the_end: bool) -> bool:
        if message.delivery == "express" and (
            not at_the_end or message.lives != self.state.lives(message.source, message.target)
        ):
            return False
        return not (
            message.received
            or any(holds(message, place) for place in places)
            or message.removals_in_doubt
            or message.may_be_lost
            or message.outcome is Outcome.ANY
            or (message.outcome is Outcome.RECEIVED_OR_DEAD and not message.wants_dead_letter)
        )

    def _check_requests(self, places: dict[int, list[Place]]) -> None:
        """Check that all messages of a request are, or may have been, in a place, or none is.

        Express messages are left out: they reach their readers at once, and may be lost.
        """
        for request, messages in list(self._requests.items()):
            if len(messages) == 1:
                continue
            if all(message.received for message in messages):
                del self._requests[request]  # done as a whole, whatever follows
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
                    or message.outcome in (Outcome.RECEIVED_OR_DEAD, Outcome.ANY)
                    or self.state.may_be_in_delivery(message)
                ):
                    self._fail(
                        f"request {request} was done in part: of {messages[0].number} to"
                        f" {messages[-1].number} there is no {message.number}"
                    )
                    break
