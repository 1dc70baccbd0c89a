"""Contents of a directory file: its entries, and the look-ups among them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NoReturn

from protocol.names.direct_name import DirectName
from protocol.names.format_name import DistributionListName, PublicName, SingleName
from qmd.directory.interface import (
    AliasEntry,
    ListEntry,
    MachineEntry,
    NotInDirectory,
    QueueEntry,
    SiteEntry,
)
from qmd.directory.spelling import (
    LIST_PREFIX,
    AliasPath,
    ListPath,
    QueuePath,
    parse_spelling,
)


@dataclass(slots=True)
class Contents:
    """Contents of a file. Places are indices among the entries of a kind, in file order."""

    machines: dict[bytes, MachineEntry] = field(default_factory=dict)
    queues: dict[bytes, QueueEntry] = field(default_factory=dict)
    lists: dict[bytes, ListEntry] = field(default_factory=dict)
    aliases: dict[str, AliasEntry] = field(default_factory=dict)  # by name, in lower case
    sites: dict[bytes, SiteEntry] = field(default_factory=dict)
    #: Certificates (DER) of senders, by the text of the security identifier or the GUID.
    certificates: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    machine_places: dict[bytes, int] = field(default_factory=dict)
    queue_places: dict[bytes, int] = field(default_factory=dict)
    list_places: dict[bytes, int] = field(default_factory=dict)
    alias_places: dict[str, int] = field(default_factory=dict)  # by name, in lower case
    machine_names: dict[str, bytes] = field(default_factory=dict)
    short_names: dict[str, list[bytes]] = field(default_factory=dict)
    queue_paths: dict[tuple[bytes, str], bytes] = field(default_factory=dict)
    list_names: dict[str, bytes] = field(default_factory=dict)
    site_names: dict[str, bytes] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        return (
            ("queues", len(self.queues)),
            ("lists", len(self.lists)),
            ("aliases", len(self.aliases)),
            ("machines", len(self.machines)),
            ("sites", len(self.sites)),
        )

    def machine_by_name(self, name: str) -> MachineEntry | None:
        """Return the machine by its name, with or without its domain if that is unambiguous."""
        lowered = name.lower()
        guid = self.machine_names.get(lowered)
        if guid is None:
            short, dot, _ = lowered.partition(".")
            known = self.machine_names.get(short) if dot else None
            alike = self.short_names.get(lowered, [])
            guid = known or (alike[0] if len(alike) == 1 else None)
        return None if guid is None else self.machines[guid]

    def queue_by_path(self, path: str) -> QueueEntry | None:
        computer, _, queue = path.partition("\\")
        machine = self.machine_by_name(computer)
        if machine is None:
            return None
        guid = self.queue_paths.get((machine.guid, queue.lower()))
        return None if guid is None else self.queues[guid]

    def list_by_name(self, name: str) -> ListEntry | None:
        guid = self.list_names.get(name.lower())
        return None if guid is None else self.lists[guid]

    def list_place(self, name: str) -> int:
        return self.list_places[self.list_names[name.lower()]]

    # Tests on the text of a member.

    def is_queue(self, guid: bytes, member: str) -> bool:
        return getattr(self.member(member), "queue", None) == guid

    def is_list(self, guid: bytes, member: str) -> bool:
        return getattr(self.member(member), "distribution_list", None) == guid

    def is_one_of(self, keys: Collection[str], member: str) -> bool:
        return self.member(member).key in keys

    def spelling(self, member: SingleName) -> str:
        """Return the text of a member in the form that people write into the file."""
        if isinstance(member, PublicName) and member.queue in self.queues:
            return self.queues[member.queue].path
        if isinstance(member, DistributionListName) and member.distribution_list in self.lists:
            return f"{LIST_PREFIX}{self.lists[member.distribution_list].name}"
        return str(member)

    def member(self, text: str) -> SingleName:
        """Return the queue or list named by a text in this file. Raises ValueError, InvalidName."""
        spelled = parse_spelling(text, local_host=".", is_local=lambda name: False)
        if len(spelled) != 1:
            raise ValueError("one queue or list is required, without commas")
        match spelled[0]:
            case QueuePath(path=path):
                entry = self.queue_by_path(path)
                if entry is None:
                    raise ValueError(
                        f"{path} is not a queue of this file; for a queue that is not in the"
                        " directory, write"
                        f" DIRECT=OS:{path}"
                    )
                return PublicName(entry.guid)
            case ListPath(name=list_name):
                found = self.list_names.get(list_name.lower())
                if found is None:
                    raise ValueError(f"there is no list {list_name} in this file")
                return DistributionListName(found)
            case AliasPath(name=alias_name):
                alias = self.aliases.get(alias_name.lower())
                if alias is None:
                    raise ValueError(f"there is no alias {alias_name} in this file")
                return alias.target
            case PublicName(queue=guid) if guid not in self.queues:
                raise ValueError(f"{spelled[0]} is not a queue of this file")
            case DistributionListName(distribution_list=guid) if guid not in self.lists:
                raise ValueError(f"{spelled[0]} is not a list of this file")
            case DirectName(host="."):
                raise ValueError(
                    f"{text} names no computer, so it would be a different queue on each: write"
                    f" {text}@host or host\\private$\\{text}"
                )
            case name:
                if name.read_only:
                    raise ValueError(f"{name} cannot be sent to")
                return name


def missing(what: str) -> NoReturn:
    """Raise NotInDirectory for the entry `what`."""
    raise NotInDirectory(what)
