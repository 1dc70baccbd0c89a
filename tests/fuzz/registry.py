"""Target: exports of a registry of Windows, for `qmd trigger import`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from qmd.triggers.definition import TriggerError, check
from qmd.triggers.registry import read_registry
from tests.fuzz.limits import outcome
from tests.fuzz.target import Target

_EXPORT = Path(__file__).parents[1] / "data" / "triggers.reg"


def exports() -> Iterable[bytes]:
    data = _EXPORT.read_bytes()
    yield data
    yield data.decode().encode("utf-16")
    yield data.replace(b"private$", b"private$" + b"x" * 700)
    yield b'REGEDIT4\n[\\MSMQ\\Triggers\\Data\\Rules\\{1}]\n"a"="' + b"\\" * 50_000
    key = b"REGEDIT4\n[\\MSMQ\\Triggers\\Data\\Rules\\{1}]\n"
    yield key + b'"a"="\n' * 5_000
    yield key + b'"a"="' + b"x\\n" * 20_000
    yield key + b'"a"="' + b"x\n" * 20_000
    yield key + b'"a"=hex(1):00,\\\n' * 5_000
    yield key + b'"a"=hex(1):' + b"00,\\\n" * 20_000
    yield key + b'"a\n' * 20_000


def check_export(data: bytes) -> None:
    def read(data: bytes) -> object:
        return read_registry(data, {"C:\\Tools\\Bill.exe": "/bin/true"})

    imported, refused = outcome(TriggerError, read, data)
    if imported is None:
        assert str(refused)
        return
    for trigger in imported.triggers:  # type: ignore[attr-defined]
        fixed = msgspec.structs.replace(trigger, enabled=False)
        assert msgspec.convert(msgspec.to_builtins(fixed), type(fixed)) == fixed
        check(fixed)


TARGETS = (Target("registry", check_export, exports),)
