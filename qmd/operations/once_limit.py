"""A limit on the sends with a key of each client, whose outcomes are kept for a while.

The counts are in memory: after a restart they begin anew, so that at most twice as many outcomes of
a client are stored.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.runtime.services import Services

PARTS = 60  # of the time for which outcomes are kept


class _Counts:
    """The sends of one client: [part of the time, number of sends], and their sum."""

    def __init__(self) -> None:
        self.parts: deque[list[int]] = deque()
        self.sum = 0


class OnceLimit:
    """The sends of all clients; administrators, whose name is empty, have no limit."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clients: dict[str, _Counts] = {}

    def check(self, owner: str) -> None:
        """Raise Refusal if a client has sent as often as it may."""
        counts = self._clients.get(owner)
        limit = self._services.settings.transactions.once_max
        if counts is None or counts.sum < limit:
            return
        self._drop_old(counts)
        if counts.sum >= limit:
            raise Refusal(
                "too_many_keys",
                f"{owner} has made {counts.sum} sends with a key, of which the results are kept",
                "Wait until older results are forgotten; or raise once_max of [transactions].",
            )

    def count(self, owner: str) -> None:
        """Count a send of a client."""
        if not owner:
            return
        counts = self._clients.setdefault(owner, _Counts())
        part = self._part()
        if not counts.parts or counts.parts[-1][0] != part:
            self._drop_old(counts)
            counts.parts.append([part, 0])
        counts.parts[-1][1] += 1
        counts.sum += 1

    def _part(self) -> int:
        return int(self._services.clock.now_s * PARTS // self._age_s)

    @property
    def _age_s(self) -> float:
        return self._services.settings.transactions.outcome_age_s

    def _drop_old(self, counts: _Counts) -> None:
        oldest = self._part() - PARTS
        while counts.parts and counts.parts[0][0] < oldest:
            counts.sum -= counts.parts.popleft()[1]
