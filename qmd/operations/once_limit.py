"""Limits on the results that are stored for each client: of sends with a key, and of all requests.

The counts are in memory: after a restart they begin anew, so that at most twice as many results of
a client are stored.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from qmd.access.rights import MARK_BYTES
from qmd.control_protocol.messages import Outcome
from qmd.control_protocol.transactions import Begin
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.access.rights import Rights
    from qmd.control_protocol.messages import Request
    from qmd.runtime.services import Services

PARTS = 60  # of the time for which outcomes are kept
SHOWN_MAX = 20  # clients in the status
OWNERS_MAX = 100_000  # in memory


class _Counts:
    """The outcomes of one client: [part of the time, their number], and their sum."""

    def __init__(self) -> None:
        self.parts: deque[list[int]] = deque()
        self.sum = 0


class KeptCounts:
    """The number of outcomes of each client that are not forgotten yet."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clients: dict[str, _Counts] = {}

    def of(self, owner: str, limit: int) -> int:
        """Return the number of a client; it is exact if it would reach `limit`."""
        counts = self._clients.get(owner)
        if counts is None:
            return 0
        if counts.sum >= limit:
            self._drop_old(counts)
        return counts.sum

    def add(self, owner: str) -> None:
        """Count one more."""
        counts = self._clients.setdefault(owner, _Counts())
        part = self._part()
        if not counts.parts or counts.parts[-1][0] != part:
            self._drop_old(counts)
            counts.parts.append([part, 0])
        counts.parts[-1][1] += 1
        counts.sum += 1

    def forget_old(self) -> None:
        """Forget the clients of which all outcomes are forgotten."""
        for owner, counts in list(self._clients.items()):
            self._drop_old(counts)
            if not counts.sum:
                del self._clients[owner]

    def most(self) -> list[tuple[str, int]]:
        """Return the clients with the most, and their numbers."""
        self.forget_old()
        ranked = sorted(self._clients.items(), key=lambda each: -each[1].sum)
        return [(owner, counts.sum) for owner, counts in ranked[:SHOWN_MAX]]

    def _part(self) -> int:
        age_s = self._services.settings.transactions.outcome_age_s
        return int(self._services.clock.now_s * PARTS // age_s)

    def _drop_old(self, counts: _Counts) -> None:
        oldest = self._part() - PARTS
        while counts.parts and counts.parts[0][0] < oldest:
            counts.sum -= counts.parts.popleft()[1]


class OnceLimit:
    """The sends with a key of all clients; administrators, whose name is empty, have no limit."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._counts = KeptCounts(services)

    def check(self, owner: str) -> None:
        """Raise Refusal if a client has sent as often as it may."""
        limit = self._services.settings.transactions.once_max
        if (count := self._counts.of(owner, limit)) >= limit:
            raise Refusal(
                "too_many_keys",
                f"{owner} has made {count} sends with a key, of which the results are kept",
                "Wait until older results are forgotten; or raise once_max of [transactions].",
            )

    def count(self, owner: str) -> None:
        """Count a send of a client."""
        if owner:
            self._counts.add(owner)


class OutcomeLimit:
    """The stored outcomes of all clients without all rights: their tokens end with a mark."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._counts = KeptCounts(services)
        self._owners: dict[bytes, str] = {}  # by mark
        services.storage.watch_outcomes(self.stored)

    def check(self, rights: Rights, request: Request) -> None:
        """Raise Refusal for a request that leaves an outcome, if its client has too many of them.

        `request` is as it is executed, with the mark of its client.  A transaction is refused when
        it begins, so that one that is under way can end.
        """
        token = getattr(request, "token", b"")
        if isinstance(request, Begin):
            token = request.transaction
        if not token or not rights.owner or isinstance(request, Outcome):
            return
        owner, limit = rights.owner, self._services.settings.transactions.outcomes_max
        if len(self._owners) >= OWNERS_MAX:
            self._owners.clear()  # each is known again by its next request
        self._owners[token[-MARK_BYTES:]] = owner
        if (count := self._counts.of(owner, limit)) >= limit:
            raise Refusal(
                "too_many_outcomes",
                f"{count} results of requests of {owner} are kept for it; {limit} are allowed"
                " ([transactions] outcomes_max)",
                "Wait until older results are forgotten (outcome_age), or send more messages in one"
                " request.",
            )

    def stored(self, token: bytes) -> None:
        """Count an outcome that the open batch stores."""
        owner = self._owners.get(token[-MARK_BYTES:])
        if owner is not None:
            self._counts.add(owner)

    def status(self) -> list[dict[str, object]]:
        """Return the clients with the most stored outcomes, for operators."""
        return [{"client": owner, "outcomes": count} for owner, count in self._counts.most()]
