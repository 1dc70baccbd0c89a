"""Quotas: decides whether further messages fit, and warns before a queue is full.

All bytes are those of packets. A full queue refuses new messages; it never drops stored ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from qmd.config.units import format_size
from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue
from qmd.queues.usage import Gauge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qmd.queues.usage import Usage
    from qmd.runtime.services import Services

log = structlog.get_logger()


def notice(gauge: Gauge) -> None:
    """Log that the usage of a queue or of the computer has reached a threshold."""
    is_queue = isinstance(gauge, LocalQueue)
    log.warning(
        "quota_nearly_reached",
        what="queue" if is_queue else "computer",
        queue=gauge.name if isinstance(gauge, LocalQueue) else "",
        percent=gauge.noticed_percent,
        bytes=gauge.bytes,
        quota_bytes=gauge.quota_bytes,
        remedy=more_for(gauge) if isinstance(gauge, LocalQueue) else MORE_FOR_THE_COMPUTER,
    )


MORE_FOR_THE_COMPUTER = (
    "Receive or purge messages, or set computer in the section [quotas] of the configuration"
    " higher and restart the daemon."
)


def more_for(queue: LocalQueue) -> str:
    """Return the remedy for a full queue of this computer."""
    larger = format_size(max(2 * (queue.quota_bytes or 0), 1_000_000))
    if queue.is_journal and queue.parent is not None:
        return (
            f"Purge the journal, or give it more: qmd queue set '{queue.parent.name}'"
            f" --journal-quota {larger}"
        )
    return (
        f"Receive or purge messages, or give it more: qmd queue set '{queue.name}' --quota {larger}"
    )


def queue_refusal(queue: LocalQueue, size: int) -> Refusal:
    """Return the refusal for a local sender: the queue has no room for `size` more bytes."""
    return Refusal(
        "queue_full",
        f"queue {queue.name} is full: {queue.bytes} of {queue.quota_bytes} bytes"
        f" ({queue.used_percent} %) are used, and {size} more are needed",
        more_for(queue),
    )


class Admission:
    """Decides whether this computer can accept further messages."""

    def __init__(self, services: Services, usage: Usage) -> None:
        self._services = services
        self._usage = usage

    def is_full(
        self,
        size: int,
        *,
        express_bytes: int = 0,
        messages: int = 1,
        stored: int | None = None,
    ) -> Refusal | None:
        """Return the refusal of `messages` with `size` bytes in all, or None if they fit.

        `express_bytes` of them are those of express messages.  The disk space of messages that fit
        counts as used from now on. `stored` is the number of bytes that will be kept, if it is less
        than `size` because copies share a part.
        """
        usage, services = self._usage, self._services
        quotas, storage = services.settings.quotas, services.storage
        if not usage.has_room(size):
            return Refusal(
                "computer_full",
                f"the computer quota is reached: {usage.bytes} of {usage.quota_bytes} bytes"
                f" ({usage.used_percent} %) are used, and {size} more are needed",
                MORE_FOR_THE_COMPUTER,
            )
        kept = size if stored is None else stored
        in_memory = min(express_bytes, kept)
        if express_bytes and usage.express_bytes + in_memory > quotas.express_bytes:
            return Refusal(
                "express_full",
                f"express messages take {usage.express_bytes} of {quotas.express_bytes} bytes of"
                f" memory, and {in_memory} more are needed",
                "Receive some, send it with --recoverable, or set express in the section [quotas]"
                " of the configuration higher.",
            )
        if not storage.room(services.loop.time(), kept - in_memory):
            return Refusal(
                "disk_full",
                f"the disk of the data folder is full: {storage.free_bytes / 1e6:.1f} MB are"
                f" left, and {storage.kept_free_bytes / 1e6:.1f} MB must stay free, so that"
                " queues can be emptied ([quotas] disk_reserve)",
                "Make room on the disk, or receive or purge messages.",
            )
        if not services.ids.suffice(messages):
            return Refusal(
                "busy",
                "more messages wait for the disk than can be given a number now",
                "Try again in a moment.",
            )
        return None

    def lets_acknowledgment_pass(self, size: int) -> bool:
        """Return whether a relayed acknowledgment may be stored although this computer is full.

        The relay limits these acknowledgments by itself (`[routing] relay_bytes_max`), so that the
        quota of the computer does not limit them.  A full disk does.
        """
        services = self._services
        return services.ids.suffice(1) and services.storage.room(
            services.loop.time(), size, lets_leave=True
        )


def warnings(usage: Usage, queues: Iterable[LocalQueue]) -> list[dict[str, object]]:
    """Return the gauges above a threshold, for `qmd status`."""
    gauges: list[tuple[str, Gauge]] = [("computer", usage)] if usage.noticed_percent else []
    gauges += [(queue.name, queue) for queue in queues if queue.noticed_percent]
    return [
        {
            "what": what,
            "reached_percent": gauge.noticed_percent,
            "used_percent": gauge.used_percent,
            "bytes": gauge.bytes,
            "quota_bytes": gauge.quota_bytes,
        }
        for what, gauge in gauges
    ]
