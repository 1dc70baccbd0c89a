"""Checks of the places where databases hold a message: duplicates, journals, dead letters."""

from __future__ import annotations

from collections import Counter

from tests.simulation.message_records import Outcome, Place, Sent
from tests.simulation.oracle_state import OracleState


class PlaceChecks:
    """Reports a message that is in the wrong place, or in too many or too few places."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._fail = state.fail

    def check(self, message: Sent, places: list[Place], *, at_the_end: bool) -> None:
        """Check all places of one message; `at_the_end`: after everything was delivered."""
        if len(places) > 1:
            self._check_doubles(message.number, places)
        kinds = Counter([place.kind for place in places])
        self._check_queue(message, places, kinds)
        self._check_queue_journal(message, kinds)
        if message.refused and places:
            self._fail(
                f"message {message.number} is in {places}, and its sender got an error for it"
            )
        self._check_dead_letters(message, places, kinds, at_the_end=at_the_end)
        self._check_source_journal(message, places, kinds, at_the_end=at_the_end)
        if at_the_end:
            self._check_source(message, places, kinds)

    def _check_doubles(self, number: int, places: list[Place]) -> None:
        """Check that the message is in one place of each host: a host moves it in one commit."""
        for place in places:
            if places.count(place) > 1:
                self._fail(f"message {number} is in {place} twice")
        for host in {place.host for place in places}:
            kinds = [place.kind for place in places if place.host == host]
            held = [
                kind
                for kind in kinds
                if kind in ("queue", "dead", "outgoing", "awaiting", "delayed")
            ]
            # The source makes its journal copy when it releases the message.
            if len(held) > 1 or (
                "journal" in kinds and not {"outgoing", "awaiting"}.isdisjoint(held)
            ):
                self._fail(f"message {number} is in more than one place of {host}: {places}")

    def _check_queue(self, message: Sent, places: list[Place], kinds: Counter[str]) -> None:
        """Check that only the right queue holds the message, and only before it is received."""
        number, state = message.number, self._state
        disk_life = state.disk_lives[message.target]
        may_return = message.delivery == "express" or message.removals_in_doubt
        if (number, disk_life) in state.delivered and kinds["queue"] and not may_return:
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
        if (
            message.is_awaited
            and kinds["queue"]
            and message.source != message.target
            and not (state.disk_lives[message.source] or disk_life)
            and all(place.host != message.source for place in places)
        ):
            self._fail(f"message {number} was not received, and its source released it: {places}")

    def _check_queue_journal(self, message: Sent, kinds: Counter[str]) -> None:
        """Check the copy in the queue's journal, made in the commit that removes the message."""
        number, state = message.number, self._state
        if kinds["kept"] and not message.is_kept:
            self._fail(f"message {number} is in the journal of a queue that has none")
        if message.delivery == "express":
            return
        if kinds["kept"] and kinds["queue"]:
            self._fail(f"message {number} is in the journal of its queue, and still in the queue")
        was_received = (number, state.disk_lives[message.target]) in state.delivered
        may_lack_it = (
            message.may_be_lost
            or state.was_full(message.target)
            or message.outcome is Outcome.ANY  # the journal is deleted with its queue
        )
        if message.is_kept and was_received and not kinds["kept"] and not may_lack_it:
            self._fail(f"message {number} was received, and is not in the journal of its queue")

    def _check_dead_letters(
        self, message: Sent, places: list[Place], kinds: Counter[str], *, at_the_end: bool
    ) -> None:
        number = message.number
        if message.outcome is Outcome.RECEIVED and kinds["dead"]:
            self._fail(f"message {number} is in a dead-letter queue: {places}")
        if message.outcome is Outcome.REFUSED:
            if kinds["queue"]:
                self._fail(f"message {number} should have been refused, and is in {places}")
            if at_the_end and message.confirmed:
                self._check_refused(message, places)
        if kinds["dead"] and message.delivery == "transactional":
            ends = message.source, message.target
            if any(place.kind == "dead" and place.host not in ends for place in places):
                self._fail(f"message {number} is a dead letter at neither of its ends: {places}")

    def _check_refused(self, message: Sent, places: list[Place]) -> None:
        """Check that the target keeps a refused message as a dead letter.

        The source keeps one as well if the message is transactional and asked for a dead letter.
        """
        lost_disk = self._state.disk_lives[message.target]
        if message.may_be_lost or message.delivery == "express" or lost_disk:
            return
        dead_at = Counter(place.host for place in places if place.kind == "dead")
        expected = Counter({message.target: 1})
        # A host that refuses its own message sends no acknowledgment to itself.
        is_elsewhere = message.source != message.target
        if message.delivery == "transactional" and message.wants_dead_letter and is_elsewhere:
            expected[message.source] += 1
        if dead_at != expected:
            self._fail(f"message {message.number} was refused, and is in {places}")

    def _check_source_journal(
        self, message: Sent, places: list[Place], kinds: Counter[str], *, at_the_end: bool
    ) -> None:
        number = message.number
        if kinds["journal"] and not message.wants_journal:
            self._fail(f"message {number} is in a journal and did not ask for it: {places}")
        if at_the_end and not kinds["journal"] and self._must_be_in_journal(message):
            self._fail(f"message {number} was delivered, and is not in the journal of its source")

    def _must_be_in_journal(self, message: Sent) -> bool:
        """Return whether the source must have a journal copy.

        The source makes it in the commit that releases the message: a recoverable message for
        another host when it has arrived there, a transactional one when it was received.
        """
        return (
            message.wants_journal
            and message.confirmed
            and message.outcome is Outcome.RECEIVED
            and (
                (message.delivery == "recoverable" and message.source != message.target)
                or (message.delivery == "transactional" and bool(message.received))
            )
            and not (message.may_be_lost or self._state.has_lost_disk)
        )

    def _check_source(self, message: Sent, places: list[Place], kinds: Counter[str]) -> None:
        """Check that no outgoing queue holds the message any more, nor its source."""
        if kinds["delayed"]:
            self._fail(f"message {message.number} was not released: {places}")
        if kinds["outgoing"] or kinds["relayed"]:
            self._fail(f"message {message.number} was not delivered: {places}")
        if kinds["awaiting"] and not self._state.has_lost_disk:
            self._fail(f"the source was not notified how message {message.number} ended: {places}")


def is_clearly_in_place(message: Sent, places: list[Place]) -> bool:
    """Return whether nothing can be wrong with a message, as with most, on its way.

    It is then in one place, an outgoing queue or its destination, and nothing else has happened to
    it.
    """
    if len(places) != 1 or (
        message.received
        or message.refused
        or message.is_kept
        or message.is_awaited
        or message.rejected_in is not None
    ):
        return False
    (place,) = places
    return place.kind in ("outgoing", "delayed") or (
        place.kind == "queue"
        and message.outcome is not Outcome.REFUSED
        and place.host == message.target
        and place.queue == message.queue
    )
