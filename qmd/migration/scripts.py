"""The scripts for Windows: text beside this module, checked against a list of SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("powershell")
SUMS = FOLDER / "SHA256SUMS"


class Script(NamedTuple):
    """One script; `sha256` is the listed one, in hexadecimal."""

    name: str
    sha256: str
    path: Path


class ScriptChanged(Exception):
    """A script that differs from the list; the text names it and both sums."""


def all_scripts() -> list[Script]:
    """Return the listed scripts, by name."""
    rows = [line.split("  ", 1) for line in SUMS.read_text(encoding="ascii").splitlines()]
    return [
        Script(name, digest, FOLDER / name) for digest, name in sorted(rows, key=lambda r: r[1])
    ]


def content(script: Script) -> bytes:
    """Return the bytes of a script.  Raises ScriptChanged unless they have its SHA-256."""
    found = script.path.read_bytes()
    digest = hashlib.sha256(found).hexdigest()
    if digest != script.sha256:
        raise ScriptChanged(
            f"{script.name} has the SHA-256 {digest}, and the list has {script.sha256}"
        )
    return found
