"""The contents of a disk after a loss of power at any act of a log.

The model allows everything that POSIX does.  A write is durable when a sync of its file began after
it; until then it, or any sectors of it, may be on the disk or not.  A new or removed name is
durable after a sync of the folder.  A failed sync drops its writes for good: Linux keeps them in
memory only, marked as clean, and no later sync writes them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from tests.crash.shim import Record

SECTOR_BYTES = 512


class Loss(Enum):
    """The effect of a loss of power on acts that were not synced."""

    NOTHING = "nothing is lost"
    UNSYNCED = "all that was not synced is lost"
    TORN = "the first unsynced writes are there, the next one in part"
    SOME_WRITES = "any unsynced writes are lost"
    SOME_SECTORS = "any sectors of unsynced writes are lost"


class _File:
    def __init__(self) -> None:
        self.synced = bytearray()
        self.cached = bytearray()  # as processes see it
        self.unsynced: list[Record] = []


class PowerlessDisk:
    """A disk: `feed` adds an act, `write` creates the files after a loss of power."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, _File] = {}
        self._synced_names: dict[str, _File] = {}
        #: Grows with every change of the durable contents.
        self.syncs = 0

    def feed(self, record: Record) -> None:
        name = record.name
        match record.kind:
            case "c":
                self._names[name] = _File()
            case "w" | "t":
                file = self._names[name]
                file.unsynced.append(record)
                _apply(file.cached, record)
            case "s":
                self._sync(self._names[name], record.offset)
            case "e":
                self._names[name].unsynced.clear()
            case "d":
                self._synced_names = dict(self._names)
                self.syncs += 1
            case "u":
                del self._names[name]
            case "r":
                self._names[record.data.decode()] = self._names.pop(name)

    @property
    def has_unsynced(self) -> bool:
        return self._names != self._synced_names or any(
            file.unsynced for file in self._names.values()
        )

    def _sync(self, file: _File, begun_at: int) -> None:
        durable = [act for act in file.unsynced if act.position < begun_at]
        for act in durable:
            _apply(file.synced, act)
        del file.unsynced[: len(durable)]
        self.syncs += 1

    def write(self, to: Path, loss: Loss, rng: random.Random) -> None:
        """Write the files as they are after the loss of power."""
        for name in self._names.keys() | self._synced_names.keys():
            entries = [self._names.get(name), self._synced_names.get(name)]
            match loss:
                case Loss.NOTHING:
                    file = entries[0]
                case Loss.UNSYNCED:
                    file = entries[1]
                case _:
                    file = rng.choice(entries)
            if file is not None:
                path = to / os.path.relpath(name, self._folder)
                path.write_bytes(_content(file, loss, rng))


def _content(file: _File, loss: Loss, rng: random.Random) -> bytearray:
    match loss:
        case Loss.NOTHING:
            return file.cached
        case Loss.UNSYNCED:
            return file.synced
    content = bytearray(file.synced)
    for act in _kept(file.unsynced, loss, rng):
        _apply(content, act)
    return content


def _kept(acts: list[Record], loss: Loss, rng: random.Random) -> Iterator[Record]:
    torn_at = rng.randrange(len(acts) + 1)
    for position, act in enumerate(acts):
        match loss:
            case Loss.TORN if position < torn_at:
                yield act
            case Loss.TORN if position == torn_at and act.kind == "w":
                sectors = rng.randrange(len(act.data) // SECTOR_BYTES + 1)
                yield act._replace(data=act.data[: sectors * SECTOR_BYTES])
            case Loss.SOME_WRITES if rng.random() < 0.5:
                yield act
            case Loss.SOME_SECTORS if act.kind == "w":
                for start in range(0, len(act.data), SECTOR_BYTES):
                    if rng.random() < 0.5:
                        sector = act.data[start : start + SECTOR_BYTES]
                        yield act._replace(offset=act.offset + start, data=sector)


def _apply(content: bytearray, act: Record) -> None:
    if len(content) < act.offset:
        content.extend(bytes(act.offset - len(content)))
    if act.kind == "t":
        del content[act.offset :]
    else:
        content[act.offset : act.offset + len(act.data)] = act.data
