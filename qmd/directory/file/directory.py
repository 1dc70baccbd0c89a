"""Directory of kind "file": a TOML file, read when it changes, written by `qmd dl` and others.

A broken file replaces nothing: the contents read before stay in use, and `status`, the log and `qmd
directory status` report the error until the file is valid again. Several daemons may share the
file: it is replaced atomically, under a lock file beside it (`directory.toml.lock`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import structlog

from protocol.identifiers import guid_text
from protocol.names.format_name import SingleName
from qmd.directory.file import editing
from qmd.directory.file.format import Contents, DirectoryFileError, parse, read_text
from qmd.directory.interface import (
    KIND_FILE,
    AliasEntry,
    AlreadyInDirectory,
    DirectoryAway,
    DirectoryReadOnly,
    DirectoryStatus,
    ListEntry,
    MachineEntry,
    NewQueue,
    NotInDirectory,
    QueueEntry,
    SiteEntry,
)
from qmd.directory.spelling import ALIAS_PREFIX

if TYPE_CHECKING:
    from qmd.config.settings import DirectorySettings

log = structlog.get_logger()

#: Identifies a version of the file without reading it.
_Stamp = tuple[int, int, int]


class FileDirectory:
    """The directory in one file."""

    kind = KIND_FILE

    def __init__(self, settings: DirectorySettings, *, changed: Callable[[], None]) -> None:
        self._file: Path = settings.file
        self._reload_s = settings.reload_s
        self._changed = changed
        self._contents: Contents | None = None
        self._problem = ""
        self._since_s = 0
        self._stamp: _Stamp | None = None
        self._watch: asyncio.Task[None] | None = None
        self._at_work = asyncio.Lock()

    async def start(self) -> None:
        await self.reload()
        self._watch = asyncio.get_running_loop().create_task(self._look_now_and_then())

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def status(self) -> DirectoryStatus:
        contents = self._contents
        state = "away" if contents is None else "stale" if self._problem else "available"
        return DirectoryStatus(
            kind=KIND_FILE,
            state=state,
            where=str(self._file),
            problem=self._problem,
            since_s=self._since_s,
            writable=self._is_writable(),
            counts=() if contents is None else contents.counts,
        )

    async def reload(self) -> None:
        """Read the file, changed or not; report a broken file, and keep the earlier contents."""
        async with self._at_work:
            await self._read()

    # Looking up.

    async def queue(self, guid: bytes) -> QueueEntry:
        entry = self._now().queues.get(guid)
        return entry or _missing(f"public queue PUBLIC={guid_text(guid)}")

    async def queue_by_path(self, path: str) -> QueueEntry:
        return self._now().queue_by_path(path) or _missing(f"public queue {path}")

    async def alias(self, path: str) -> AliasEntry:
        return self._now().aliases.get(path.lower()) or _missing(f"queue alias {path}")

    async def distribution_list(self, guid: bytes, domain: str | None = None) -> ListEntry:
        entry = self._now().lists.get(guid)
        return entry or _missing(f"distribution list DL={guid_text(guid)}")

    async def list_by_name(self, name: str) -> ListEntry:
        return self._now().list_by_name(name) or _missing(f"distribution list {name}")

    async def machine(self, guid: bytes) -> MachineEntry:
        entry = self._now().machines.get(guid)
        return entry or _missing(f"queue manager {guid_text(guid)}")

    async def machine_by_name(self, name: str) -> MachineEntry:
        return self._now().machine_by_name(name) or _missing(f"computer {name}")

    async def sites(self) -> tuple[SiteEntry, ...]:
        return tuple(self._now().sites.values())

    async def lists(self) -> tuple[ListEntry, ...]:
        return tuple(sorted(self._now().lists.values(), key=lambda each: each.name.lower()))

    async def aliases(self) -> tuple[AliasEntry, ...]:
        return tuple(sorted(self._now().aliases.values(), key=lambda each: each.name.lower()))

    # Changing.

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
                        f"Its guid has to be {guid_text(new.machine)}, if it is this one.",
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
        """Update the label; a file has neither quotas nor journals."""

        def edit(contents: Contents, text: str) -> str:
            entry = contents.queues.get(guid) or _missing(f"public queue PUBLIC={guid_text(guid)}")
            if entry.label == new.label:
                return text
            return editing.set_label(text, contents.queue_places[guid], new.label)

        await self._change(edit)

    async def unregister_queue(self, guid: bytes) -> None:
        def edit(contents: Contents, text: str) -> str:
            if guid not in contents.queues:
                _missing(f"public queue PUBLIC={guid_text(guid)}")
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
                _missing(f"distribution list DL={guid_text(guid)}")
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
                _missing(f"queue alias {name}")
            for each in contents.lists.values():
                text = editing.remove_members(
                    text, contents.list_places[each.guid], partial(_is_alias, name)
                )
            return editing.remove_entry(text, "alias", contents.alias_places[name.lower()])

        await self._change(edit)

    async def add_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        def edit(contents: Contents, text: str) -> str:
            entry = contents.lists.get(guid) or _missing(f"distribution list DL={guid_text(guid)}")
            there = {member.key for member in entry.members}
            new = {each.key: contents.spelling(each) for each in members if each.key not in there}
            if not new:
                return text
            return editing.add_members(text, contents.list_places[guid], list(new.values()))

        return (await self._change(edit)).lists[guid]

    async def remove_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        def edit(contents: Contents, text: str) -> str:
            entry = contents.lists.get(guid) or _missing(f"distribution list DL={guid_text(guid)}")
            there = {member.key for member in entry.members}
            for each in members:
                if each.key not in there:
                    _missing(f"member {each} in the distribution list {entry.name}")
            keys = {each.key for each in members}
            return editing.remove_members(
                text, contents.list_places[guid], partial(contents.is_one_of, keys)
            )

        return (await self._change(edit)).lists[guid]

    # Internal methods.

    def _now(self) -> Contents:
        if self._contents is None:
            raise DirectoryAway(self._problem, where=str(self._file), since_s=self._since_s)
        return self._contents

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._reload_s)
            if await asyncio.to_thread(_stamp, self._file) != self._stamp:
                await self.reload()

    async def _read(self) -> None:
        """Read the file; the caller holds the lock `_at_work`."""
        # Take the stamp first: a later change of the file is then detected by the next check.
        self._stamp = await asyncio.to_thread(_stamp, self._file)
        try:
            contents = await asyncio.to_thread(
                _load, self._file, may_be_empty=self._contents is None
            )
        except DirectoryFileError as error:
            if str(error) != self._problem:
                self._since_s = int(time.time())
                self._problem = str(error)
                log.error(
                    "directory_file_broken",
                    reason=str(error),
                    code=error.code,
                    remedy="What was read before stays in force; mend the file: qmd directory check"
                    f" {self._file}"
                    if self._contents is not None
                    else "Nothing of the directory can be used; mend the file: qmd directory check"
                    f" {self._file}",
                )
            return
        if self._problem or self._contents is None:
            self._since_s = int(time.time())
        self._problem = ""
        self._contents = contents
        log.info("directory_read", file=str(self._file), **dict(contents.counts))
        self._changed()

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
                    f"{error}", "The file is broken as it is: mend it by hand first."
                ) from error
            except editing.CannotEdit as error:
                raise DirectoryReadOnly(
                    f"{self._file} cannot be changed by the program: {error}",
                    "Edit it by hand.",
                ) from error
            await self._read()
            assert self._contents is not None
            return self._contents

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

    def _is_writable(self) -> bool:
        folder = self._file.parent
        if not os.access(folder, os.W_OK):
            return False
        return not self._file.exists() or os.access(self._file, os.W_OK)


def _is_alias(name: str, member: str) -> bool:
    return member.lower() == f"{ALIAS_PREFIX}{name.lower()}"


def _missing(what: str) -> NoReturn:
    raise NotInDirectory(what)


def _load(file: Path, *, may_be_empty: bool) -> Contents:
    text = read_text(file)
    if not text and not may_be_empty:
        # An editor that rewrites the file may begin with an empty one: it is read again later.
        raise DirectoryFileError(
            "it is empty: somebody is writing it, or all that it had is lost",
            code="directory_file_broken",
            file=file,
        )
    return parse(text, file)


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


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
