"""Changes of the directory file: read, edit, check, replace, under a lock file beside it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from protocol.identifiers import guid_text
from protocol.names.format_name import SingleName
from qmd.directory.file import editing
from qmd.directory.file.contents import Contents, missing
from qmd.directory.file.format import DirectoryFileError, parse, read_text
from qmd.directory.interface import (
    PRIVACY_OPTIONAL,
    AliasEntry,
    AlreadyInDirectory,
    DirectoryAway,
    DirectoryReadOnly,
    ListEntry,
    NewQueue,
    QueueEntry,
)
from qmd.directory.spelling import ALIAS_PREFIX


class FileChanges:
    """Changes of the directory in one file.

    `at_work` is held during a change; `read_again` then reads the file and returns its contents.
    """

    def __init__(
        self,
        file: Path,
        at_work: asyncio.Lock,
        read_again: Callable[[], Awaitable[Contents]],
    ) -> None:
        self._file = file
        self._at_work = at_work
        self._read_again = read_again

    async def register_queue(self, new: NewQueue) -> QueueEntry:
        path = f"{new.computer}\\{new.queue}"

        def edit(contents: Contents, text: str) -> str:
            if contents.queue_by_path(path) is not None:
                raise AlreadyInDirectory(f"the directory has a public queue {path} already")
            machine = contents.machines.get(new.machine)
            if machine is None:
                if contents.machine_by_name(new.computer) is not None:
                    raise AlreadyInDirectory(
                        f"the directory has a computer {new.computer} of another queue manager",
                        f"If it is this computer, its guid must be {guid_text(new.machine)}.",
                    )
                text = editing.add_machine(text, new.computer, new.machine)
            name = new.computer if machine is None else machine.name
            return editing.add_queue(text, f"{name}\\{new.queue}", new)

        contents = await self._change(edit, may_begin=True)
        name = contents.machines[new.machine].name
        entry = contents.queue_by_path(f"{name}\\{new.queue}")
        assert entry is not None
        return entry

    async def update_queue(self, guid: bytes, new: NewQueue) -> None:
        """Update label and protection; a file has neither quotas nor journals."""

        def edit(contents: Contents, text: str) -> str:
            entry = contents.queues.get(guid) or missing(f"public queue PUBLIC={guid_text(guid)}")
            protection = entry.authenticate, entry.privacy
            if (entry.label, *protection) == (new.label, new.authenticate, new.privacy):
                return text
            values = {
                "label": new.label,
                "authenticate": new.authenticate or None,
                "privacy": "" if new.privacy == PRIVACY_OPTIONAL else new.privacy,
            }
            return editing.set_values(text, "queue", contents.queue_places[guid], values)

        await self._change(edit)

    async def unregister_queue(self, guid: bytes) -> None:
        def edit(contents: Contents, text: str) -> str:
            if guid not in contents.queues:
                missing(f"public queue PUBLIC={guid_text(guid)}")
            inside = [
                each.name
                for each in contents.lists.values()
                if any(getattr(member, "queue", None) == guid for member in each.members)
            ]
            for name in inside:  # Active Directory also removes deleted objects from groups
                text = editing.remove_members(
                    text, contents.list_place(name), partial(contents.is_queue, guid)
                )
            return editing.remove_entry(text, "queue", contents.queue_places[guid])

        await self._change(edit)

    async def publish_keys(self, machine: bytes, name: str, keys: bytes) -> None:
        def edit(contents: Contents, text: str) -> str:
            if machine not in contents.machines:
                text = editing.add_machine(text, name, machine)
                contents = parse(text, self._file)
            values = {"encryption_keys": base64.b64encode(keys).decode()}
            return editing.set_values(text, "machine", contents.machine_places[machine], values)

        await self._change(edit, may_begin=True)

    async def register_certificate(self, sender: str, certificate: bytes) -> bool:
        is_new = False

        def edit(contents: Contents, text: str) -> str:
            nonlocal is_new
            before = contents.certificates.get(sender, ())
            is_new = certificate not in before
            return (
                editing.set_certificates(text, sender, (*before, certificate)) if is_new else text
            )

        await self._change(edit, may_begin=True)
        return is_new

    async def remove_certificate(self, sender: str, fingerprint: str) -> bool:
        was_there = False

        def edit(contents: Contents, text: str) -> str:
            nonlocal was_there
            before = contents.certificates.get(sender, ())
            left = [each for each in before if hashlib.sha256(each).hexdigest() != fingerprint]
            was_there = len(left) < len(before)
            return editing.set_certificates(text, sender, left) if was_there else text

        await self._change(edit)
        return was_there

    async def create_list(self, name: str, members: Sequence[SingleName] = ()) -> ListEntry:
        def edit(contents: Contents, text: str) -> str:
            if contents.list_by_name(name) is not None:
                raise AlreadyInDirectory(f"the directory has a distribution list {name} already")
            return editing.add_list(text, name, [contents.spelling(each) for each in members])

        entry = (await self._change(edit, may_begin=True)).list_by_name(name)
        assert entry is not None
        return entry

    async def delete_list(self, guid: bytes) -> None:
        def edit(contents: Contents, text: str) -> str:
            if guid not in contents.lists:
                missing(f"distribution list DL={guid_text(guid)}")
            for each in contents.lists.values():
                if each.guid != guid and any(
                    getattr(member, "distribution_list", None) == guid for member in each.members
                ):
                    text = editing.remove_members(
                        text, contents.list_place(each.name), partial(contents.is_list, guid)
                    )
            return editing.remove_entry(text, "list", contents.list_places[guid])

        await self._change(edit)

    async def create_alias(self, name: str, target: SingleName) -> AliasEntry:
        def edit(contents: Contents, text: str) -> str:
            if name.lower() in contents.aliases:
                raise AlreadyInDirectory(f"the directory has a queue alias {name} already")
            return editing.add_alias(text, name, contents.spelling(target))

        return (await self._change(edit, may_begin=True)).aliases[name.lower()]

    async def delete_alias(self, name: str) -> None:
        def edit(contents: Contents, text: str) -> str:
            if name.lower() not in contents.aliases:
                missing(f"queue alias {name}")
            for each in contents.lists.values():
                text = editing.remove_members(
                    text, contents.list_places[each.guid], partial(_is_alias, name)
                )
            return editing.remove_entry(text, "alias", contents.alias_places[name.lower()])

        await self._change(edit)

    async def add_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        def edit(contents: Contents, text: str) -> str:
            entry = contents.lists.get(guid) or missing(f"distribution list DL={guid_text(guid)}")
            there = {member.key for member in entry.members}
            new = {each.key: contents.spelling(each) for each in members if each.key not in there}
            if not new:
                return text
            return editing.add_members(text, contents.list_places[guid], list(new.values()))

        return (await self._change(edit)).lists[guid]

    async def remove_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        def edit(contents: Contents, text: str) -> str:
            entry = contents.lists.get(guid) or missing(f"distribution list DL={guid_text(guid)}")
            there = {member.key for member in entry.members}
            for each in members:
                if each.key not in there:
                    missing(f"member {each} in the distribution list {entry.name}")
            keys = {each.key for each in members}
            return editing.remove_members(
                text, contents.list_places[guid], partial(contents.is_one_of, keys)
            )

        return (await self._change(edit)).lists[guid]

    # Internal methods.

    async def _change(
        self, edit: Callable[[Contents, str], str], *, may_begin: bool = False
    ) -> Contents:
        """Read, edit, check and replace the file. Raises DirectoryReadOnly if that is impossible.

        `may_begin`: the file may be created if it does not exist.
        """
        async with self._at_work:
            try:
                await asyncio.to_thread(self._edit, edit, may_begin)
            except OSError as error:
                raise DirectoryReadOnly(
                    f"{self._file} cannot be written: {error.strerror or error}",
                    "Edit it by hand, or let the daemon's user write it and its folder.",
                ) from error
            except DirectoryFileError as error:
                raise DirectoryReadOnly(
                    f"{error}", "The file is not valid: correct it by hand first."
                ) from error
            except editing.CannotEdit as error:
                raise DirectoryReadOnly(
                    f"{self._file} cannot be changed by the program: {error}",
                    "Edit it by hand.",
                ) from error
            return await self._read_again()

    def _edit(self, edit: Callable[[Contents, str], str], may_begin: bool) -> None:
        if not may_begin and not self._file.exists():
            # The file may be on a disk that is not mounted, so its contents are unknown.
            raise DirectoryAway(f"{self._file}: No such file", where=str(self._file))
        with _locked(self._file):
            text = read_text(self._file) if self._file.exists() else ""
            before = parse(text, self._file)
            after = edit(before, text)
            if after != text:
                try:
                    parse(after, self._file)
                except DirectoryFileError as error:
                    raise editing.CannotEdit(f"without it, {error.problem}") from error
                _replace(self._file, after)


def _is_alias(name: str, member: str) -> bool:
    return member.lower() == f"{ALIAS_PREFIX}{name.lower()}"


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock the file against other daemons that share it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(f"{file}.lock", flags, 0o660)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, text: str) -> None:
    """Replace the file atomically, and keep its mode and owner."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            with contextlib.suppress(FileNotFoundError):
                old = file.stat()
                os.fchmod(descriptor, old.st_mode & 0o7777)
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
            os.fsync(descriptor)
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
