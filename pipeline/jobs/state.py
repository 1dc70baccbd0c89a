"""What the audit remembers between runs, in a folder beside its findings.

    files      which files were audited: they are not read again; a changed one is a new one
    runs       of each stream what was sent and accepted, merged: some rows for each stream
    carried    the events of messages that are open: on their way, or undecided for lack of a log
    dead       messages that ended at their source, which must not be delivered any more
    covered    of which stretches of which logs we know
    ...        names behind hashes, routes, bounds of clocks

It is written as a whole, under a new name, and then takes the place of the old one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.events import LogFile
from pipeline.jobs.clocks import BOUNDS
from pipeline.jobs.facts import Facts
from pipeline.jobs.runs import What
from pipeline.jobs.survey import RUN_COLUMNS, Survey

Frame = Any
VERSION = 1

_FRAMES: dict[str, list[str]] = {
    "runs": RUN_COLUMNS,
    "carried": list(Facts._fields),
    "dead": ["source", "key_first", "key_last"],
    "covered": ["host", "block_first", "block_last", "at_first", "at_last", "count"],
    "routes": ["host", "queue", "source"],
    "clock_bounds": BOUNDS,
}


class State:
    """In memory; `load` and `save` are to and from a folder."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.names: dict[int, str] = {}
        self.hosts: dict[int, str] = {}
        self.aliases: dict[str, int] = {}
        self.plain_last: dict[int, int] = {}
        self.runs = _empty("runs")
        self.carried = _empty("carried")
        self.dead = _empty("dead")
        self.covered = _empty("covered")
        self.routes = _empty("routes")
        self.clock_bounds = _empty("clock_bounds")

    @classmethod
    def load(cls, folder: Path) -> State:
        """An empty one where there is none."""
        state = cls()
        about = folder / "state.json"
        if not about.exists():
            return state
        known = json.loads(about.read_text())
        if known["version"] != VERSION:
            raise ValueError(f"{folder} is of version {known['version']} of the audit's state")
        state.files = set(known["files"])
        state.names = {int(key): text for key, text in known["names"].items()}
        state.hosts = {int(key): text for key, text in known["hosts"].items()}
        names = {name.casefold(): host for host, name in state.hosts.items()}
        state.aliases = known.get("aliases", names)
        state.plain_last = {int(key): number for key, number in known["plain_last"].items()}
        for name in _FRAMES:
            setattr(state, name, pd.read_parquet(folder / f"{name}.parquet"))
        return state

    def save(self, folder: Path) -> None:
        part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
            for name in _FRAMES:
                getattr(self, name).to_parquet(part / f"{name}.parquet", index=False)
            about = {
                "version": VERSION,
                "files": sorted(self.files),
                "names": self.names,
                "hosts": self.hosts,
                "aliases": self.aliases,
                "plain_last": self.plain_last,
            }
            (part / "state.json").write_text(json.dumps(about))
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    def unseen(self, files: Sequence[LogFile]) -> list[LogFile]:
        return [file for file in files if file.key not in self.files]

    def carried_streams(self) -> set[tuple[int, int]]:
        return set(zip(self.carried.source, self.carried.stream, strict=True))

    def learn(self, files: Sequence[LogFile], found: Survey, routes: Frame, carried: Frame) -> None:
        """After an audit of `files`."""
        self.files |= {file.key for file in files}
        self.names, self.hosts, self.aliases = found.names, found.hosts, found.aliases
        self.runs, self.covered, self.routes = found.runs, found.covered, routes
        self.carried = carried
        self.dead = pd.concat([self.dead, found.dead]).drop_duplicates(ignore_index=True)
        for source, number in found.plain_last.items():
            self.plain_last[source] = max(number, self.plain_last.get(source, 0))


def _empty(name: str) -> Frame:
    return pd.DataFrame(columns=_FRAMES[name]).astype(np.int64)


__all__ = ["State", "What"]
