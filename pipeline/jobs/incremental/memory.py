"""Memory of a counting job between runs, which each run publishes together with its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from pipeline.events import LogFile
from pipeline.jobs.audit.state import StateVersionMismatch
from pipeline.jobs.incremental.known_events import merged, no_stretches
from pipeline.results.runs import Draft

Frame = Any
VERSION = 2


class Memory:
    """The memory of one job.  Staged parts become valid when the run is published."""

    def __init__(self, draft: Draft) -> None:
        """Create an empty memory, for the run `draft`."""
        self._draft = draft
        self.files: set[str] = set()
        self._staged: dict[str, list[str]] = {}

    @classmethod
    def load(cls, draft: Draft, *, again: bool = False) -> Memory:
        """Return a job's memory; with `again` an empty one.  Raises StateVersionMismatch."""
        memory = cls(draft)
        known = None if again else draft.state()
        if known is None:
            return memory
        if known["version"] != VERSION:
            raise StateVersionMismatch(
                f"the state at {draft.place.where} was written by another release; give --again"
            )
        memory.files = set(known["files"])
        memory._staged = {name: list(parts) for name, parts in known["parts"].items()}
        return memory

    @property
    def is_empty(self) -> bool:
        return not self.files

    def unseen(self, files: Sequence[LogFile]) -> list[LogFile]:
        return [file for file in files if file.key not in self.files]

    def parts(self, name: str) -> int:
        """Return the number of parts of a table, including staged ones."""
        return len(self._staged.get(name, []))

    def table(self, name: str, schema: Any) -> Any:
        """Return all parts of a table, as an Arrow table of `schema`."""
        found = [self._draft.place.read_table(part) for part in self._staged.get(name, [])]
        return pa.concat_tables([each.select(schema.names).cast(schema) for each in found] or
                                [schema.empty_table()])  # fmt: skip

    def read(self, name: str, empty: Frame) -> Frame:
        """Return all parts of a table as one pandas table."""
        found = [self._draft.place.read_table(part) for part in self._staged.get(name, [])]
        return joined(empty, *(each.to_pandas() for each in found))

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
        self.stage_table(name, pa.Table.from_pandas(frame, preserve_index=False))

    def stage_table(self, name: str, table: Any, *, append: bool = False) -> None:
        """Replace a table by an Arrow table, or `append` to it."""
        before = self._staged.get(name, []) if append else []
        self._staged[name] = [*before, self._draft.put_part(name, table)]

    def save(self, files: Sequence[LogFile]) -> None:
        """Write the state: the staged parts, and that `files` were read."""
        self.files |= {file.key for file in files}
        about = {"version": VERSION, "files": sorted(self.files), "parts": self._staged}
        self._draft.put_state(about, [part for parts in self._staged.values() for part in parts])


def joined(*parts: Frame) -> Frame:
    """Concatenate the tables that have rows; an empty table must not influence the types."""
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else parts[0].reset_index(drop=True)
