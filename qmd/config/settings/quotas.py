"""Quotas, budgets of memory, and limits of effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qmd.config.settings.declaration import setting
from qmd.config.value_types import Duration, OptionalSize, Size, Whole

MEMORY_PART = 8  # divisor of the memory, for each budget without a configured size


MEMORY_BYTES_MIN, MEMORY_BYTES_MAX = 64 * 1024 * 1024, 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasSettings:
    """Limits on stored messages. A full queue refuses messages; it never drops any."""

    computer_bytes: int = setting(
        Size("1MB", "1000TB"), "8GB", "All messages of this queue manager together."
    )
    queue_bytes: int = setting(
        Size("1kB", "1000TB"), "4GB", "One queue, when it is created without a quota."
    )
    journal_bytes: int = setting(Size("1kB", "1000TB"), "1GB", "One journal queue, likewise.")
    message_bytes_max: int = setting(
        Size("1kB", "48MiB"),
        "4MiB",
        "One message's body. The packet that other hosts accept has 4MiB with its headers; a"
        " larger "
        "body is for queues of this computer and for hosts of [peers] large_messages.",
    )
    express_bytes: int = setting(
        Size("1MB", "1TB"), "256MB", "Memory for express messages, which are never on disk."
    )
    disk_reserve_bytes: int = setting(
        Size("1MB", "1TB"), "64MB", "Kept free on the disk, so that a full one can be drained."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsequencesSettings:
    """Limits on what messages of other hosts cause here, besides being stored."""

    queues_per_host: int = setting(
        Whole(1, 32767),
        1000,
        "Outgoing queues at once for acknowledgments that the messages of one host ask for. Many"
        " computers may share the address of one host.",
    )
    queues: int = setting(
        Whole(1, 32767), 8192, "The same for all hosts together. The others are for applications."
    )
    acknowledgments_per_host: int = setting(
        Whole(1, 100_000_000), 50_000, "Acknowledgments that wait here because of one host."
    )
    waiting_per_host_bytes: int = setting(
        Size("10kB", "1TB"), "64MiB", "Bytes of these acknowledgments and of confirmations."
    )
    waiting_bytes: int = setting(Size("10kB", "1TB"), "256MiB", "The same for all hosts together.")
    age_s: float = setting(
        Duration("1s", "365d"),
        "3d",
        "How long such an acknowledgment waits for the computer that it goes to.",
    )
    copies_per_second: int = setting(
        Whole(1, 1_000_000),
        100,
        "Acknowledgments to further administration queues: a message can name a hundred. The"
        " first one is always made. One host gets as many a second, averaged over 10 seconds.",
    )
    dead_letters_bytes: int = setting(
        Size("10kB", "1000TB"),
        "512MiB",
        "Dead letters of messages of other hosts that were refused or have expired here; at most a"
        " sixteenth of the computer quota, in which they do not count. One host gets half of it."
        " The oldest one of the host with the most bytes ends to make room.",
    )
    dead_letter_age_s: float = setting(
        Duration("1m", "3650d"), "14d", "How long such a dead letter is kept."
    )
    connections: int = setting(
        Whole(1, 1000),
        16,
        "Connections that are being made at once only for acknowledgments; one host gets a"
        " quarter of them.",
    )


class Budgets(NamedTuple):
    """Budgets in bytes."""

    packets: int
    requests: int
    transactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Memory budgets; one address, process or connection gets at most half of each."""

    packets_bytes: int | None = setting(
        OptionalSize("1MB", "1TB"),
        "",
        "Packets of more than 64KiB from other queue managers, until they are complete and taken. "
        "Without room the connection is not read; the slowest connections are closed when"
        " others wait. "
        "Empty: an eighth of the memory that the daemon may have, 64MiB to 1GiB.",
    )
    requests_bytes: int | None = setting(
        OptionalSize("1MB", "1TB"),
        "",
        "Requests of applications until they are begun; as much again for answers that are not "
        "read. Without room the connection is not read; the slowest connections are closed when"
        " others wait. Empty: as for packets.",
    )
    transactions_bytes: int | None = setting(
        OptionalSize("1MB", "1TB"),
        "",
        "Messages that transactions have sent and not committed. Where there is no room a send is "
        "refused. Empty: as for packets.",
    )

    def of(self, memory_bytes: int) -> Budgets:
        """Return the budgets of a daemon with this amount of memory."""
        share = min(max(memory_bytes // MEMORY_PART, MEMORY_BYTES_MIN), MEMORY_BYTES_MAX)
        chosen = (self.packets_bytes, self.requests_bytes, self.transactions_bytes)
        return Budgets(*(share if each is None else each for each in chosen))
