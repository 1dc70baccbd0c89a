"""Memory of a counting job between runs, in the folder `state-JOB` beside its tables.

A run writes its parts under new names, then its tables, and then publishes its state atomically
(`published.py`).  A run that stops before that leaves the old state unchanged, and is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.events import LogFile
from pipeline.jobs.audit.state import StateVersionMismatch
from pipeline.jobs.incremental.known_events import merged, no_stretches
from pipeline.jobs.incremental.published import new_part, publish, read_about

Frame = Any
VERSION = 1


class Memory:
    """The memory of one job, in one folder.  Staged parts become valid by `commit`."""

    def __init__(self, folder: Path) -> None:
        """Create an empty memory; `commit` replaces the content of `folder`."""
        self.folder = folder
        self.files: set[str] = set()
        self.run = 0
        self._staged: dict[str, list[str]] = {}

    @classmethod
    def load(cls, output: Path, job: str, *, again: bool = False) -> Memory:
        """Return a job's memory; with `again` an empty one.  Raises StateVersionMismatch."""
        memory = cls(output / f"state-{job}")
        folder = memory.folder
        known = read_about(folder)
        if known is None:
            return memory
        memory.run = int(known.get("run", 0))
        if again:
            return memory
        if known.get("version") != VERSION:
            raise StateVersionMismatch(f"{folder} was written by another release; give --again")
        memory.files = set(known["files"])
        memory._staged = {name: list(parts) for name, parts in known["parts"].items()}
        return memory

    @property
    def is_empty(self) -> bool:
        return not self.files

    def unseen(self, files: Sequence[LogFile]) -> list[LogFile]:
        return [file for file in files if file.key not in self.files]

    def paths(self, name: str) -> list[str]:
        """Return the paths of the parts of a table, including staged ones, for Spark."""
        return [str(self.folder / part) for part in self._staged.get(name, [])]

    def read(self, name: str, empty: Frame) -> Frame:
        """Return all parts of a table as one pandas table."""
        return joined(empty, *(pd.read_parquet(path) for path in self.paths(name)))

    def seen(self) -> Frame:
        """Return the stretches that were read (`known_events.STRETCH`)."""
        return self.read("seen", no_stretches())

    def see(self, stretches: Sequence[Frame]) -> Frame:
        """Add the stretches that this run has read; return all."""
        together = merged([self.seen(), *stretches])
        self.stage("seen", together)
        return together

    def stage(self, name: str, frame: Frame) -> None:
        """Replace a table by `frame`."""
        path = self._new(name)
        frame.to_parquet(path, index=False, compression="zstd")
        self._staged[name] = [path.name]

    def stage_table(self, name: str, table: Any, *, append: bool = False) -> None:
        """Replace a table by a Spark table, or `append` to it."""
        path = self._new(name)
        table.write.mode("overwrite").option("compression", "zstd").parquet(str(path))
        before = self._staged.get(name, []) if append else []
        self._staged[name] = [*before, path.name]

    def commit(self, files: Sequence[LogFile]) -> None:
        """Make all staged parts valid, and record that `files` were read."""
        self.files |= {file.key for file in files}
        about = {
            "version": VERSION, "run": self.run + 1,
            "files": sorted(self.files), "parts": self._staged,
        }  # fmt: skip
        publish(self.folder, about, (part for parts in self._staged.values() for part in parts))
        self.run += 1

    def _new(self, name: str) -> Path:
        return new_part(self.folder, f"{name}-{self.run + 1}")


def joined(*parts: Frame) -> Frame:
    """Concatenate the tables that have rows; an empty table must not influence the types."""
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else parts[0].reset_index(drop=True)
