"""The file of definitions that `Export-MsmqDefinition.ps1` wrote: JSON, read strictly.

docs/migration.md describes every field.  Unknown fields are an error, because a newer script may
state something that this release would lose silently.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from qmd.migration.errors import BadSource
from qmd.migration.security_descriptor import DESCRIPTOR_BYTES_MAX

VERSION = 1
FILE_BYTES_MAX = 256 * 1024 * 1024  # a queue with its rights has about 800
QUEUES_MAX = 100_000
UNLIMITED_KB = 0xFFFFFFFF  # of Windows: no quota

Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Kilobytes = Annotated[int, msgspec.Meta(ge=0, le=UNLIMITED_KB)]
#: Of the registry and of cmdlets: security descriptors in hexadecimal, conditions of rules.
Value = Annotated[str, msgspec.Meta(max_length=1 << 20)]
Texts = dict[Text, Value]
Privacy = Literal["none", "optional", "body"]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all records."""


class Note(Strict, frozen=True):
    """A thing that the script could not read."""

    about: Value
    text: Value


class WindowsQueue(Strict, frozen=True, kw_only=True):
    """A queue; a field of None could not be read, or its source does not state it."""

    name: Text  # "private$\orders", or "orders" if it is public
    public: bool = False
    format_name: Text = ""
    instance: Text = ""
    label: Text = ""
    transactional: bool | None = None
    journal: bool | None = None
    quota_kb: Kilobytes | None = None
    journal_quota_kb: Kilobytes | None = None
    authenticate: bool | None = None
    privacy: Privacy | None = None
    base_priority: int | None = None
    type: Text = ""
    multicast: Text | None = ""
    created_at: Text | None = None
    modified_at: Text | None = None
    security_base64: Annotated[str, msgspec.Meta(max_length=2 * DESCRIPTOR_BYTES_MAX)] = ""
    accounts: Texts = {}
    messages: Count | None = None
    journal_messages: Count | None = None

    @property
    def security(self) -> bytes:
        """Return the security descriptor; empty: unknown.  Raises BadSource."""
        try:
            return base64.b64decode(self.security_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadSource(f"the security of {self.name} is not base64: {error}") from error


class RegistryKey(Strict, frozen=True):
    """A key of a trigger or a rule below it."""

    name: Text
    values: Texts


class Definition(Strict, frozen=True):
    """A trigger or a rule: the values of its registry key, and those below."""

    id: Text
    values: Texts
    below: list[RegistryKey] = []


class Member(Strict, frozen=True, rename={"class_": "class"}):
    """A member of a distribution list."""

    class_: Text
    guid: Text
    path: Text = ""
    format_name: Text = ""
    dn: Text = ""


class DistributionList(Strict, frozen=True):
    """A distribution list of the Active Directory."""

    name: Text
    guid: Text
    members: list[Member]


class ManagerFacts(Strict, frozen=True):
    """Properties and registry values of the queue manager, as text."""

    properties: Texts = {}
    parameters: Texts = {}
    machine: Texts = {}


class Collection(Strict, frozen=True, kw_only=True):
    """All definitions of a computer."""

    qmd_windows_collection: int
    computer: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    collected_at: Text = ""
    windows: Text = ""
    source: Literal["script", "lqs"] = "script"
    queue_manager: ManagerFacts = ManagerFacts()
    queues: Annotated[list[WindowsQueue], msgspec.Meta(max_length=QUEUES_MAX)] = []
    outgoing: Annotated[list[Texts], msgspec.Meta(max_length=QUEUES_MAX)] = []
    triggers: Annotated[list[Definition], msgspec.Meta(max_length=QUEUES_MAX)] = []
    rules: Annotated[list[Definition], msgspec.Meta(max_length=QUEUES_MAX)] = []
    lists: Annotated[list[DistributionList], msgspec.Meta(max_length=QUEUES_MAX)] = []
    notes: list[Note] = []


_decoder = msgspec.json.Decoder(Collection)


def parse_collection(content: bytes) -> Collection:
    """Parse the content of a file.  Raises BadSource."""
    if len(content) > FILE_BYTES_MAX:
        raise BadSource(f"the file has {len(content)} bytes; {FILE_BYTES_MAX} are allowed")
    try:
        found = _decoder.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadSource(f"it is not a collection of definitions: {error}") from error
    if found.qmd_windows_collection != VERSION:
        raise BadSource(
            f"it has version {found.qmd_windows_collection} of the format; this qmd reads {VERSION}"
        )
    names: set[str] = set()
    for queue in found.queues:
        key = queue.name.lower()  # Windows compares characters: "ß" is not "ss"
        if key in names:
            raise BadSource(f"the queue {queue.name!r} appears twice")
        names.add(key)
        queue.security  # noqa: B018  # checked once, here
    return found


def read_collection(path: Path) -> Collection:
    """Read a file.  Raises BadSource and OSError."""
    with path.open("rb") as file:
        return parse_collection(file.read(FILE_BYTES_MAX + 1))


def collection_json(collection: Collection) -> bytes:
    """Return a collection as the script would write it."""
    return msgspec.json.encode(collection)
