"""Edits of a directory file's text that preserve comments, order and blank lines.

Every edit is checked before it is used: apart from the change itself, the new text must have the
same contents as the old one. If a line-by-line edit cannot achieve that, an administrator must edit
the file.
"""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from protocol.identifiers import NULL_GUID, guid_text
from qmd.directory.interface import PRIVACY_OPTIONAL, NewQueue

_HEADER = re.compile(r"\s*\[\[\s*([A-Za-z0-9_-]+)\s*\]\]\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")
# A member on a separate line.
_MEMBER = re.compile(r"(\s*(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'))\s*(,?)\s*(#.*)?$")
_ENDS = ("]", '"""', "'''", "}")


class CannotEdit(Exception):
    """The text is valid, but in a form that cannot be edited."""


class Statement(NamedTuple):
    """A header or a key with its value; lines `first` to before `end`, from 0.

    `table` and `nth` identify its `[[table]]` by name and index. `key` is "" for headers.
    """

    first: int
    end: int
    table: str
    nth: int
    key: str


def statements(text: str) -> list[Statement]:
    """Return the statements of a valid text. Raises CannotEdit if they do not follow the lines."""
    lines = _lines(text)
    found: list[Statement] = []
    counts: dict[str, int] = {}
    table, at = "", 0
    while at < len(lines):
        line = lines[at].strip()
        if not line or line.startswith("#"):
            at += 1
            continue
        if line.startswith("["):
            header = _HEADER.match(lines[at].rstrip("\r\n"))
            if header is None:
                raise CannotEdit(f"line {at + 1} begins a table of another kind")
            table = header[1]
            counts[table] = counts.get(table, -1) + 1
            found.append(Statement(at, at + 1, table, counts[table], ""))
            at += 1
            continue
        key = _KEY.match(lines[at])
        if key is None:
            raise CannotEdit(f"line {at + 1} has a key in quotes or with dots")
        end = _end_of(lines, at)
        found.append(Statement(at, end, table, counts.get(table, 0), key[1]))
        at = end
    return found


def line_of(text: str, table: str, index: int, key: str = "") -> int | None:
    """Return the line, from 1, of an entry or of its key; None if it cannot be determined."""
    try:
        found = statements(text)
    except CannotEdit:
        return None
    header = None
    for each in found:
        if (each.table, each.nth) == (table, index):
            if each.key == key:
                return each.first + 1
            header = header or each.first + 1
    return header


def add_machine(text: str, name: str, guid: bytes) -> str:
    return _add(text, "machine", {"name": name, "guid": guid_text(guid)})


def add_queue(text: str, path: str, new: NewQueue) -> str:
    fields: dict[str, Any] = {"path": path}
    if new.label:
        fields["label"] = new.label
    fields["transactional"] = new.transactional
    if new.authenticate:
        fields["authenticate"] = True
    if new.privacy != PRIVACY_OPTIONAL:
        fields["privacy"] = new.privacy
    if new.type != NULL_GUID:
        fields["type"] = guid_text(new.type)
    return _add(text, "queue", fields)


def add_list(text: str, name: str, members: list[str]) -> str:
    return _add(text, "list", {"name": name, "members": members})


def add_alias(text: str, name: str, target: str) -> str:
    return _add(text, "alias", {"name": name, "target": target})


def set_certificates(text: str, sender: str, certificates: Sequence[bytes]) -> str:
    """Replace the certificates of a sender: a SID, or the GUID of a machine in the file.

    Raises CannotEdit for a machine that the file does not have.
    """
    table, key = ("sender", "sid") if sender.startswith("S-") else ("machine", "guid")
    entries = tomllib.loads(text).get(table, [])
    index = next(
        (at for at, each in enumerate(entries) if each[key].casefold() == sender.casefold()), None
    )
    encoded = [base64.b64encode(each).decode() for each in certificates]
    if index is not None:
        if table == "sender" and not encoded:
            return remove_entry(text, table, index)
        return set_values(text, table, index, {"certificates": encoded or None})
    if table == "machine":
        raise CannotEdit(f"it has no machine with the GUID {sender}")
    return _add(text, table, {key: sender, "certificates": encoded})


def set_values(text: str, table: str, index: int, values: dict[str, Any]) -> str:
    """Set values of an entry, each on a line; "" and None remove a value."""
    expected = tomllib.loads(text)
    entry = expected[table][index]
    for key, value in values.items():
        lines, found = _lines(text), statements(text)
        place = next((each for each in found if each[2:] == (table, index, key)), None)
        written = [] if value in ("", None) else [f"{key} = {_value(value)}\n"]
        if written:
            entry[key] = value
        else:
            entry.pop(key, None)
        if place is None:
            end = _block(text, table, index)[0] + 1
            inside = [each for each in found if (each.table, each.nth) == (table, index)]
            required = [each.end for each in inside if each.key in ("path", "name", "guid")]
            end = max([end, *required])
            lines[end:end] = written
        else:
            lines[place.first : place.end] = written
        text = "".join(lines)
    return _checked(text, expected)


def remove_entry(text: str, table: str, index: int) -> str:
    """Remove the entry, and the comment directly above it."""
    expected = tomllib.loads(text)
    del expected[table][index]
    if not expected[table]:
        del expected[table]
    lines = _lines(text)
    first, end = _block(text, table, index)
    above = first
    while above > 0 and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    if above > 0:  # otherwise it is the comment at the head of the file
        first = above
    while first > 0 and end < len(lines) and not lines[first - 1].strip():
        if lines[end - 1].strip():
            break
        first -= 1
    return _checked("".join(lines[:first] + lines[end:]), expected)


def add_members(text: str, index: int, members: list[str]) -> str:
    expected = tomllib.loads(text)
    expected["list"][index].setdefault("members", []).extend(members)
    place = _members(text, index)
    lines = _lines(text)
    if place is not None and place.end - place.first > 1:
        inner = lines[place.first + 1 : place.end - 1]
        is_open = lines[place.first].rstrip().endswith("[")
        if is_open and lines[place.end - 1].strip() == "]" and all(map(_is_member_line, inner)):
            kept = [_with_comma(line) for line in inner]
            kept += [f"    {_quoted(member)},\n" for member in members]
            new = lines[: place.first + 1] + kept + lines[place.end - 1 :]
            return _checked("".join(new), expected)
    return _write_members(text, index, expected)


def remove_members(text: str, index: int, matches: Callable[[str], bool]) -> str:
    """Remove the members with a text that `matches`."""
    expected = tomllib.loads(text)
    entry = expected["list"][index]
    entry["members"] = [each for each in entry.get("members", []) if not matches(each)]
    place = _members(text, index)
    if place is None:
        return text
    lines = _lines(text)
    inner = lines[place.first + 1 : place.end - 1]
    if place.end - place.first > 1 and all(map(_is_member_line, inner)):
        kept = [line for line in inner if not _matches_line(line, matches)]
        new = "".join(lines[: place.first + 1] + kept + lines[place.end - 1 :])
        try:
            return _checked(new, expected)
        except CannotEdit:
            pass  # a member is on the same line as a bracket
    return _write_members(text, index, expected)


def _write_members(text: str, index: int, expected: dict[str, Any]) -> str:
    """Rewrite all members, one on a line."""
    lines = _lines(text)
    place = _members(text, index)
    written = "members = " + _value(expected["list"][index]["members"]) + "\n"
    if place is None:
        first, _ = _block(text, "list", index)
        lines.insert(first + 1, written)
    else:
        lines[place.first : place.end] = [written]
    return _checked("".join(lines), expected)


def _add(text: str, table: str, fields: dict[str, Any]) -> str:
    expected = tomllib.loads(text)
    if not isinstance(expected.setdefault(table, []), list):
        raise CannotEdit(f"{table} is not an array of tables")
    expected[table].append(fields)
    block = [f"[[{table}]]", *(f"{key} = {_value(value)}" for key, value in fields.items())]
    separator = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return _checked(text + separator + "\n".join(block) + "\n", expected)


def _block(text: str, table: str, index: int) -> tuple[int, int]:
    """Return the lines of an entry, including the blank ones after it."""
    found = statements(text)
    lines = _lines(text)
    for place, each in enumerate(found):
        if (each.table, each.nth, each.key) == (table, index, ""):
            inside = [one for one in found[place:] if (one.table, one.nth) == (table, index)]
            end = inside[-1].end
            while end < len(lines) and not lines[end].strip():
                end += 1
            return each.first, end
    raise CannotEdit(f"entry {index + 1} of {table} has no [[{table}]] of its own")


def _members(text: str, index: int) -> Statement | None:
    for each in statements(text):
        if (each.table, each.nth, each.key) == ("list", index, "members"):
            return each
    return None


def _end_of(lines: list[str], first: int) -> int:
    """Return the index after the last line of a key's value."""
    for end in range(first + 1, len(lines) + 1):
        if end > first + 1 and not any(mark in lines[end - 1] for mark in _ENDS):
            continue  # the value cannot end here; skip the slow parsing
        try:
            tomllib.loads("".join(lines[first:end]))
        except (tomllib.TOMLDecodeError, ValueError):
            continue
        return end
    raise CannotEdit(f"the end of the value on line {first + 1} cannot be found")


def _checked(text: str, expected: dict[str, Any]) -> str:
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise CannotEdit(f"it would not be valid any more ({error})") from error
    if found != expected:
        raise CannotEdit("another entry would change with it")
    return text


def _is_member_line(line: str) -> bool:
    stripped = line.strip()
    return not stripped or stripped.startswith("#") or _MEMBER.match(line.rstrip()) is not None


def _matches_line(line: str, matches: Callable[[str], bool]) -> bool:
    found = _MEMBER.match(line.rstrip())
    return found is not None and matches(tomllib.loads(f"x = {found[1].strip()}")["x"])


def _with_comma(line: str) -> str:
    found = _MEMBER.match(line.rstrip())
    if found is None or found[2]:
        return line
    comment = f"  {found[3]}" if found[3] else ""
    return f"{found[1]},{comment}\n"


def _lines(text: str) -> list[str]:
    # TOML has no other line ends, but str.splitlines has.
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines


def _value(value: Any) -> str:
    if isinstance(value, list):
        if not value:
            return "[]"
        return "[\n" + "".join(f"    {_quoted(each)},\n" for each in value) + "]"
    return _quoted(value) if isinstance(value, str) else str(value).lower()


def _quoted(text: str) -> str:
    """Quote a text; a path with backslashes is best readable in single quotes."""
    if "\\" in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    escaped = "".join(
        f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08X}" for c in text
    )
    return f'"{escaped}"'
