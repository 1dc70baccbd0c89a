"""The Python side of shim.c: building it, controlling it, reading its log."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("shim.c")

ALL_KINDS = "cwtsdurk"
SYNCS = "sd"

_HEADER = struct.Struct("<IBHIQ")
_MAGIC = 0x714C6F67
_BEGINNING = _MAGIC.to_bytes(4, "little")


def missing() -> str | None:
    """Return why the shim cannot be used here; None when it can."""
    return None if shutil.which("gcc") else "gcc is needed to build tests/crash/shim.c"


def library() -> Path:
    """Return the shim, built again when its source is new."""
    name = f"shim-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    built = ROOT / "build" / name
    if not built.exists():
        built.parent.mkdir(exist_ok=True)
        unfinished = built.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", unfinished, SOURCE], check=True)
        unfinished.rename(built)
    return built


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: at act `at` of the kinds, and at `times` - 1 acts after it (0: at all)."""

    do: str  # kill, eio, enospc, short
    at: int
    kinds: str = ALL_KINDS
    times: int = 1

    def environment(self) -> dict[str, str]:
        return {
            "SHIM_DO": self.do,
            "SHIM_AT": str(self.at),
            "SHIM_KINDS": self.kinds,
            "SHIM_TIMES": str(self.times),
        }


class Counter:
    """The number of acts, over several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reset()

    def reset(self) -> None:
        self.path.write_bytes(bytes(8))

    @property
    def value(self) -> int:
        return int.from_bytes(self.path.read_bytes(), "little")


class Record(NamedTuple):
    """One act; shim.c describes kinds, offset and data."""

    kind: str
    name: str
    offset: int
    data: bytes
    position: int  # in the log


class WriteLog:
    """The log of one machine over all of its processes, with the marks of tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def mark(self, value: Any) -> None:
        data = json.dumps(value).encode()
        os.write(self._file, _HEADER.pack(_MAGIC, ord("m"), 0, len(data), 0) + data)

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield all records from position `start` on, without bytes that a socket did not accept.

        A process that is killed while a thread writes a record leaves a part of it: that act was
        not done, or its end was not reported.  The part is left out as well.
        """
        whole = self.path.read_bytes()
        log = memoryview(whole)
        found: list[Record] = []
        last_of_socket: dict[str, int] = {}
        position = start
        while 0 <= position < len(log):
            following = _following(whole, position)
            if following is None:
                position = whole.find(_BEGINNING, position + 1)
                continue
            magic, kind, name_bytes, data_bytes, offset = _HEADER.unpack_from(log, position)
            assert magic == _MAGIC, f"the log is broken at {position}"
            name_at = position + _HEADER.size
            data_at = name_at + name_bytes
            name = bytes(log[name_at:data_at]).decode()
            data = bytes(log[data_at : data_at + data_bytes])
            if chr(kind) == "x":
                index = last_of_socket[name]
                said = found[index]
                found[index] = said._replace(data=said.data[: len(said.data) - offset])
            else:
                if chr(kind) == "k":
                    last_of_socket[name] = len(found)
                found.append(Record(chr(kind), name, offset, data, position))
            position = following
        yield from found

    def close(self) -> None:
        os.close(self._file)


def _following(log: bytes, position: int) -> int | None:
    """Return where the record ends.

    None if it was cut off: neither a record nor the end follows.
    """
    if position + _HEADER.size > len(log) or not log.startswith(_BEGINNING, position):
        return None
    _, _, name_bytes, data_bytes, _ = _HEADER.unpack_from(log, position)
    end = position + _HEADER.size + int(name_bytes) + int(data_bytes)
    rest = log[end : end + 2 * len(_BEGINNING) - 1]
    # The next record may be incomplete.
    follows = end <= len(log) and (_BEGINNING in rest or _BEGINNING.startswith(rest))
    return end if follows else None
