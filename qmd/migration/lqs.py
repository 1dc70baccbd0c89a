r"""Files of MSMQ's folder `storage\lqs`, one for each local queue: a second source of definitions.

Public documents state only that the folder has a text file for each queue, named by its number or
GUID, with its properties.  The names of the keys below are those that administrators published in
questions and answers; no file of a Windows host was at hand.  The parser therefore refuses every
value that it does not understand, and reports keys that it does not know.

    [Properties]
    QueueName=\private$\orders
    Label=Orders
    Journal=01
    Quota=4294967295
    Transaction=01
    Security=0100048014...
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from qmd.migration.collection import (
    QUEUES_MAX,
    UNLIMITED_KB,
    VERSION,
    Collection,
    Note,
    Privacy,
    WindowsQueue,
)
from qmd.migration.errors import BadSource
from qmd.migration.security_descriptor import DESCRIPTOR_BYTES_MAX

FILE_BYTES_MAX = 256 * 1024
LINES_MAX = 1_000
NAME_CHARACTERS_MAX = 1_000
LABEL_CHARACTERS_MAX = 1_000

_SECTION = "properties"
_IGNORED = frozenset({"createtime", "modifytime", "pathname", "qmid", "scope", "signature"})
_PRIVACY: dict[int, Privacy] = {0: "none", 1: "optional", 2: "body"}  # MQ_PRIV_LEVEL_...
_PRIVATE = re.compile(r"private\$\\", re.IGNORECASE | re.ASCII)
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_GUID = re.compile(
    r"\{?([0-9A-Fa-f]{8})-?([0-9A-Fa-f]{4})-?([0-9A-Fa-f]{4})-?([0-9A-Fa-f]{4})-?([0-9A-Fa-f]{12})\}?"
)


def parse_lqs(content: bytes) -> tuple[WindowsQueue, list[str]]:
    """Parse one file to its queue and the keys that are not known.  Raises BadSource."""
    if len(content) > FILE_BYTES_MAX:
        raise BadSource(f"the file has {len(content)} bytes; {FILE_BYTES_MAX} are allowed")
    values = _values(_text(content))
    name = _name(values.pop("queuename", ""))
    label = values.pop("label", "")
    if len(label) > LABEL_CHARACTERS_MAX:
        raise BadSource(f"the label has {len(label)} characters")
    queue = WindowsQueue(
        name=name,
        public="\\" not in name,
        label=label,
        instance=_guid(values, "instance"),
        type=_guid(values, "type"),
        transactional=_flag(values, "transaction"),
        journal=_flag(values, "journal"),
        authenticate=_flag(values, "authenticate"),
        quota_kb=_number(values, "quota", UNLIMITED_KB),
        journal_quota_kb=_number(values, "journalquota", UNLIMITED_KB),
        base_priority=_signed(values, "basepriority"),
        privacy=_privacy(values),
        multicast=values.pop("multicastaddress", ""),
        security_base64=_security(values),
    )
    return queue, sorted(set(values) - _IGNORED)


def read_folder(folder: Path, computer: str) -> Collection:
    """Read all files of a folder.  Raises BadSource, with the name of the file, and OSError."""
    queues: list[WindowsQueue] = []
    notes: list[Note] = []
    seen: dict[str, str] = {}
    for path in _files(folder):
        try:
            with path.open("rb") as file:
                queue, unknown = parse_lqs(file.read(FILE_BYTES_MAX + 1))
        except BadSource as error:
            raise BadSource(f"{path.name}: {error}") from error
        first = seen.setdefault(queue.name.lower(), path.name)
        if first != path.name:
            raise BadSource(f"{path.name}: {first} describes the queue {queue.name} too")
        if unknown:
            notes.append(Note(queue.name, f"keys that are not known: {', '.join(unknown)}"[:4096]))
        queues.append(queue)
    return Collection(
        qmd_windows_collection=VERSION,
        computer=computer,
        source="lqs",
        queues=sorted(queues, key=lambda queue: queue.name.casefold()),
        notes=notes,
    )


def _files(folder: Path) -> Iterator[Path]:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    if len(paths) > QUEUES_MAX:
        raise BadSource(f"the folder has {len(paths)} files; {QUEUES_MAX} are allowed")
    yield from paths


def _text(content: bytes) -> str:
    """Return the text: UTF-16 with a byte order mark, UTF-8, or the Western code page."""
    try:
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return content.decode("utf-16")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def _values(text: str) -> dict[str, str]:
    """Return the values of the section, by their keys in lower case."""
    lines = text.split("\n")
    if len(lines) > LINES_MAX:
        raise BadSource(f"the file has {len(lines)} lines; {LINES_MAX} are allowed")
    values: dict[str, str] = {}
    section = ""
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\r")
        if not line.strip() or line.startswith(";"):
            continue
        if line.startswith("[") and line.rstrip().endswith("]"):
            section = line.strip()[1:-1].casefold()
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or not section:
            raise BadSource(f"line {number} is not KEY=VALUE in a section")
        if section != _SECTION:
            continue
        if "\0" in value:
            raise BadSource(f"line {number} has a null character")
        if key.strip().casefold() in values:
            raise BadSource(f"line {number} repeats the key {key.strip()[:50]!r}")
        values[key.strip().casefold()] = value
    if not values:
        raise BadSource("the file has no section [Properties]")
    return values


def _name(text: str) -> str:
    r"""Return `private$\orders`, or `orders` of a public queue."""
    found = text.strip()
    private = _PRIVATE.search(found)
    if private is not None:
        found = found[private.start() :]
    elif "\\" in found:
        found = found.rpartition("\\")[2]
    if not found.rpartition("\\")[2] or len(found) > NAME_CHARACTERS_MAX or not found.isprintable():
        raise BadSource(f"QueueName is {text[:100]!r}, which is not the name of a queue")
    return found


def _flag(values: dict[str, str], key: str) -> bool | None:
    text = values.pop(key, None)
    if text is None:
        return None
    if text.strip() not in ("0", "1", "00", "01"):
        raise BadSource(f"{key} is {text[:50]!r}; it must be 00 or 01")
    return text.strip().endswith("1")


def _number(values: dict[str, str], key: str, most: int) -> int | None:
    text = values.pop(key, None)
    if text is None:
        return None
    digits = text.strip()
    if not re.fullmatch(r"[0-9]{1,10}", digits) or int(digits) > most:
        raise BadSource(f"{key} is {text[:50]!r}; it must be a number up to {most}")
    return int(digits)


def _signed(values: dict[str, str], key: str) -> int | None:
    text = values.pop(key, None)
    if text is None:
        return None
    digits = text.strip()
    if not re.fullmatch(r"-?[0-9]{1,5}", digits):
        raise BadSource(f"{key} is {text[:50]!r}; it must be a number")
    return int(digits)


def _privacy(values: dict[str, str]) -> Privacy | None:
    level = _number(values, "privlevel", 2)
    return None if level is None else _PRIVACY[level]


def _guid(values: dict[str, str], key: str) -> str:
    text = values.pop(key, "").strip()
    match = _GUID.fullmatch(text)
    if text and match is None:
        raise BadSource(f"{key} is {text[:50]!r}, which is not a GUID")
    return "-".join(match.groups()).lower() if match else ""


def _security(values: dict[str, str]) -> str:
    text = values.pop("security", "").strip()
    if len(text) > 2 * DESCRIPTOR_BYTES_MAX or not _HEX.fullmatch(text):
        raise BadSource("security is not an even number of hexadecimal digits")
    return base64.b64encode(bytes.fromhex(text)).decode("ascii")
