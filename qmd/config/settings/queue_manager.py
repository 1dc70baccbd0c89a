# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""The queue manager itself, its data and its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qmd.config.settings.declaration import setting
from qmd.config.value_types import (
    Choice,
    ComputerName,
    ComputerNames,
    Duration,
    Flag,
    Location,
    Network,
    Networks,
    SecretFiles,
    Size,
    Whole,
    WholeOf,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueManagerSettings:
    """Name and data folder of this queue manager."""

    name: str = setting(
        ComputerName(),
        "",
        "The computer's name, as other computers write it in DIRECT=OS:name\\queue. Empty: the"
        " host name.",
    )
    aliases: tuple[str, ...] = setting(
        ComputerNames(), [], "Other names of this computer that stand for it in format names."
    )
    data: Path = setting(
        Location(), "data", "The folder of the messages, the identity and the queues."
    )
    run_as_root: bool = setting(
        Flag(),
        False,
        "Whether the daemon may run as root. It needs no privilege of root.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """The database; there is seldom a reason to change these."""

    commit_rows_max: int = setting(Whole(1, 100_000), 2048, "Rows that one commit may write.")
    checkpoint_pages: int = setting(
        Whole(100, 1_000_000),
        4000,
        "Pages of 8 KiB in the write-ahead log before a checkpoint. A load of small commits makes"
        " one for each 8 MiB.",
    )
    page_bytes: int = setting(
        WholeOf((4096, 8192)),
        4096,
        "Bytes of a page of a new database. With 8192, a message that is sent alone writes 1.6"
        " times the bytes, a batch has about half of the write calls, and a body of megabytes"
        " takes a seventh less processor time.",
    )
    key_files: tuple[Path, ...] = setting(
        SecretFiles(),
        [],
        "Files with the keys that encrypt packets on the disk, outside of the data folder: the"
        " first for new packets, the others for older ones. Empty: packets are not encrypted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSettings:
    """The flight recorder: the history of each message, in the database."""

    enabled: bool = setting(
        Flag(),
        True,
        "Whether the history is recorded. Without it, the fate of a message cannot be explained.",
    )
    size_bytes: int = setting(
        Size("1MB", "1000TB"),
        "256MiB",
        "How much of it is kept; the oldest events are removed first.",
    )
    age_s: float = setting(Duration("1m", "3650d"), "14d", "How long it is kept at most.")
    keep_unshipped: bool = setting(
        Flag(),
        False,
        "Whether size and age wait for `qmd ship`. A disk that is full does not wait for it.",
    )
    ask: bool = setting(
        Flag(),
        True,
        "Whether the queue manager at the other end is queried too.",
    )
    answer: tuple[Network, ...] = setting(
        Networks(),
        ["127.0.0.0/8", "::1/128"],
        "Hosts that may query the history of messages exchanged with them.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogSettings:
    """The requests of operators: `qmd audit-log`, docs/audit-log.md."""

    size_bytes: int = setting(
        Size("64kB", "1TB"),
        "16MiB",
        "How much of it is kept; the oldest entries are removed first.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log, written to standard error."""

    level: str = setting(
        Choice(("debug", "info", "warning", "error")), "info", "The least important level written."
    )
    format: str = setting(
        Choice(("auto", "console", "json")),
        "auto",
        'Auto: "console" on a terminal, "json" (one object a line) otherwise.',
    )
