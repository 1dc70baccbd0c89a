"""A file directory with its resolver, for tests; it can be made unavailable, or made to stall."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from protocol.identifiers import guid_bytes
from protocol.names.format_name import DirectName
from qmd.config.settings import DirectorySettings
from qmd.directory.file.directory import FileDirectory
from qmd.directory.interface import DirectoryAway, ListEntry, QueueEntry
from qmd.directory.resolver import Own, Resolution, Resolver
from tests.patience import END_S

OWN_GUID = guid_bytes("00000000-0000-0000-0000-0000000000aa")
HOST_GUID = "00000000-0000-0000-0000-0000000000bb"
MACHINES = f"""
[[machine]]
name = "hosta"
guid = "00000000-0000-0000-0000-0000000000aa"

[[machine]]
name = "hostb"
guid = "{HOST_GUID}"
addresses = ["10.0.0.5:1802", "hostb.lan"]
"""


class Troubled(FileDirectory):
    """A file directory with injected failures: unavailable, or stalled."""

    is_away = False
    stalled: asyncio.Event | None = None
    questions = 0

    async def queue(self, guid: bytes) -> QueueEntry:
        await self._trouble()
        return await super().queue(guid)

    async def queue_by_path(self, path: str) -> QueueEntry:
        await self._trouble()
        return await super().queue_by_path(path)

    async def distribution_list(self, guid: bytes, domain: str | None = None) -> ListEntry:
        await self._trouble()
        return await super().distribution_list(guid, domain)

    async def _trouble(self) -> None:
        self.questions += 1
        if self.stalled is not None:
            await self.stalled.wait()
        if self.is_away:
            raise DirectoryAway("the line is cut", where="here")
        await asyncio.sleep(0)


class Desk:
    """The objects that a test of the resolver uses."""

    def __init__(self, file: Path, **ages: float) -> None:
        values: dict[str, Any] = {"timeout_s": 5.0, "age_s": 300.0, "negative_age_s": 15.0}
        settings = DirectorySettings(
            kind="file", file=file, **(values | {"pause_s": 0.0, "reload_s": 3600.0} | ages)
        )
        self.file = file
        self.own_queues: dict[bytes, str] = {}
        self.directory = Troubled(settings, changed=lambda: self.resolver.forget())
        own = Own(OWN_GUID, _is_local, self.own_queues.get)
        self.now = 0.0
        self.resolver = Resolver(self.directory, own, settings, now=lambda: self.now)

    async def write(self, text: str) -> None:
        self.file.write_text(MACHINES + text)
        await self.directory.reload()

    async def resolve(self, text: str) -> Resolution:
        return await self.resolver.resolve_text(text)

    async def names(self, text: str) -> list[str]:
        return [str(target.name) for target in (await self.resolve(text)).targets]


def _is_local(name: DirectName) -> bool:
    return name.host.lower() in (".", "hosta")


def with_desk(**ages: float) -> Callable[[Callable[[Desk], Coroutine[Any, Any, None]]], Any]:
    """Return a decorator that runs a test with a desk; its file has only two machines."""

    def decorate(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
        async def main(folder: Path) -> None:
            desk = Desk(folder / "directory.toml", **ages)
            await desk.write("")
            async with asyncio.timeout(END_S):
                await test(desk)

        def run(tmp_path: Path) -> None:
            asyncio.run(main(tmp_path))

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
