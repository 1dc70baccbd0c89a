r"""Interface between the queue manager and a directory. [MS-MQDMPR] 3.1.1

    null.py                kind "none": workgroup mode
    file/                  kind "file": a TOML file
    active_directory.py    kind "active-directory": LDAP

A directory answers from its **current** contents, or reports why it cannot: it caches nothing.
Caching is the task of `cache.py`, so that all kinds behave alike in the age of answers and while
the directory is unavailable. GUIDs are 16 wire bytes; names compare without case.

Rules for every kind:
- a call that takes longer than `[directory] timeout` raises `DirectoryAway`;
- an entry that exists but cannot be used (a member of a list that is not a queue, a format name
  that cannot be parsed) raises `EntryUnusable`, which names it; nothing is omitted silently;
- calls may run concurrently, and each may be cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from protocol.identifiers import NULL_GUID, guid_text
from protocol.names.format_name import SingleName
from qmd.errors import Refusal

KIND_NONE, KIND_FILE, KIND_ACTIVE_DIRECTORY = "none", "file", "active-directory"
PRIVACY_OPTIONAL = "optional"
CERTIFICATES_MAX = 64  # of one sender


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEntry:
    """A queue manager. [MS-MQDMPR] 3.1.1.1

    `guid` is the queue manager's id, used by PRIVATE= and MACHINE=. `addresses` are in the order in
    which they are tried, each as in a direct name after TCP: or OS: ("10.0.0.5", "[fd00::5]:1802",
    "hostb.example.com"); if empty, `name` is the address.
    """

    guid: bytes
    name: str
    addresses: tuple[str, ...] = ()
    sites: tuple[bytes, ...] = ()
    in_routers: tuple[bytes, ...] = ()  # queue managers; [MS-MQBR] 3.1.1
    out_routers: tuple[bytes, ...] = ()
    routes: bool = False  # it is a routing server
    foreign: bool = False  # not an MSMQ queue manager: reached through a connector
    #: Its public keys for encrypted messages, MQDSPUBLICKEYS; b"": none.  [MS-MQMQ] 2.2.2
    encryption_keys: bytes = b""
    #: The public keys with which it signs, MQDSPUBLICKEYS; b"": none.  [MS-MQMQ] 2.3.2.33
    signing_keys: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    r"""A public queue. [MS-MQDMPR] 3.1.1.2

    `path` is `computer\queue`; `guid` is that of PUBLIC=.
    """

    guid: bytes
    path: str
    machine: MachineEntry
    label: str = ""
    transactional: bool | None = None  # None: unknown to the directory
    type: bytes = NULL_GUID  # the application's type of the queue
    authenticate: bool = False  # it takes signed messages only
    privacy: str = PRIVACY_OPTIONAL  # one of `local_queue.PRIVACY_LEVELS`

    @property
    def queue(self) -> str:
        """The name of the queue without that of the computer."""
        return self.path.partition("\\")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntry:
    """A distribution list: its direct members, including other lists, in the directory's order.

    An alias is listed as the name that it stands for.
    """

    guid: bytes
    name: str
    members: tuple[SingleName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasEntry:
    """A queue alias: another name for any queue. `guid` is that of its object."""

    guid: bytes
    name: str
    target: SingleName


@dataclass(frozen=True, slots=True)
class SiteLink:
    """A link to that site, with its cost and its routing servers. [MS-MQDMPR] 3.1.1.8"""

    site: bytes
    cost: int
    gates: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEntry:
    """A site: computers with cheap connections to each other. [MS-MQDMPR] 3.1.1.7"""

    guid: bytes
    name: str
    gates: tuple[bytes, ...] = ()  # queue managers that all traffic to other sites passes
    links: tuple[SiteLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewQueue:
    r"""A public queue of ours to be registered; `queue` is without the computer."""

    machine: bytes  # our queue manager's id
    computer: str  # our name
    queue: str
    label: str = ""
    transactional: bool = False
    type: bytes = NULL_GUID
    journal: bool = False
    quota_bytes: int | None = None  # None: no limit
    journal_quota_bytes: int | None = None
    authenticate: bool = False
    privacy: str = PRIVACY_OPTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryStatus:
    """Status of the directory, for `qmd status`. Times are in Unix seconds."""

    kind: str
    # "available", "away", "stale" (the file is broken, earlier contents are used), "none".
    state: str
    where: str = ""  # the file, or the connected server
    problem: str = ""  # why it is not "available"
    since_s: int = 0  # start of the current state; 0: not queried yet
    writable: bool = False
    counts: tuple[tuple[str, int], ...] = ()  # ("queues", 12), ... if known


class Changes(Protocol):
    """Changes of a directory: our public queues, distribution lists, queue aliases.

    Every change raises the errors of a look-up, and DirectoryReadOnly, DirectoryDenied or
    AlreadyInDirectory.
    """

    async def register_queue(self, new: NewQueue) -> QueueEntry:
        """Register a queue; the directory assigns the GUID.

        Raises AlreadyInDirectory if the path exists.
        """
        ...

    async def update_queue(self, guid: bytes, new: NewQueue) -> None:
        """Update the entry's label, protection, journal and quotas, as far as this kind has them.

        Permanent properties (name, transactional) stay. [MS-MQDMPR] 3.1.7.1.24
        """
        ...

    async def unregister_queue(self, guid: bytes) -> None: ...

    async def publish_keys(self, machine: bytes, name: str, keys: bytes) -> None:
        """Replace the public keys of our queue manager, MQDSPUBLICKEYS. [MS-MQDMPR] 3.1.1.1

        `name` is that of our computer, in case that the directory has no entry of it.
        """
        ...

    async def register_certificate(self, sender: str, certificate: bytes) -> bool:
        """Register a certificate (DER) for a sender; return whether it is new.

        `sender` is the text of a security identifier, or of the GUID of a queue manager.
        """
        ...

    async def remove_certificate(self, sender: str, fingerprint: str) -> bool:
        """Remove a registered certificate by its SHA-256; return whether it was there."""
        ...

    async def create_list(self, name: str, members: Sequence[SingleName] = ()) -> ListEntry: ...

    async def delete_list(self, guid: bytes) -> None: ...

    async def create_alias(self, name: str, target: SingleName) -> AliasEntry: ...

    async def delete_alias(self, name: str) -> None:
        """Delete an alias, and remove it from lists that contain the alias itself."""
        ...

    async def add_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        """Add all members or none; existing members keep their place."""
        ...

    async def remove_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        """Remove all members or none. Raises NotInDirectory for one that is not in the list."""
        ...


class Directory(Protocol):
    """One directory. Every look-up raises NotInDirectory, DirectoryAway or EntryUnusable.

    Kind "none" raises NoDirectory for all look-ups and changes.
    """

    @property
    def kind(self) -> str: ...

    @property
    def changes(self) -> Changes: ...

    async def start(self) -> None:
        """Start the directory; an unavailable one is no error, because it may return.

        Raises none of the errors of this module.
        """

    async def stop(self) -> None: ...

    def status(self) -> DirectoryStatus: ...

    # Looking up.

    async def queue(self, guid: bytes) -> QueueEntry: ...

    async def queue_by_path(self, path: str) -> QueueEntry:
        r"""Return a queue by `computer\queue`, the computer with or without its domain."""
        ...

    async def alias(self, path: str) -> AliasEntry:
        """Return an alias by its name; in Active Directory also by its distinguished name."""
        ...

    async def distribution_list(self, guid: bytes, domain: str | None = None) -> ListEntry: ...

    async def list_by_name(self, name: str) -> ListEntry: ...

    async def machine(self, guid: bytes) -> MachineEntry: ...

    async def machine_by_name(self, name: str) -> MachineEntry: ...

    async def certificates(self, sender: str) -> tuple[bytes, ...]:
        """Return the certificates (DER) that are registered for a sender of messages.

        `sender` is the text of a security identifier, or of the GUID of a queue manager.
        """
        ...

    async def sites(self) -> tuple[SiteEntry, ...]: ...

    async def lists(self) -> tuple[ListEntry, ...]:
        """Return all distribution lists, ordered by name; `members` may be left empty."""
        ...

    async def aliases(self) -> tuple[AliasEntry, ...]:
        """Return all queue aliases, ordered by name.

        An alias that cannot be read is left out; only a look-up of that alias raises EntryUnusable.
        """
        ...


@runtime_checkable
class Reloadable(Protocol):
    """A directory that can read its contents again on request."""

    async def reload(self) -> None: ...


class DirectoryError(Refusal):
    """A directory did not execute a request."""

    code = "directory_failed"

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(type(self).code, text, remedy)


class NoDirectory(DirectoryError):
    """Kind "none": there is no directory."""

    code = "name_needs_directory"


class NotInDirectory(DirectoryError):
    """The directory has no such entry; `what` describes the requested entry."""

    code = "not_in_directory"

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"the directory has no {what}", remedy)
        self.what = what


class DirectoryAway(DirectoryError):
    """The directory does not answer: `why`, `where` (server or file), since when (Unix s)."""

    code = "directory_away"

    def __init__(self, why: str, *, where: str = "", since_s: int = 0) -> None:
        place = f" ({where})" if where else ""
        super().__init__(
            f"the directory{place} is unavailable: {why}",
            "Nothing was sent. See `qmd directory status`, and try again when the directory is"
            " available; direct names need no directory.",
        )
        self.why = why
        self.where = where
        self.since_s = since_s


class EntryUnusable(DirectoryError):
    """An entry exists, but is not of the required form."""

    code = "directory_entry_unusable"


class DirectoryReadOnly(DirectoryError):
    """The directory cannot be changed."""

    code = "directory_read_only"


class DirectoryDenied(DirectoryError):
    """The account used for the directory lacks the permission."""

    code = "directory_denied"


class AlreadyInDirectory(DirectoryError):
    """An entry of that name already exists."""

    code = "already_in_directory"


class DirectoryIdentityDiffers(DirectoryError):
    """The directory's id for the queue manager of our computer differs from ours."""

    code = "directory_identity_differs"

    def __init__(self, computer: str, theirs: bytes, ours: bytes) -> None:
        super().__init__(
            f"the directory knows the queue manager of {computer} as {guid_text(theirs)}, and this"
            f" one is {guid_text(ours)}",
            "Only a queue manager that was created with this directory has public queues in it:"
            " create a new data folder with it, or use private queues.",
        )
