"""Refused letters: the dead letters that messages of other hosts cause, and their budget.

A message of another host that is refused, or that expires here, becomes a dead letter here.  Any
host that may connect can cause any number of them.  They therefore have a budget of their own
(`[consequences] dead_letters`), which does not count towards the quota of the computer, and end
after a time.  When the budget is used up, the oldest dead letter of the host with the most bytes
ends, which the event log records; a host alone gets at most half of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from storage.tables import refused_letters as rows
from storage.tables.refused_letters import RefusedLetter

if TYPE_CHECKING:
    from qmd.queues.usage import Usage
    from qmd.runtime.services import Services

COMPUTER_PART = 16  # divisor of the computer quota, for the budget
LETTERS_MAX = 100_000  # each takes memory here
HOST_PART = 2  # divisor of both, for one host
ENDED_AT_ONCE = 500  # by age, in one turn of the loop


class RefusedLetters:
    """The dead letters of messages of other hosts, by their host, the oldest first."""

    def __init__(self, services: Services, usage: Usage) -> None:
        self._services = services
        self._usage = usage
        settings = services.settings
        self.bytes_max = min(
            settings.consequences.dead_letters_bytes,
            settings.quotas.computer_bytes // COMPUTER_PART,
        )
        self._by_host: dict[str, dict[int, RefusedLetter]] = {}
        self._bytes_of: dict[str, int] = {}
        self._host_of: dict[int, str] = {}
        self.bytes = 0
        #: Dead letters that were not kept, or that ended to make room.
        self.not_kept = 0
        self.ended = 0

    def connect(self, end: Callable[[Sequence[int], str], None]) -> None:
        """Set the function that ends dead letters, given by their keys, with a reason."""
        self._end = end

    def restore(self, letters: Iterable[RefusedLetter]) -> None:
        """Load the rows of the last run."""
        for letter in letters:
            self._count(letter)

    def make_room(self, host: str, size: int) -> str:
        """End old dead letters so that one of `size` bytes fits; return "", or why it is not kept.

        Call `keep` after it.
        """
        if size > self.bytes_max // HOST_PART:
            self.not_kept += 1
            return (
                f"Messages of one host that were refused may take {self.bytes_max // HOST_PART}"
                " bytes as dead letters ([consequences] dead_letters)."
            )
        ended: list[int] = []
        while (
            self._bytes_of.get(host, 0) + size > self.bytes_max // HOST_PART
            or len(self._by_host.get(host, ())) >= LETTERS_MAX // HOST_PART
        ):
            ended.append(self._forget_oldest(host))
        while self.bytes + size > self.bytes_max or len(self._host_of) >= LETTERS_MAX:
            ended.append(self._forget_oldest(max(self._bytes_of, key=self._bytes_of.__getitem__)))
        if ended:
            self.ended += len(ended)
            reason = (
                f"dead letters for other hosts take {self.bytes_max} bytes, and it was the oldest"
                " of the host with the most of them"
            )
            self._remove(ended)
            self._end(ended, reason)
        return ""

    def keep(self, host: str, key: int, size: int) -> None:
        """Count a dead letter that the open batch stores."""
        letter = RefusedLetter(key, host, size, self._services.clock.now_s)
        self._count(letter)
        self._services.storage.batch.run(partial(rows.add, row=letter))

    async def forget_old(self) -> None:
        """End the dead letters that are too old; forget those that have left their queue."""
        if not self._host_of:
            return
        for key in await self._services.storage.batch.run(rows.remove_gone, can_wait=True):
            self._forget(key)
        age_s = int(self._services.settings.consequences.dead_letter_age_s)
        before_s = self._services.clock.now_s - age_s
        old: list[int] = []
        for letters in self._by_host.values():
            for letter in letters.values():
                if letter.at_s > before_s or len(old) == ENDED_AT_ONCE:
                    break
                old.append(letter.key)
        if old:
            for key in old:
                self._forget(key)
            self._remove(old)
            self._end(old, f"it was kept for {age_s // 86_400} days")

    def status(self) -> dict[str, object]:
        """Return the use of the budget, for operators."""
        greediest = sorted(self._bytes_of.items(), key=lambda each: -each[1])[:20]
        return {
            "dead_letters": len(self._host_of),
            "bytes": self.bytes,
            "bytes_max": self.bytes_max,
            "not_kept": self.not_kept,
            "ended": self.ended,
            "hosts": [
                {"host": host, "dead_letters": len(self._by_host[host]), "bytes": size}
                for host, size in greediest
            ],
        }

    def _count(self, letter: RefusedLetter) -> None:
        self._by_host.setdefault(letter.host, {})[letter.key] = letter
        self._bytes_of[letter.host] = self._bytes_of.get(letter.host, 0) + letter.bytes
        self._host_of[letter.key] = letter.host
        self._grow(letter.bytes)

    def _forget_oldest(self, host: str) -> int:
        key = next(iter(self._by_host[host]))
        self._forget(key)
        return key

    def _forget(self, key: int) -> None:
        host = self._host_of.pop(key, None)
        if host is None:
            return
        letter = self._by_host[host].pop(key)
        self._bytes_of[host] -= letter.bytes
        if not self._by_host[host]:
            del self._by_host[host], self._bytes_of[host]
        self._grow(-letter.bytes)

    def _grow(self, size: int) -> None:
        self.bytes += size
        self._usage.set_aside += size

    def _remove(self, keys: Sequence[int]) -> None:
        self._services.storage.batch.run(partial(rows.remove, keys=keys))
