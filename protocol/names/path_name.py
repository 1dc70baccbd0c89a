r"""Path names of queues, and the rules for the parts that all names share.  [MS-MQMQ] 2.1.1

    computer\queue   computer\private$\queue   computer\system$;queue   ...;subqueue

A queue's name without its computer is a `LocalPath`.  Direct format names end in one too, so only
this module parses and prints queue names, subqueues and suffixes.

Keywords and names compare without regard to case.  Printing keeps the case of computers and queues
and writes keywords in one way: `private$`, `SYSTEM$`, `;JOURNAL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from protocol.errors import InvalidName

COMPUTER_CHARACTERS_MAX = 256
QUEUE_CHARACTERS_MAX = 124
SUBQUEUE_CHARACTERS_MAX = 32

_PRIVATE, _SYSTEM = "private$", "SYSTEM$"


class Suffix(StrEnum):
    """The suffixes that may follow the semicolon of a name.  [MS-MQMQ] 2.2.11"""

    JOURNAL = "JOURNAL"
    DEADLETTER = "DEADLETTER"
    DEADXACT = "DEADXACT"
    XACTONLY = "XACTONLY"


SYSTEM_QUEUES = (Suffix.JOURNAL, Suffix.DEADLETTER, Suffix.DEADXACT)
# Never use upper(): it turns the long s into S, and so turns other text into a keyword.
_SUFFIXES = {suffix.lower(): suffix for suffix in Suffix}


@dataclass(frozen=True, slots=True)
class NameRule:
    """The maximum length of a part of a name, in UTF-16 code units, and its allowed characters.

    `beyond_ascii`: further characters are allowed, those of `is_plain`.  A space that is allowed
    stands between other characters.
    """

    characters_max: int
    characters: frozenset[str]
    description: str
    beyond_ascii: bool = False

    def check(self, part: str, field: str, offset: int) -> str:
        """Return `part`; raises InvalidName at the first character that breaks the rule."""
        if not part:
            limit = f"1 to {self.characters_max} characters are required"
            raise InvalidName(field, offset, f"found nothing; {limit}")
        for index, character in enumerate(part[: self.characters_max]):
            if character not in self.characters and not (self.beyond_ascii and is_plain(character)):
                found = f"found {shown(character)}; allowed are {self.description}"
                raise InvalidName(field, offset + index, found)
        for end, index in (("begin", 0), ("end", len(part) - 1)):
            if part[index] == " ":
                rule = f"found a space; no name {end}s with one"
                raise InvalidName(field, offset + index, rule)
        count = len(part)
        if not part.isascii():
            count += sum(character > "\uffff" for character in part)  # they take two code units
        if count > self.characters_max:
            limit = f"at most {self.characters_max} are allowed"
            raise InvalidName(
                field, offset + self.characters_max, f"found {count} characters; {limit}"
            )
        return part


def is_plain(character: str) -> bool:
    """Return whether a character beyond ASCII may be in the name of a computer or queue.

    The grammar of 2.1.1 ends at ASCII, but 2.1.2 allows every computer name of the operating
    system, and Windows gives queues names in Unicode.  Left out are controls, spaces, unassigned
    and private characters; those that compare as another one or as several, such as the sharp s,
    sigma and the i without a dot; and forms of ASCII, such as the long s and the wide backslash.
    """
    from unicodedata import normalize  # half a megabyte, which a host with plain names saves

    lower = character.lower()
    return (
        character > "\x7f"
        and character.isprintable()
        and character != "\N{GREEK CAPITAL LETTER SIGMA}"  # its lower case depends on its place
        and len(lower) == 1
        and lower == character.casefold() == character.upper().lower()
        and not any(map(str.isascii, normalize("NFKC", character)))
    )


def _characters(first: int, last: int, *, without: str) -> frozenset[str]:
    return frozenset(map(chr, range(first, last + 1))) - frozenset(without)


# The grammar begins at "!", but MSMQ creates queues with spaces in their names: the documents of
# PROPID_Q_PATHNAME exclude none.  At an end a space would be lost in lists and files.
_QUEUE_CHARACTERS = _characters(0x20, 0x7F, without='\\;+,"')
_QUEUE_DESCRIPTION = (
    "ASCII characters from space to DEL except \\ ; + , and the double quote, and visible"
    " characters beyond ASCII with one lower case"
)
QUEUE = NameRule(QUEUE_CHARACTERS_MAX, _QUEUE_CHARACTERS, _QUEUE_DESCRIPTION, True)
SUBQUEUE = NameRule(SUBQUEUE_CHARACTERS_MAX, _QUEUE_CHARACTERS, _QUEUE_DESCRIPTION, True)
# The grammar allows any VCHAR here.  Excluded are the characters that separate the computer from a
# path, a port, a suffix or the next element, and those of URLs and IPv6 addresses: such names could
# not be parsed again.
COMPUTER = NameRule(
    COMPUTER_CHARACTERS_MAX,
    _characters(0x21, 0x7E, without="\\/,;:[]"),
    'ASCII characters from "!" to "~" except \\ / , ; : [ and ], and visible characters beyond'
    " ASCII with one lower case",
    True,
)


class LocalPath(NamedTuple):
    r"""A queue's name on its computer: `private$\orders`, `orders;retry`, `SYSTEM$;DEADXACT`.

    A system queue has its name in `suffix`, and an empty `queue`.  Only a path name can name other
    system queues; their name is in `queue`.
    """

    queue: str = ""
    private: bool = False
    subqueue: str | None = None
    system: bool = False
    suffix: Suffix | None = None

    def __str__(self) -> str:
        prefix = f"{_SYSTEM};" if self.system else f"{_PRIVATE}\\" if self.private else ""
        parts = (self.queue, self.subqueue, self.suffix)
        return prefix + ";".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """The comparison key: equal for all spellings of one queue."""
        return str(self).lower()

    @property
    def read_only(self) -> bool:
        """Whether it accepts no sends: journals, dead-letter queues, and subqueues, which only a
        move fills.
        """
        return self.system or self.suffix is not None or self.subqueue is not None


def parse_local_path(
    text: str, offset: int, field: str, *, separator: str = "\\", any_system_queue: bool = False
) -> LocalPath:
    r"""Parse `[private$\]queue[;JOURNAL|;subqueue]` or `SYSTEM$;name`.

    `text` starts at character `offset` of the whole name, `field` is the name's kind; `separator`
    follows `private$`.  Raises InvalidName.
    """
    head, semicolon, tail = text.partition(";")
    if head.lower() == _SYSTEM.lower() and semicolon:
        return _parse_system_queue(tail, offset + len(head) + 1, field, any_system_queue)
    private = text[: len(_PRIVATE) + 1].lower() == _PRIVATE + separator
    start = len(_PRIVATE) + 1 if private else 0
    queue = QUEUE.check(head[start:], f"{field}.queue", offset + start)
    if not private and queue.lower() in (_PRIVATE, _SYSTEM.lower()):
        rule = f"found {queue} without a queue after it; expected private$\\name or SYSTEM$;name"
        raise InvalidName(f"{field}.queue", offset, rule)
    if not semicolon:
        return LocalPath(queue, private)
    place = offset + len(head) + 1
    suffix = _keyword(tail)
    if suffix is Suffix.JOURNAL:
        return LocalPath(queue, private, suffix=suffix)
    if suffix is not None:
        rule = f"found {suffix}; only JOURNAL or a subqueue of another name may follow a queue"
        raise InvalidName(f"{field}.suffix", place, rule)
    subqueue = SUBQUEUE.check(tail, f"{field}.subqueue", place)
    return LocalPath(queue, private, subqueue)


def _parse_system_queue(name: str, offset: int, field: str, any_system_queue: bool) -> LocalPath:
    suffix = _keyword(name)
    if suffix in SYSTEM_QUEUES:
        return LocalPath(system=True, suffix=suffix)
    if any_system_queue:
        return LocalPath(QUEUE.check(name, f"{field}.queue", offset), system=True)
    rule = f"found {shown(name)}; after SYSTEM$ only these may follow: {' or '.join(SYSTEM_QUEUES)}"
    raise InvalidName(f"{field}.suffix", offset, rule)


def check_local_path(path: LocalPath, field: str, *, any_system_queue: bool = False) -> None:
    """Raise InvalidName unless the printed path parses to an equal path."""
    if parse_local_path(str(path), 0, field, any_system_queue=any_system_queue) != path:
        rule = f"{shown(str(path))} is the printed form, which names another queue"
        raise InvalidName(field, 0, rule)


def parse_suffix(text: str, offset: int, field: str, *allowed: Suffix) -> Suffix | None:
    """Parse the rest after an identifier: nothing, or `;` and one of `allowed`.  Raises
    InvalidName.
    """
    if not text:
        return None
    suffix = _keyword(text[1:])
    if text[0] != ";" or suffix not in allowed:
        rule = f"found {shown(text)}; only ;{' or ;'.join(allowed)} may follow"
        raise InvalidName(f"{field}.suffix", offset, rule)
    return suffix


def shown(text: str) -> str:
    """Return arbitrary text in a safe and short form for an error message."""
    return ascii(text) if len(text) <= 40 else ascii(text[:37]) + "..."


def _keyword(text: str) -> Suffix | None:
    return _SUFFIXES.get(text.lower())


@dataclass(frozen=True, slots=True)
class PathName:
    r"""`computer\queue` and the other path names; "." as `computer` is the local one."""

    computer: str
    queue: str = ""
    private: bool = False
    subqueue: str | None = None
    system: bool = False
    suffix: Suffix | None = None

    def __post_init__(self) -> None:
        COMPUTER.check(self.computer, "path.computer", 0)
        check_local_path(self.local_path, "path", any_system_queue=True)

    @property
    def local_path(self) -> LocalPath:
        return LocalPath(self.queue, self.private, self.subqueue, self.system, self.suffix)

    @property
    def key(self) -> str:
        """The comparison key: equal for all spellings of one queue."""
        return str(self).lower()

    def __str__(self) -> str:
        return f"{self.computer}\\{self.local_path}"


def parse_path_name(text: str) -> PathName:
    """Parse a path name.  Raises InvalidName; its offset counts from the start of `text`."""
    computer, backslash, rest = text.partition("\\")
    COMPUTER.check(computer, "path.computer", 0)
    if not backslash:
        rule = "found the end; a path name is computer\\queue or computer\\private$\\queue"
        raise InvalidName("path", len(text), rule)
    path = parse_local_path(rest, len(computer) + 1, "path", any_system_queue=True)
    return PathName(computer, *path)
