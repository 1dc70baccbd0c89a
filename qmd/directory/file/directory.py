"""Directory of kind "file": a TOML file, read when it changes, written by `qmd dl` and others.

A broken file replaces nothing: the contents read before stay in use, and `status`, the log and `qmd
directory status` report the error until the file is valid again. Several daemons may share the
file: it is replaced atomically, under a lock file beside it (`directory.toml.lock`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from protocol.identifiers import guid_text
from qmd.directory.file.changes import FileChanges
from qmd.directory.file.contents import Contents, missing
from qmd.directory.file.format import DirectoryFileError, parse, read_text
from qmd.directory.interface import (
    KIND_FILE,
    AliasEntry,
    DirectoryAway,
    DirectoryStatus,
    ListEntry,
    MachineEntry,
    QueueEntry,
    SiteEntry,
)

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
        self.changes = FileChanges(self._file, self._at_work, self._read_again)

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
        return entry or missing(f"public queue PUBLIC={guid_text(guid)}")

    async def queue_by_path(self, path: str) -> QueueEntry:
        return self._now().queue_by_path(path) or missing(f"public queue {path}")

    async def alias(self, path: str) -> AliasEntry:
        return self._now().aliases.get(path.lower()) or missing(f"queue alias {path}")

    async def distribution_list(self, guid: bytes, domain: str | None = None) -> ListEntry:
        entry = self._now().lists.get(guid)
        return entry or missing(f"distribution list DL={guid_text(guid)}")

    async def list_by_name(self, name: str) -> ListEntry:
        return self._now().list_by_name(name) or missing(f"distribution list {name}")

    async def machine(self, guid: bytes) -> MachineEntry:
        entry = self._now().machines.get(guid)
        return entry or missing(f"queue manager {guid_text(guid)}")

    async def machine_by_name(self, name: str) -> MachineEntry:
        return self._now().machine_by_name(name) or missing(f"computer {name}")

    async def certificates(self, sender: str) -> tuple[bytes, ...]:
        found = self._now().certificates.get(sender)
        return missing(f"sender {sender}") if found is None else found

    async def sites(self) -> tuple[SiteEntry, ...]:
        return tuple(self._now().sites.values())

    async def lists(self) -> tuple[ListEntry, ...]:
        return tuple(sorted(self._now().lists.values(), key=lambda each: each.name.lower()))

    async def aliases(self) -> tuple[AliasEntry, ...]:
        return tuple(sorted(self._now().aliases.values(), key=lambda each: each.name.lower()))

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

    async def _read_again(self) -> Contents:
        """Read the file after a change of ours; the caller holds the lock `_at_work`."""
        await self._read()
        assert self._contents is not None
        return self._contents

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
                    remedy="The contents that were read before stay in force; correct the file:"
                    " qmd directory check"
                    f" {self._file}"
                    if self._contents is not None
                    else "Nothing of the directory can be used; correct the file: qmd directory"
                    " check"
                    f" {self._file}",
                )
            return
        if self._problem or self._contents is None:
            self._since_s = int(time.time())
        self._problem = ""
        self._contents = contents
        log.info("directory_read", file=str(self._file), **dict(contents.counts))
        self._changed()

    def _is_writable(self) -> bool:
        folder = self._file.parent
        if not os.access(folder, os.W_OK):
            return False
        return not self._file.exists() or os.access(self._file, os.W_OK)


def _load(file: Path, *, may_be_empty: bool) -> Contents:
    text = read_text(file)
    if not text and not may_be_empty:
        # An editor that rewrites the file may begin with an empty one: it is read again later.
        raise DirectoryFileError(
            "it is empty: another program is writing it, or its contents are lost",
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
