"""What a job that counts remembers between runs, in the folder `state-JOB` beside its tables.

A run writes its parts under new names, then its tables, then publishes its state in one act
(`published.py`): a run that is cut off before that leaves what was known as it was, and is done
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.events import LogFile
from pipeline.jobs.audit.state import StateOfAnother
from pipeline.jobs.incremental.known_events import merged, no_stretches
from pipeline.jobs.incremental.published import new_part, publish, read_about

Frame = Any
VERSION = 1


class Memory:
    """Of one job, in one folder.  What is staged is not valid before `commit`."""

    def __init__(self, folder: Path) -> None:
        """An empty one; what is in `folder` is replaced by `commit`."""
        self.folder = folder
        self.files: set[str] = set()
        self.run = 0
        self._staged: dict[str, list[str]] = {}

    @classmethod
    def load(cls, output: Path, job: str, *, again: bool = False) -> Memory:
        """Raises StateOfAnother, but for `again`: then an empty one."""
        memory = cls(output / f"state-{job}")
        folder = memory.folder
        known = read_about(folder)
        if known is None:
            return memory
        memory.run = int(known.get("run", 0))
        if again:
            return memory
        if known.get("version") != VERSION:
            raise StateOfAnother(f"{folder} was written by another release; give --again")
        memory.files = set(known["files"])
        memory._staged = {name: list(parts) for name, parts in known["parts"].items()}
        return memory

    @property
    def is_empty(self) -> bool:
        return not self.files

    def unseen(self, files: Sequence[LogFile]) -> list[LogFile]:
        return [file for file in files if file.key not in self.files]

    def paths(self, name: str) -> list[str]:
        """Where the parts are, with those that are staged: for Spark."""
        return [str(self.folder / part) for part in self._staged.get(name, [])]

    def read(self, name: str, empty: Frame) -> Frame:
        """All parts as one table of pandas."""
        return joined(empty, *(pd.read_parquet(path) for path in self.paths(name)))

    def seen(self) -> Frame:
        """`seen.STRETCH` of what was read."""
        return self.read("seen", no_stretches())

    def see(self, stretches: Sequence[Frame]) -> Frame:
        """With what this run has read."""
        together = merged([self.seen(), *stretches])
        self.stage("seen", together)
        return together

    def stage(self, name: str, frame: Frame) -> None:
        """`frame` instead of what there was."""
        path = self._new(name)
        frame.to_parquet(path, index=False, compression="zstd")
        self._staged[name] = [path.name]

    def stage_table(self, name: str, table: Any, *, append: bool = False) -> None:
        """A table of Spark's, instead of what there was or beside it."""
        path = self._new(name)
        table.write.mode("overwrite").option("compression", "zstd").parquet(str(path))
        before = self._staged.get(name, []) if append else []
        self._staged[name] = [*before, path.name]

    def commit(self, files: Sequence[LogFile]) -> None:
        """All that was staged is valid, and `files` were read."""
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
    """One table below the other, of those that have rows: an empty one has no say in types."""
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else parts[0].reset_index(drop=True)
