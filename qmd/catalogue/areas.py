"""All entries of the catalogue, by area: loaded when an error is shown."""

from __future__ import annotations

import contextlib
from textwrap import wrap
from typing import NamedTuple

from qmd.catalogue import (
    care,
    classes,
    clients,
    data,
    directory,
    doors,
    interop,
    limits,
    messages,
    migration,
    names,
    peers,
    pipelines,
    queues,
    receiving,
    requests,
    rights,
    services,
    starting,
    tls,
    triggers,
    usage,
)
from qmd.catalogue.entry import Entry
from qmd.catalogue.microsoft import HRESULTS


class Area(NamedTuple):
    """An area of related entries, numbered from `first` to `last`."""

    name: str
    first: int
    last: int
    entries: tuple[Entry, ...]


AREAS = (
    Area("Requests", 1001, 1099, requests.ENTRIES),
    Area("Names", 1101, 1199, names.ENTRIES),
    Area("Queues", 1201, 1299, queues.ENTRIES),
    Area("Messages", 1301, 1399, messages.ENTRIES),
    Area("Quotas, limits and room", 1401, 1499, limits.ENTRIES),
    Area("Receiving and transactions", 1501, 1599, receiving.ENTRIES),
    Area("Other queue managers, and clients (in the log)", 1601, 1699, peers.ENTRIES),
    Area("The data folder (in the log)", 1701, 1799, data.ENTRIES),
    Area("Data pipelines", 1801, 1899, pipelines.ENTRIES),
    Area("Message classes: acknowledgments and dead letters", 2001, 2299, classes.ENTRIES),
    Area("Why a daemon does not start, or stops", 3001, 3399, starting.ENTRIES),
    Area("Backups and care", 3401, 3499, care.ENTRIES),
    Area("Between an application and the daemon", 4001, 4099, clients.ENTRIES),
    Area("The command line", 5001, 5099, usage.ENTRIES),
    Area("Queued services", 6001, 6099, services.ENTRIES),
    Area("Triggers", 6101, 6199, triggers.ENTRIES),
    Area("The directory", 7001, 7099, directory.ENTRIES),
    Area("TLS between queue managers", 8001, 8099, tls.ENTRIES),
    Area("Rights", 9001, 9099, rights.ENTRIES),
    Area("Doors", 9201, 9299, doors.ENTRIES),
    Area("Conversations with other queue managers (qmd interop)", 9301, 9399, interop.ENTRIES),
    Area("Migration from Windows (qmd migrate)", 9401, 9499, migration.ENTRIES),
)
ENTRIES: tuple[Entry, ...] = tuple(entry for area in AREAS for entry in area.entries)
RETIRED: frozenset[int] = frozenset({5011})  # numbers of errors that no longer exist

_BY_CODE = {entry.code: entry for entry in ENTRIES}
_BY_CLASS = {entry.value: entry for entry in classes.ENTRIES}


def entry_of(code: str) -> Entry | None:
    """Return the entry of a code, or None."""
    return _BY_CODE.get(code)


def find_class(message_class: int) -> Entry | None:
    """Return the entry of a message class, or None.

    None for a normal message and for a class that an application defined.
    """
    return _BY_CLASS.get(message_class)


class Found(NamedTuple):
    """The entries that match a text.

    `microsoft` is set if the text is a name or number of Microsoft's, even if qmd has no entry for
    it.
    """

    entries: list[Entry]
    microsoft: str = ""
    value: int | None = None


def find(text: str) -> Found:
    """Find the errors that a text may name: an id, a code, or a name or number of Windows.

    "QM-1201", "1201", "no_such_queue", "MQ_ERROR_QUEUE_NOT_FOUND", "QUEUE_NOT_FOUND", "0xC00E0003",
    "c00e0003", "-1072824317" (as .NET shows it), "0x8000" (a message class).
    """
    word = text.strip().upper().replace("-", "_")
    by_id = [entry for entry in ENTRIES if word in (f"QM_{entry.number:04}", f"{entry.number:04}")]
    if by_id:
        return Found(by_id)
    by_code = [entry for entry in ENTRIES if word in (entry.code.upper(), entry.family.upper())]
    if by_code:
        return Found(by_code)
    numbers = _numbers(text)
    for name, value in _microsoft().items():
        short = name.removeprefix("MQ_ERROR_").removeprefix("MQMSG_CLASS_")
        if word in (name, short) or value in numbers:
            return Found([entry for entry in ENTRIES if entry.microsoft == name], name, value)
    return Found([])


def near(text: str) -> list[str]:
    """Return codes and names that are similar to `text`."""
    from difflib import get_close_matches

    known = [entry.code for entry in ENTRIES] + [name.lower() for name in _microsoft()]
    return get_close_matches(text.strip().lower().replace("-", "_"), known, n=3)


def _microsoft() -> dict[str, int]:
    """Return every name of Microsoft's, of errors and message classes, with its number."""
    return HRESULTS | {
        entry.microsoft: entry.value for entry in classes.ENTRIES if entry.value is not None
    }


def _numbers(text: str) -> set[int]:
    """Return the values that a number may have: hexadecimal, or decimal with a sign."""
    found = set()
    for base in (0, 16):
        with contextlib.suppress(ValueError):
            found.add(int(text, base) & 0xFFFFFFFF)
    return found


def hresult(entry: Entry) -> int | None:
    """Return the number of the entry's Microsoft name, or None."""
    return entry.value if entry.value is not None else HRESULTS.get(entry.microsoft)


def hexadecimal(value: int) -> str:
    """Return an HRESULT or a message class in the notation of Windows."""
    return f"0x{value:08X}" if value > 0xFFFF else f"0x{value:04X}"


def numbers_text() -> str:
    """Return the text of the module `numbers.py`."""
    lines = []
    for area in AREAS:
        words = " ".join(f"{entry.code} {entry.number}" for entry in area.entries)
        lines += [*wrap(words, 96, break_long_words=False, break_on_hyphens=False), ""]
    return "\n".join(
        [
            '"""The number of each code, written by `python -m qmd.catalogue`."""',
            "",
            "# ruff: noqa: SIM905",
            "",
            '_WORDS = """',
            *lines[:-1],
            '""".split()',
            "",
            "NUMBERS = dict(zip(_WORDS[::2], map(int, _WORDS[1::2]), strict=True))",
            "",
        ]
    )


def reference() -> str:
    """Return all entries in Markdown: docs/errors.md from its first heading on."""
    lines = []
    for area in AREAS:
        lines += [f"## {area.name}", ""]
        for entry in area.entries:
            lines += [f"### {entry.id} {entry.code}", "", entry.what, ""]
            lines += [f"- Cause: {entry.cause}", f"- Remedy: {entry.remedy}"]
            value = hresult(entry)
            if value is not None:
                lines += [f"- Microsoft: {entry.microsoft}, {hexadecimal(value)}"]
            lines += [""]
    return "\n".join(lines).rstrip("\n") + "\n"
