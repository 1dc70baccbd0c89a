"""Limits of acknowledgments: how many of them the messages of one other host may cause here.

A message can ask for acknowledgments and reports, and name the queues for them.  Each such queue
elsewhere takes an outgoing queue here, with its id, its link and its waiting messages.  The queues
that exist for that reason are counted for the host that asks, which is known by its origin
(docs/decisions/0031).  An outgoing queue that an application uses, too, does not count any more.

When a limit is reached the acknowledgment is not made.  That is counted here, and recorded in the
event log; the message itself is handled as if it had not asked.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from qmd.queues.share import Share, TotalBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.services import Services

COPIES_WINDOW_S = 10.0  # over which the rate of acknowledgments to further queues is averaged
ALLOWANCES_MAX = 10_000  # hosts with a rate in memory
SEARCH_AGAIN_S = 2.0  # the pause after a search for idle queues of one host


class AskedFor(NamedTuple):
    """The host that asks for an acknowledgment, and the way to the queue that it goes to."""

    by: str  # its origin
    via: bytes | None = (
        None  # GUID of the queue manager with a session for it; None: the name leads there
    )
    at: tuple[str, int] | None = None  # the address to dial if there is no session with `via`


class _Allowance:
    """Acknowledgments to further queues that one host may still cause, refilled over time."""

    __slots__ = ("at", "left")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at


class AnswerLimits:
    """The shares of all hosts in the outgoing queues for acknowledgments."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._settings = services.settings.consequences
        self._shares: dict[str, Share] = {}
        self._allowances: dict[str, _Allowance] = {}
        self._total = TotalBytes()
        self.queues = 0
        #: Acknowledgments that were not made, by the reason.
        self.not_made: Counter[str] = Counter()
        self._not_made_for: dict[str, int] = {}  # the same by host

    def connect(
        self,
        find: Callable[[str], OutgoingQueue | None],
        forget_idle: Callable[[Collection[str]], int],
    ) -> None:
        """Set the outgoing queues: `find(key)` returns one, `forget_idle(keys)` removes those
        that are idle, and returns how many."""
        self._find = find
        self._forget_idle = forget_idle

    # The shares, called by the outgoing queues.

    def add(self, queue: OutgoingQueue, host: str) -> None:
        """Count a queue, with its messages, for the host that asked for it."""
        share = self._shares.get(host)
        if share is None:
            share = self._shares[host] = Share(self._total, host)
        queue.share = share
        share.keys[queue.key] = None
        share.grow(queue.bytes)
        self.queues += 1

    def remove(self, queue: OutgoingQueue) -> None:
        """Count a queue for no host any more: it is forgotten, or an application uses it."""
        share = queue.share
        if share is None:
            return
        queue.share = None
        del share.keys[queue.key]
        share.grow(-queue.bytes)
        self.queues -= 1
        if not share.keys:
            del self._shares[share.host]

    # The limits.

    def no_queue(self, host: str) -> str:
        """Return why a host may not have a further outgoing queue; "": it may."""
        settings = self._settings
        share = self._shares.get(host)
        if share is not None and len(share.keys) >= settings.queues_per_host:
            now = self._services.loop.time()
            if now >= share.search_at:
                share.search_at = now + SEARCH_AGAIN_S
                self._forget_idle(list(share.keys))
            if len(share.keys) >= settings.queues_per_host:
                return (
                    f"{settings.queues_per_host} outgoing queues hold acknowledgments for {host}"
                    " ([consequences] queues_per_host)"
                )
        if self.queues >= settings.queues:
            return (
                f"{settings.queues} outgoing queues hold acknowledgments for other hosts"
                " ([consequences] queues)"
            )
        return ""

    def no_room(self, queue: OutgoingQueue, size: int, count: int = 1) -> str:
        """Return why a queue takes no `count` acknowledgments of `size` bytes in all; "": it does.

        A queue that applications use, too, takes as many as one host may cause.
        """
        settings, share = self._settings, queue.share
        if share is None:
            used, messages = queue.bytes, queue.messages
        else:
            used = share.bytes
            most = settings.acknowledgments_per_host
            messages = share.messages(self._messages_in, count, most)
        host = queue.destination if share is None else share.host
        if messages + count > settings.acknowledgments_per_host:
            return (
                f"{messages} acknowledgments wait for {host}"
                " ([consequences] acknowledgments_per_host)"
            )
        if used + size > settings.waiting_per_host_bytes:
            return f"acknowledgments for {host} take {used} bytes ([consequences] waiting_per_host)"
        if share is not None and self._total.bytes + size > settings.waiting_bytes:
            return (
                f"acknowledgments for other hosts take {self._total.bytes} bytes"
                " ([consequences] waiting)"
            )
        return ""

    def _messages_in(self, key: str) -> int:
        queue = self._find(key)
        return 0 if queue is None else queue.messages

    def take_copies(self, host: str, wanted: int) -> int:
        """Return how many acknowledgments to further queues a host may cause now; count them."""
        rate = self._settings.copies_per_second
        now = self._services.loop.time()
        allowance = self._allowances.get(host)
        if allowance is None:
            if len(self._allowances) >= ALLOWANCES_MAX:
                self._allowances.pop(next(iter(self._allowances)))
            allowance = self._allowances[host] = _Allowance(rate * COPIES_WINDOW_S, now)
        refilled = allowance.left + (now - allowance.at) * rate
        allowance.left, allowance.at = min(refilled, rate * COPIES_WINDOW_S), now
        taken = min(wanted, int(allowance.left))
        allowance.left -= taken
        return taken

    def count_not_made(self, host: str, reason: str, acknowledgments: int = 1) -> None:
        """Count acknowledgments that a host does not get."""
        self.not_made[reason] += acknowledgments
        count = self._not_made_for.pop(host, 0)
        if len(self._not_made_for) >= ALLOWANCES_MAX:
            self._not_made_for.pop(next(iter(self._not_made_for)))
        self._not_made_for[host] = count + acknowledgments

    def limited(self, host: str) -> int:
        """Return how many acknowledgments a host did not get since the start."""
        return self._not_made_for.get(host, 0)

    def status(self) -> dict[str, object]:
        """Return the use of the limits, for operators."""
        settings = self._settings
        return {
            "queues": self.queues,
            "queues_max": settings.queues,
            "bytes": self._total.bytes,
            "bytes_max": settings.waiting_bytes,
            "not_made": dict(self.not_made),
            "hosts": [
                {
                    "host": share.host,
                    "queues": len(share.keys),
                    "queues_max": settings.queues_per_host,
                    "bytes": share.bytes,
                    "bytes_max": settings.waiting_per_host_bytes,
                }
                for share in sorted(self._shares.values(), key=lambda each: -each.bytes)[:20]
            ],
        }
