r"""Spellings of destinations that may need a directory: format names, and names of entries.

hostb\orders       a public queue, by its path name      [MS-MQMQ] 2.1.1
list:all-orders    a distribution list, by its name
alias:sales        a queue alias, by its name
anything else      as in `parse_destination`; and lists of all of these, with commas
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import InvalidName
from protocol.names.direct_name import PROTOCOLS, DirectName, Transport
from protocol.names.format_name import ELEMENTS_MAX, FormatName, MultipleName, parse_destination
from protocol.names.path_name import NameRule
from protocol.names.single_name import PARSERS, SingleName

LIST_PREFIX, ALIAS_PREFIX = "list:", "alias:"
ENTRY_CHARACTERS_MAX = 255  # of the name of a list or an alias; a common name in LDAP has 64

ENTRY_NAME = NameRule(
    ENTRY_CHARACTERS_MAX,
    frozenset(map(chr, range(0x21, 0x7F))) - frozenset('\\;+,"='),
    'ASCII characters from "!" to "~" except \\ ; + , = and the double quote',
)


@dataclass(frozen=True, slots=True)
class QueuePath:
    r"""`computer\queue`: a public queue; `direct` is its meaning without a directory."""

    path: str
    direct: DirectName

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class ListPath:
    """A distribution list by its name."""

    name: str

    def __str__(self) -> str:
        return f"{LIST_PREFIX}{self.name}"


@dataclass(frozen=True, slots=True)
class AliasPath:
    """A queue alias by its name."""

    name: str

    def __str__(self) -> str:
        return f"{ALIAS_PREFIX}{self.name}"


Spelled = SingleName | QueuePath | ListPath | AliasPath


def parse_spelling(
    text: str, *, local_host: str, is_local: Callable[[DirectName], bool]
) -> tuple[Spelled, ...]:
    """Parse any spelling into its elements, one or several. Raises InvalidName.

    `is_local` returns whether a name is one of our own queues, which need no directory.
    """
    start, parts = _split(text)
    if not any(map(_is_entry, parts)):
        # The usual case; here, errors have offsets in the complete text.
        name = parse_destination(text, local_host=local_host)
        elements = elements_of(name)
        if start:
            return elements
        return tuple(map(lambda p, e: _as_path(p, e, is_local), parts, elements))
    if len(parts) > ELEMENTS_MAX:
        rule = f"found another element; at most {ELEMENTS_MAX} are allowed"
        raise InvalidName("format_name", len(text), rule)
    found: list[Spelled] = []
    offset = start
    for index, part in enumerate(parts):
        found.append(_parse_part(part, offset, index, local_host, is_local))
        offset += len(part) + 1
    return tuple(found)


def _split(text: str) -> tuple[int, list[str]]:
    """Return the elements of a text, and the place of the first."""
    prefix = "formatname:"
    start = len(prefix) if text[: len(prefix)].lower() == prefix else 0
    return start, text[start:].split(",", ELEMENTS_MAX)


def may_be_entry(text: str, name: FormatName) -> bool:
    """Return whether a text that is a name by itself may be one of entries: `parse_spelling` says.

    `name` is the result of `parse_destination` for the text.
    """
    return any(map(_is_entry, _split(text)[1])) or any(
        isinstance(each, DirectName) and not each.private and each.host != "."
        for each in elements_of(name)
    )


def elements_of(name: FormatName) -> tuple[SingleName, ...]:
    """Return the elements of a format name; a single name is its own element."""
    return name.elements if isinstance(name, MultipleName) else (name,)


def name_of(elements: tuple[SingleName, ...]) -> FormatName:
    """Return the format name with these elements, the inverse of `elements_of`."""
    return elements[0] if len(elements) == 1 else MultipleName(elements)


def _is_entry(part: str) -> bool:
    lowered = part.lower()
    return lowered.startswith((LIST_PREFIX, ALIAS_PREFIX))


def _parse_part(
    part: str, offset: int, index: int, local_host: str, is_local: Callable[[DirectName], bool]
) -> Spelled:
    lowered = part.lower()
    for prefix, kind in ((LIST_PREFIX, ListPath), (ALIAS_PREFIX, AliasPath)):
        if lowered.startswith(prefix):
            name = part[len(prefix) :]
            ENTRY_NAME.check(name, f"element[{index}].{prefix[:-1]}", offset + len(prefix))
            return kind(name)
    try:
        element = parse_destination(part, local_host=local_host)
    except InvalidName as error:
        raise InvalidName(
            f"element[{index}].{error.field}", offset + error.offset, error.rule
        ) from error
    assert not isinstance(element, MultipleName)  # there are no commas left
    return _as_path(part, element, is_local)


def _as_path(part: str, element: SingleName, is_local: Callable[[DirectName], bool]) -> Spelled:
    r"""Return `hostb\orders` as the path of a public queue; DIRECT= names stay direct."""
    if (
        not isinstance(element, DirectName)
        or element.transport is not Transport.OS
        or element.private
        or element.read_only
        or is_local(element)
        or part.partition("=")[0].lower() in PARSERS
        or part.partition(":")[0].lower() in PROTOCOLS
    ):
        return element
    return QueuePath(f"{element.host}\\{element.queue}", element)
