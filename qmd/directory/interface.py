r"""What the queue manager asks a directory, and what it answers.  [MS-MQDMPR] 3.1.1

    nothing.py             kind "none": workgroup mode
    file.py                kind "file": a TOML file
    active_directory.py    kind "active-directory": LDAP

A directory answers from what it has **now**, or says why it cannot: it keeps no answers.  Keeping
them is the matter of `resolving.py`, so that all kinds are alike in age and in what is done while
the directory is away.  GUIDs are 16 wire bytes; names compare without case.

Rules that every kind keeps:
- no call takes longer than `[directory] timeout`: then it is `DirectoryAway`;
- an entry that is there but cannot be used (a member of a list that is no queue, a format name that
  cannot be read) is `EntryUnusable`, which names it; nothing is left out in silence;
- calls may run at once, and each may be cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from protocol.identifiers import NULL_GUID, guid_text
from protocol.names.format_name import SingleName
from qmd.errors import Refusal

KIND_NONE, KIND_FILE, KIND_ACTIVE_DIRECTORY = "none", "file", "active-directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEntry:
    """A queue manager.  [MS-MQDMPR] 3.1.1.1

    `guid` is the queue manager's id, by which PRIVATE= and MACHINE= name it.  `addresses` are in
    the order in which they are tried, each as in a direct name behind TCP: or OS: ("10.0.0.5",
    "[fd00::5]:1802", "hostb.example.com"); none: `name` itself is one.
    """

    guid: bytes
    name: str
    addresses: tuple[str, ...] = ()
    sites: tuple[bytes, ...] = ()
    in_routers: tuple[bytes, ...] = ()  # queue managers; [MS-MQBR] 3.1.1
    out_routers: tuple[bytes, ...] = ()
    routes: bool = False  # it is a routing server
    foreign: bool = False  # no queue manager of our kind: reached over a connector


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    r"""A public queue.  [MS-MQDMPR] 3.1.1.2

    `path` is `computer\queue`; `guid` is that of PUBLIC=.
    """

    guid: bytes
    path: str
    machine: MachineEntry
    label: str = ""
    transactional: bool | None = None  # None: the directory does not say
    type: bytes = NULL_GUID  # what the application calls this kind of queue

    @property
    def queue(self) -> str:
        """Its name without the computer's."""
        return self.path.partition("\\")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntry:
    """A distribution list: its direct members, other lists among them, in the directory's order.

    An alias is there as the name that it stands for.
    """

    guid: bytes
    name: str
    members: tuple[SingleName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasEntry:
    """A queue alias: another name for any queue.  `guid` is that of its object."""

    guid: bytes
    name: str
    target: SingleName


@dataclass(frozen=True, slots=True)
class SiteLink:
    """Messages may go to that site, at a cost, over these routing servers.  [MS-MQDMPR] 3.1.1.8"""

    site: bytes
    cost: int
    gates: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEntry:
    """Computers that reach each other cheaply.  [MS-MQDMPR] 3.1.1.7"""

    guid: bytes
    name: str
    gates: tuple[bytes, ...] = ()  # queue managers that all traffic to other sites passes
    links: tuple[SiteLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewQueue:
    r"""A public queue of ours, as it is to be registered: `queue` without the computer."""

    machine: bytes  # our queue manager's id
    computer: str  # our name
    queue: str
    label: str = ""
    transactional: bool = False
    type: bytes = NULL_GUID
    journal: bool = False
    quota_bytes: int | None = None  # None: no limit
    journal_quota_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryStatus:
    """How the directory is, for `qmd status`.  Times are in Unix seconds."""

    kind: str
    state: str  # "available", "away", "stale" (old answers are given, the new are broken), "none"
    where: str = ""  # the file, or the server that answers
    problem: str = ""  # why it is not "available"
    since_s: int = 0  # since when it is so; 0: nothing was asked yet
    writable: bool = False
    counts: tuple[tuple[str, int], ...] = ()  # ("queues", 12), ... where that is known


class Directory(Protocol):
    """One directory.  Every look-up raises NotInDirectory, DirectoryAway or EntryUnusable.

    Kind "none" raises NoDirectory for all of them.
    """

    @property
    def kind(self) -> str: ...

    async def start(self) -> None:
        """Begin.  A directory that is away is no error: it may come.  Raises nothing of ours."""

    async def stop(self) -> None: ...

    def status(self) -> DirectoryStatus: ...

    # Looking up.

    async def queue(self, guid: bytes) -> QueueEntry: ...

    async def queue_by_path(self, path: str) -> QueueEntry:
        r"""By `computer\queue`, the computer with or without its domain."""
        ...

    async def alias(self, path: str) -> AliasEntry:
        """By its name; in Active Directory also by its distinguished name."""
        ...

    async def distribution_list(self, guid: bytes, domain: str | None = None) -> ListEntry: ...

    async def list_by_name(self, name: str) -> ListEntry: ...

    async def machine(self, guid: bytes) -> MachineEntry: ...

    async def machine_by_name(self, name: str) -> MachineEntry: ...

    async def sites(self) -> tuple[SiteEntry, ...]: ...

    async def lists(self) -> tuple[ListEntry, ...]:
        """All distribution lists, in the order of their names; `members` may be left empty."""
        ...

    async def aliases(self) -> tuple[AliasEntry, ...]:
        """All queue aliases, in the order of their names; one that cannot be read is EntryUnusable
        only where it is asked for itself."""
        ...

    # Changing; also raises DirectoryReadOnly, DirectoryDenied, AlreadyInDirectory.

    async def register_queue(self, new: NewQueue) -> QueueEntry:
        """The directory chooses the GUID.  One of that path that is there is AlreadyInDirectory."""
        ...

    async def update_queue(self, guid: bytes, new: NewQueue) -> None:
        """The entry's label, journal and quotas, as far as this kind of directory has them; what
        is settled for life (name, transactional) stays.  [MS-MQDMPR] 3.1.7.1.24"""
        ...

    async def unregister_queue(self, guid: bytes) -> None: ...

    async def create_list(self, name: str, members: Sequence[SingleName] = ()) -> ListEntry: ...

    async def delete_list(self, guid: bytes) -> None: ...

    async def create_alias(self, name: str, target: SingleName) -> AliasEntry: ...

    async def delete_alias(self, name: str) -> None:
        """It goes out of the lists that it is in, where the directory has it there as itself."""
        ...

    async def add_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        """Those that are there already stay where they are; all or none."""
        ...

    async def remove_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        """One that is not there is NotInDirectory, and then none is removed."""
        ...


@runtime_checkable
class Reloadable(Protocol):
    """A kind that reads, and can be told to read anew."""

    async def reload(self) -> None: ...


class DirectoryError(Refusal):
    """A directory did not do what it was asked."""

    code = "directory_failed"

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(type(self).code, text, remedy)


class NoDirectory(DirectoryError):
    """Kind "none": there is nobody to ask."""

    code = "name_needs_directory"


class NotInDirectory(DirectoryError):
    """The directory answers, and has no such entry; `what` says what was looked for."""

    code = "not_in_directory"

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"the directory has no {what}", remedy)
        self.what = what


class DirectoryAway(DirectoryError):
    """The directory does not answer: `why`, `where` (the server or file), since when (Unix s)."""

    code = "directory_away"

    def __init__(self, why: str, *, where: str = "", since_s: int = 0) -> None:
        place = f" ({where})" if where else ""
        super().__init__(
            f"the directory{place} is away: {why}",
            "Nothing was sent. See `qmd directory status`, and try again when the directory is"
            " back; direct names need no directory.",
        )
        self.why = why
        self.where = where
        self.since_s = since_s


class EntryUnusable(DirectoryError):
    """An entry is there, and is not what it has to be."""

    code = "directory_entry_unusable"


class DirectoryReadOnly(DirectoryError):
    """Nothing can be changed there."""

    code = "directory_read_only"


class DirectoryDenied(DirectoryError):
    """The account that we use there may not do this."""

    code = "directory_denied"


class AlreadyInDirectory(DirectoryError):
    """An entry of that name is there already."""

    code = "already_in_directory"


class DirectoryIdentityDiffers(DirectoryError):
    """The directory knows the queue manager of our computer by another id than ours."""

    code = "directory_identity_differs"

    def __init__(self, computer: str, theirs: bytes, ours: bytes) -> None:
        super().__init__(
            f"the directory knows the queue manager of {computer} as {guid_text(theirs)}, and this"
            f" one is {guid_text(ours)}",
            "Only a queue manager that began with this directory has public queues in it: begin a"
            " new data folder with it, or use private queues.",
        )
