"""Files of TLS that root writes into a folder of the daemon's user, which may put links there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qmd.tls import pins
from tests.users import needs_root

USER = 4713
GUID, FINGERPRINT = bytes(range(16)), "0" * 64
#: Called with each event of the interpreter; hooks cannot be removed.
watching: list[Any] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for each in watching:
        each(event, arguments)


sys.addaudithook(_hook)


@pytest.fixture
def of_user(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, USER, USER)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    return victim


@pytest.fixture
def swapped(of_user: Path, victim: Path) -> Iterator[Path]:
    """Yield the path of pins, which becomes a link when root is about to give a file away."""
    path = of_user / "pins"

    def swap(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.chown":
            watching.clear()
            path.unlink(missing_ok=True)
            path.symlink_to(victim)

    watching.append(swap)
    yield path
    watching.clear()


@needs_root
def test_a_link_in_place_of_a_written_file_is_not_given_away(swapped: Path, victim: Path) -> None:
    pins.pin(swapped, GUID, FINGERPRINT, replace=False, owner=swapped.parent)

    assert not watching, "the file was given to the daemon's user, and so the link was made"
    assert victim.stat().st_uid == 0
    assert swapped.stat().st_uid == USER
    assert pins.read(swapped) == {GUID: (FINGERPRINT,)}


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "nologin"
    (tmp_path / "pins.lock").symlink_to(victim)

    with pytest.raises(OSError, match="symbolic links"):
        pins.pin(tmp_path / "pins", GUID, FINGERPRINT, replace=False)

    assert not victim.exists()
