"""The oracle of transactions: their receives and sends happen together, or none of them does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from tests.simulation.message_records import Found, Place, Sent, Transaction
from tests.simulation.oracle_state import COPY_KINDS, OracleState


class TransactionOracle:
    """The transactions of applications, and the abort counts of the messages in them."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._undecided: list[Transaction] = []  # their applications do not know the outcome
        # (number, life of the disk) -> aborts that an application knows of.
        self._aborts: Counter[tuple[int, int]] = Counter()

    def committing(self, taken: list[int], sent: list[Sent]) -> Transaction:
        """Record that an application is about to commit, and return the transaction."""
        self._state.begin_removal(taken)
        transaction = Transaction(taken, sent)
        self._undecided.append(transaction)
        return transaction

    def committed(self, transaction: Transaction) -> None:
        """Record that the commit was confirmed to the application."""
        self._undecided.remove(transaction)
        self._state.end_removal(transaction.taken)
        for message in transaction.sent:
            message.confirmed = True

    def aborted(self, transaction: Transaction) -> None:
        """Record that the application knows that nothing was done."""
        self._undecided.remove(transaction)
        self._state.end_removal(transaction.taken)
        for message in transaction.sent:
            message.refused = True

    def abort_confirmed(self, taken: list[int]) -> None:
        """Record that an abort of the receives of these messages was confirmed."""
        for number in taken:
            self._aborts[self._key(number)] += 1

    def check_abort_count(self, number: int, abort_count: int) -> None:
        """Check the abort count that a received message carries."""
        known = self._aborts[self._key(number)]
        if abort_count < known:
            self._state.fail(
                f"message {number} was given back {known} times, and says {abort_count}"
            )

    def check_stored_abort_counts(
        self,
        databases: list[Found],
        places: Mapping[int, list[Place]],
        copies: Container[int],
    ) -> None:
        """Check that each confirmed abort is counted on disk.

        `copies`: marks of messages to several queues, which are left out.
        """
        stored: dict[int, int] = {}
        for found in databases:
            stored.update(found.aborts)
        for (number, life), known in self._aborts.items():
            message = self._state.messages[number]
            if life != self._state.disk_lives[message.target] or number in copies:
                continue
            is_there = any(place.kind == "queue" for place in places.get(number, ()))
            if is_there and message.rank in (0, number) and stored.get(number, 0) < known:
                self._state.fail(
                    f"message {number} was given back {known} times, and its disk has fewer"
                )

    def check_end(self, places: Mapping[int, list[Place]]) -> None:
        """Check that each transaction of unknown outcome was done as a whole or not at all."""
        for transaction in self._undecided:
            self._check_atomic(transaction, places)

    def _check_atomic(self, transaction: Transaction, places: Mapping[int, list[Place]]) -> None:
        state, sent = self._state, transaction.sent
        taken = [state.messages[number] for number in transaction.taken]
        if any(
            message.may_be_lost
            or state.disk_lives[message.source]
            or state.disk_lives[message.target]
            or state.may_be_in_delivery(message)
            for message in (*sent, *taken)
        ):
            return
        done = [  # a reader that may have removed a message had received it
            bool(message.received or message.removals_in_doubt or places[message.number])
            for message in sent
        ]
        back = [
            # The journal of the source keeps a copy of a received message.
            bool(
                message.received
                or any(each.kind not in COPY_KINDS for each in places[message.number])
            )
            for message in taken
        ]
        if any(done) and (not all(done) or any(back)):
            state.fail(
                f"a transaction was done in part: it sent {sent[0].number} to {sent[-1].number},"
                f" and the messages that it received, {transaction.taken}, are there again"
            )
        # Another transaction may have received or rejected these messages since, and one that came
        # back may have expired.
        if not any(done) and not all(
            is_back
            or message.removals_in_doubt > 1
            or message.rejected_in is not None
            or (message.lifetime_s is not None and not message.wants_dead_letter)
            for is_back, message in zip(back, taken, strict=True)
        ):
            state.fail(
                f"a transaction received {transaction.taken}, and the messages that it sent are"
                " in no place"
            )

    def _key(self, number: int) -> tuple[int, int]:
        return number, self._state.disk_lives[self._state.messages[number].target]
