r"""Format of a directory file, parsed strictly.

    [[machine]]                            [[list]]
    name = "hosta"                         name = "all-orders"
    guid = "0f1e2d3c-..."                  members = ['hosta\orders', "list:others", "orders@hostc"]
    addresses = ["10.0.0.5", "hosta.lan"]
                                           [[alias]]
    [[queue]]                              name = "sales"
    path = 'hosta\orders'                  target = 'DIRECT=OS:hostb\private$\sales'

    [[site]]                               [[link]]
    name = "berlin"                        sites = ["berlin", "paris"]
    gates = ["routera"]                    cost = 10

    [[sender]]
    sid = "S-1-5-21-1-2-3-1001"
    certificates = ["MIIDazCCAlOgAw..."]

Nothing is guessed: an unknown key, a duplicate, a wrong type or a reference to a missing entry is a
DirectoryFileError with file and line. Entries other than machines that have no GUID get one derived
from their name, so the file may be written by hand.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.errors import InvalidName
from protocol.identifiers import NULL_GUID, guid_text
from protocol.names.format_name import SingleName
from qmd.config.file import ConfigError
from qmd.directory.file.contents import Contents
from qmd.directory.file.editing import line_of
from qmd.directory.file.values import TABLES
from qmd.directory.interface import (
    PRIVACY_OPTIONAL,
    AliasEntry,
    ListEntry,
    MachineEntry,
    QueueEntry,
    SiteEntry,
    SiteLink,
)

FILE_BYTES_MAX = 64 * 1024 * 1024

_NAMESPACE = bytes.fromhex("c7a9d3e2514f4b0c8f1d2b6e90a47358")


class DirectoryFileError(ConfigError):
    """The file cannot be used; `str()` is one line with file and line."""


def read_text(file: Path) -> str:
    """Read the file. Raises DirectoryFileError."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise DirectoryFileError(
                f"longer than {FILE_BYTES_MAX} bytes", code="directory_file_unreadable", file=file
            )
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise DirectoryFileError(
            error.strerror or str(error), code="directory_file_unreadable", file=file
        ) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DirectoryFileError(
            "not UTF-8 text", code="directory_file_broken", file=file, line=line
        ) from error


def parse(text: str, file: Path) -> Contents:
    """Parse the text of a file. Raises DirectoryFileError, with the line if it is known."""
    from qmd.config.file import _split_line  # the same messages of the same library

    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem, line = _split_line(str(error), text.count("\n") + 1)
        raise DirectoryFileError(
            problem, code="directory_file_broken", file=file, line=line
        ) from error
    return _Reading(text, file, document).contents()


def made_guid(kind: str, name: str) -> bytes:
    """Return a GUID derived from the name, the same for the same name. RFC 4122, version 5"""
    digest = hashlib.sha1(
        _NAMESPACE + f"{kind}:{name.lower()}".encode(), usedforsecurity=False
    ).digest()
    guid = bytearray(digest[:16])
    guid[7] = guid[7] & 0x0F | 0x50  # the version is in Data3, little-endian
    guid[8] = guid[8] & 0x3F | 0x80
    return bytes(guid)


class _Wrong(ValueError):
    """An error in one key of the current entry."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class _Reading:
    """Parser state that converts a document to Contents."""

    def __init__(self, text: str, file: Path, document: dict[str, Any]) -> None:
        self._text = text
        self._file = file
        self._found = Contents()
        self._check_tables(document)
        self._entries = {
            kind: [
                self._entry(kind, index, raw) for index, raw in enumerate(document.get(kind, []))
            ]
            for kind in TABLES
        }

    def contents(self) -> Contents:
        """Add all entries, each after the entries that it refers to."""
        self._each("site", self._add_site)
        self._each("machine", self._add_machine)
        self._each("machine", self._add_routers)
        self._each("site", self._add_gates)
        self._each("link", self._add_link)
        self._each("queue", self._add_queue)
        self._each("list", self._add_list)
        self._each("alias", self._add_alias)
        self._each("list", self._add_members)
        self._each("sender", self._add_sender)
        return self._found

    def _each(self, kind: str, add: Callable[[int, dict[str, Any]], None]) -> None:
        for index, entry in enumerate(self._entries[kind]):
            try:
                add(index, entry)
            except _Wrong as wrong:
                raise self._error(str(wrong), kind, index, wrong.key) from wrong

    def _error(self, problem: str, kind: str, index: int, key: str = "") -> DirectoryFileError:
        return DirectoryFileError(
            problem,
            code="directory_file_broken",
            key=f"[[{kind}]] {key}".rstrip(),
            file=self._file,
            line=line_of(self._text, kind, index, key),
        )

    def _check_tables(self, document: dict[str, Any]) -> None:
        for kind, value in document.items():
            if kind not in TABLES:
                known = ", ".join(f"[[{each}]]" for each in TABLES)
                raise DirectoryFileError(
                    f"{kind} is unknown; there are {known}",
                    code="directory_file_broken",
                    file=self._file,
                    line=_line_of_word(self._text, kind),
                )
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise DirectoryFileError(
                    f"{kind} must be separate entries, each under [[{kind}]]",
                    code="directory_file_broken",
                    file=self._file,
                    line=_line_of_word(self._text, kind),
                )

    def _entry(self, kind: str, index: int, raw: dict[str, Any]) -> dict[str, Any]:
        required, keys = TABLES[kind]
        for key in raw:
            if key not in keys:
                raise self._error(f"unknown key; there are {', '.join(keys)}", kind, index, key)
        for key in list(keys)[:required]:
            if key not in raw:
                raise self._error(f"{key} is missing", kind, index)
        entry = {}
        for key, value in raw.items():
            try:
                entry[key] = keys[key](value)
            except (ValueError, InvalidName) as error:
                problem = error.rule if isinstance(error, InvalidName) else str(error)
                raise self._error(
                    f"found {str(value)[:80]!r}; {problem}", kind, index, key
                ) from error
        return entry

    def _add_site(self, index: int, entry: dict[str, Any]) -> None:
        guid = entry.get("guid") or made_guid("site", entry["name"])
        _take(self._found.site_names, entry["name"], guid, "site")
        _take_guid(self._found.sites, guid)
        self._found.sites[guid] = SiteEntry(guid=guid, name=entry["name"])

    def _add_machine(self, index: int, entry: dict[str, Any]) -> None:
        guid, name = entry["guid"], entry["name"]
        _take(self._found.machine_names, name, guid, "machine")
        _take_guid(self._found.machines, guid)
        short = name.lower().partition(".")[0]
        if short != name.lower():
            self._found.short_names.setdefault(short, []).append(guid)
        self._found.machines[guid] = MachineEntry(
            guid=guid,
            name=name,
            addresses=entry.get("addresses", ()),
            sites=self._names(entry, "sites", self._site),
            routes=entry.get("routes", False),
            foreign=entry.get("foreign", False),
            encryption_keys=entry.get("encryption_keys", b""),
        )
        self._found.machine_places[guid] = index
        self._found.certificates[guid_text(guid)] = entry.get("certificates", ())

    def _add_sender(self, index: int, entry: dict[str, Any]) -> None:
        sid = entry["sid"]
        if sid in self._found.certificates:
            raise _Wrong("sid", f"{sid} exists already")
        self._found.certificates[sid] = entry["certificates"]

    def _add_routers(self, index: int, entry: dict[str, Any]) -> None:
        machine = self._found.machines[entry["guid"]]
        self._found.machines[machine.guid] = replace(
            machine,
            in_routers=self._names(entry, "in_routers", self._machine),
            out_routers=self._names(entry, "out_routers", self._machine),
        )

    def _add_gates(self, index: int, entry: dict[str, Any]) -> None:
        guid = self._found.site_names[entry["name"].lower()]
        site = self._found.sites[guid]
        self._found.sites[guid] = replace(site, gates=self._names(entry, "gates", self._machine))

    def _add_link(self, index: int, entry: dict[str, Any]) -> None:
        ends = self._names(entry, "sites", self._site)
        if len(ends) != 2 or ends[0] == ends[1]:
            raise _Wrong("sites", "a link connects two different sites")
        gates = self._names(entry, "gates", self._machine)
        for here, there in (ends, ends[::-1]):
            site = self._found.sites[here]
            if any(link.site == there for link in site.links):
                raise _Wrong("sites", "these two sites have a link already")
            link = SiteLink(there, entry["cost"], gates)
            self._found.sites[here] = replace(site, links=(*site.links, link))

    def _add_queue(self, index: int, entry: dict[str, Any]) -> None:
        computer, _, queue = entry["path"].partition("\\")
        machine = self._found.machine_by_name(computer)
        if machine is None:
            raise _Wrong("path", f"there is no machine {computer} in this file")
        path = f"{machine.name}\\{queue}"
        guid = entry.get("guid") or made_guid("queue", path)
        place = machine.guid, queue.lower()
        if place in self._found.queue_paths:
            raise _Wrong("path", f"{path} exists already")
        _take_guid(self._found.queues, guid)
        self._found.queue_paths[place] = guid
        self._found.queue_places[guid] = index
        self._found.queues[guid] = QueueEntry(
            guid=guid,
            path=path,
            machine=machine,
            label=entry.get("label", ""),
            transactional=entry.get("transactional"),
            type=entry.get("type", NULL_GUID),
            authenticate=entry.get("authenticate", False),
            privacy=entry.get("privacy", PRIVACY_OPTIONAL),
        )

    def _add_list(self, index: int, entry: dict[str, Any]) -> None:
        guid = entry.get("guid") or made_guid("list", entry["name"])
        _take(self._found.list_names, entry["name"], guid, "list")
        _take_guid(self._found.lists, guid)
        self._found.list_places[guid] = index
        self._found.lists[guid] = ListEntry(guid=guid, name=entry["name"])

    def _add_alias(self, index: int, entry: dict[str, Any]) -> None:
        name = entry["name"]
        if name.lower() in self._found.aliases:
            raise _Wrong("name", f"{name} exists already")
        if entry["target"].lower().startswith("alias:"):
            raise _Wrong("target", "an alias does not stand for another alias")
        target = self._member("target", entry["target"])
        guid = entry.get("guid") or made_guid("alias", name)
        self._found.alias_places[name.lower()] = index
        self._found.aliases[name.lower()] = AliasEntry(guid=guid, name=name, target=target)

    def _add_members(self, index: int, entry: dict[str, Any]) -> None:
        guid = self._found.list_names[entry["name"].lower()]
        members: dict[str, SingleName] = {}
        for text in entry.get("members", []):
            member = self._member("members", text)
            if member.key in members:
                raise _Wrong("members", f"{text} appears twice")
            members[member.key] = member
        self._found.lists[guid] = replace(self._found.lists[guid], members=tuple(members.values()))

    def _member(self, key: str, text: str) -> SingleName:
        try:
            return self._found.member(text)
        except (ValueError, InvalidName) as error:
            raise _Wrong(key, str(error)) from error

    def _names(
        self, entry: dict[str, Any], key: str, find: Callable[[str], bytes | None]
    ) -> tuple[bytes, ...]:
        found = []
        for name in entry.get(key, []):
            guid = find(name)
            if guid is None:
                what = "site" if key == "sites" else "machine"
                raise _Wrong(key, f"there is no {what} {name} in this file")
            if guid in found:
                raise _Wrong(key, f"{name} appears twice")
            found.append(guid)
        return tuple(found)

    def _site(self, name: str) -> bytes | None:
        return self._found.site_names.get(name.lower())

    def _machine(self, name: str) -> bytes | None:
        machine = self._found.machine_by_name(name)
        return None if machine is None else machine.guid


def _take(names: dict[str, bytes], name: str, guid: bytes, what: str) -> None:
    if name.lower() in names:
        raise _Wrong("name", f"there is another {what} {name}; names compare without case")
    names[name.lower()] = guid


def _take_guid(known: Collection[bytes], guid: bytes) -> None:
    if guid in known:
        raise _Wrong("guid", f"{guid_text(guid)} belongs to another entry")


def _line_of_word(text: str, word: str) -> int | None:
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().lstrip("[").lstrip().lstrip('"').startswith(word):
            return number
    return None
