"""A folder of parts with one file that lists the valid ones: a run's state changes atomically.

    state.json       the state, and the names of the valid parts
    NAME-RUN.parquet a part: a file, or a Spark folder, that is written once

A run writes its parts under new names and then replaces state.json by one rename.  A run that dies
before that rename has changed nothing; it leaves files that state.json does not name, and the next
run that publishes removes them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ABOUT = "state.json"


def read_about(folder: Path) -> dict[str, Any] | None:
    """Return the contents of state.json; None if no run has published."""
    try:
        known: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return known


def new_part(folder: Path, name: str) -> Path:
    """Return the path to write the part `name` to; remove the rest of a dead run there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    _remove(path)
    return path


def publish(folder: Path, about: Mapping[str, Any], parts: Iterable[str]) -> None:
    """Make `about` the state, with `parts`, which are in `folder`; remove all other files.

    The parts are synced before the rename, so after a power failure the state is the old or the new
    one.  Raises OSError; then the old state is valid.
    """
    folder.mkdir(parents=True, exist_ok=True)
    valid = {ABOUT, *parts}
    for name in valid - {ABOUT}:
        _sync_tree(folder / name)
    part = folder / f".{ABOUT}.part"
    try:
        part.unlink(missing_ok=True)  # left by a killed run, or a link that leads elsewhere
        with part.open("x") as file:
            json.dump(about, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / ABOUT)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(folder)
    for path in folder.iterdir():
        if path.name not in valid:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync_tree(path: Path) -> None:
    if path.is_dir():
        for below in path.iterdir():
            _sync_tree(below)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
