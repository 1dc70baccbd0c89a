"""Directory of kind "none": workgroup mode. [MS-MQDMPR] 3.1.1.1, the attribute WorkgroupMode

Direct and private names work, and our own public queues by their GUID; requests that need a
directory are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from protocol.identifiers import guid_text
from protocol.names.format_name import SingleName
from qmd.directory.interface import (
    KIND_NONE,
    AliasEntry,
    DirectoryStatus,
    ListEntry,
    MachineEntry,
    NewQueue,
    NoDirectory,
    QueueEntry,
    SiteEntry,
)


class NullDirectory:
    """The absent directory: every request is refused."""

    kind = KIND_NONE

    def __init__(self) -> None:
        self.changes = NullChanges()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def status(self) -> DirectoryStatus:
        return DirectoryStatus(kind=KIND_NONE, state="none")

    async def queue(self, guid: bytes) -> QueueEntry:
        _refuse(f"PUBLIC={guid_text(guid)}")

    async def queue_by_path(self, path: str) -> QueueEntry:
        _refuse(f"the public queue {path}")

    async def alias(self, path: str) -> AliasEntry:
        _refuse(f"the queue alias {path}")

    async def distribution_list(self, guid: bytes, domain: str | None = None) -> ListEntry:
        _refuse(f"DL={guid_text(guid)}")

    async def list_by_name(self, name: str) -> ListEntry:
        _refuse(f"the distribution list {name}")

    async def machine(self, guid: bytes) -> MachineEntry:
        _refuse(f"the queue manager {guid_text(guid)}")

    async def machine_by_name(self, name: str) -> MachineEntry:
        _refuse(f"the computer {name}")

    async def certificates(self, sender: str) -> tuple[bytes, ...]:
        _refuse(f"the sender {sender}")

    async def sites(self) -> tuple[SiteEntry, ...]:
        _refuse("the list of sites")

    async def lists(self) -> tuple[ListEntry, ...]:
        _refuse("the list of distribution lists")

    async def aliases(self) -> tuple[AliasEntry, ...]:
        _refuse("the list of queue aliases")


class NullChanges:
    """The changes of the absent directory: every one is refused."""

    async def create_alias(self, name: str, target: SingleName) -> AliasEntry:
        _refuse(f"the queue alias {name}")

    async def delete_alias(self, name: str) -> None:
        _refuse(f"the queue alias {name}")

    async def register_queue(self, new: NewQueue) -> QueueEntry:
        _refuse(f"the public queue {new.computer}\\{new.queue}")

    async def update_queue(self, guid: bytes, new: NewQueue) -> None:
        _refuse(f"PUBLIC={guid_text(guid)}")

    async def unregister_queue(self, guid: bytes) -> None:
        _refuse(f"PUBLIC={guid_text(guid)}")

    async def publish_keys(self, machine: bytes, name: str, keys: bytes) -> None:
        _refuse(f"the queue manager {guid_text(machine)}")

    async def register_certificate(self, sender: str, certificate: bytes) -> bool:
        _refuse(f"a certificate of the sender {sender}")

    async def remove_certificate(self, sender: str, fingerprint: str) -> bool:
        _refuse(f"a certificate of the sender {sender}")

    async def create_list(self, name: str, members: Sequence[SingleName] = ()) -> ListEntry:
        _refuse(f"the distribution list {name}")

    async def delete_list(self, guid: bytes) -> None:
        _refuse(f"DL={guid_text(guid)}")

    async def add_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        _refuse(f"DL={guid_text(guid)}")

    async def remove_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        _refuse(f"DL={guid_text(guid)}")


def _refuse(what: str) -> NoReturn:
    raise NoDirectory(
        f"{what} needs a directory, and this queue manager has none",
        "Use a direct name, for example DIRECT=OS:host\\private$\\orders; or name a directory in"
        " the section [directory] of the configuration.",
    )
