"""The state of the audit between runs, which each run publishes together with its findings.

    files      the audited files: they are not read again; a changed file counts as new
    segments   the settled part of each stream: some rows for each (`settled.py`)
    carried    the events of every other message: open, or wrong, or ended
    numbers    the numbers that each source has given
    arrived    the arrival numbers of each host that events name, other than those of leaving
    departed   the messages that have left their queues: places of hosts, and numbers of sources
    again      departures that a later run has read once more
    resent     settled messages that a later run has read as sent once more
    present    the messages in queues, as far as events show (`presence.py`)
    missed     the messages that queue managers have missed in their databases
    starts     the starts of queue managers (`other_histories.py`)
    met        the runs of queue managers that others have met (`other_runs.py`)
    inventories  the newest inventory of each host
    covered    the stretches of logs that were read
    runs       where streams lead, and which stream came after another
    streams    the counted messages of each stream, for the table
    ...        names of hashes, routes, bounds of clocks

Each run derives all findings again from the state and the new files, so the order in which files
arrive makes no difference.

Each table is a part of the state (`pipeline.results.runs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.events import LogFile, hash_of
from pipeline.jobs.audit.clock_samples import SAMPLES
from pipeline.jobs.audit.clock_spans import SLOT_BOUNDS, narrowed
from pipeline.jobs.audit.epochs import EPOCHS
from pipeline.jobs.audit.facts import Facts
from pipeline.jobs.audit.other_histories import MET, STARTS
from pipeline.jobs.audit.presence import INVENTORY, MISSED, PRESENT
from pipeline.jobs.audit.settled import AGAIN, COVERED, NUMBERS, SEGMENT, resent
from pipeline.jobs.audit.survey import RUN_COLUMNS, Survey
from pipeline.results.runs import Draft

Frame = Any
VERSION = 15
#: A state of this version is the same, and knows of events `met` their blocks only.
_BEFORE_PLACES = 14
#: A state of this version is the same, and has no runs.
_BEFORE_RUNS = 13
#: A state of this version is the same unless exported logs show a restored backup.
_BEFORE_HISTORIES = 12

_FRAMES: dict[str, list[str]] = {
    "runs": RUN_COLUMNS,
    "carried": list(Facts._fields),
    "segments": SEGMENT,
    "numbers": NUMBERS,
    "departed": NUMBERS,
    "arrived": NUMBERS,
    "departed_numbers": NUMBERS,
    "again": AGAIN,
    "resent": ["source", "number"],
    "covered": COVERED,
    "routes": ["host", "queue", "source"],
    "clock_bounds": SLOT_BOUNDS,
    "samples": SAMPLES,
    "present": PRESENT,
    "missed": MISSED,
    "inventories": INVENTORY,
    "starts": STARTS,
    "met": MET,
    "epochs": EPOCHS,
}


class StateVersionMismatch(Exception):
    """The state was written by another release, with other contents; the text gives the remedy."""


class State:
    """The state in memory; `load` and `save` read and write a folder."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.names: dict[int, str] = {}
        self.hosts: dict[int, str] = {}
        self.named_at: dict[int, int] = {}
        self.aliases: dict[str, int] = {}
        self.copied: set[int] = set()  # hosts of which two copies ran at one time
        self.runs = _empty("runs")
        self.carried = _empty("carried")
        self.segments = _empty("segments")
        self.numbers = _empty("numbers")
        self.departed = _empty("departed")
        self.arrived = _empty("arrived")
        self.departed_numbers = _empty("departed_numbers")
        self.again = _empty("again")
        self.resent = _empty("resent")
        self.covered = _empty("covered")
        self.routes = _empty("routes")
        self.clock_bounds = _empty("clock_bounds")
        self.samples = _empty("samples")
        self.present = _empty("present")
        self.missed = _empty("missed")
        self.inventories = _empty("inventories")
        self.starts = _empty("starts")
        self.met = _empty("met")
        self.epochs = _empty("epochs")
        self.streams: Frame | None = None

    @classmethod
    def load(cls, draft: Draft, *, again: bool = False) -> State:
        """Return the state before the run `draft`; an empty one if there is none, or for `again`.

        Raises StateVersionMismatch.
        """
        state = cls()
        known = None if again else draft.state()
        if known is None:
            return state
        if known["version"] not in (VERSION, _BEFORE_PLACES, _BEFORE_RUNS, _BEFORE_HISTORIES):
            raise StateVersionMismatch(
                f"the state at {draft.place.where} was written by another release; give --again"
            )
        state.files = set(known["files"])
        state.names = {int(key): text for key, text in known["names"].items()}
        state.hosts = {int(key): text for key, text in known["hosts"].items()}
        state.named_at = {int(key): block for key, block in known["named_at"].items()}
        state.aliases = known["aliases"]
        state.copied = set(known.get("copied", ()))
        for name, part in known["parts"].items():
            setattr(state, name, draft.place.read_table(part).to_pandas())
        if known["version"] in (_BEFORE_RUNS, _BEFORE_HISTORIES):
            state.starts = state.starts.assign(run=hash_of(""))
        if known["version"] == _BEFORE_PLACES:
            state.met = state.met.assign(index=0)[MET]
        if known["version"] == _BEFORE_HISTORIES and (state.epochs.since != 0).any():
            raise StateVersionMismatch(
                f"the state at {draft.place.where} has exported logs of a restored host, whose"
                " histories an earlier release did not keep apart; give --again"
            )
        return state

    def save(self, draft: Draft) -> None:
        """Write the state; it is valid when the run is published.  Raises OSError."""
        frames = {name: getattr(self, name) for name in (*_FRAMES, "streams")}
        parts = {
            name: draft.put_part(name, pa.Table.from_pandas(frame, preserve_index=False))
            for name, frame in frames.items()
            if frame is not None
        }
        about = {
            "version": VERSION,
            "files": sorted(self.files),
            "names": self.names,
            "hosts": self.hosts,
            "named_at": self.named_at,
            "aliases": self.aliases,
            "copied": sorted(self.copied),
            "parts": parts,
        }
        draft.put_state(about, list(parts.values()))

    def forget(self) -> None:
        """Forget all files, and what they contain; inventories stay."""
        inventories = self.inventories
        self.__init__()  # type: ignore[misc]  # the same object, which its owner saves
        self.inventories = inventories

    def seen(self, files: Sequence[LogFile]) -> list[LogFile]:
        return [file for file in files if file.key in self.files]

    def unseen(self, files: Sequence[LogFile]) -> list[LogFile]:
        return [file for file in files if file.key not in self.files]

    def learn(
        self, files: Sequence[LogFile], found: Survey, routes: Frame, segments: Frame, kept: Frame
    ) -> None:
        """Update the state after an audit of `files`."""
        self.files |= {file.key for file in files}
        self.names, self.aliases = found.names, found.aliases
        self.hosts, self.named_at = found.hosts, found.named_at
        self.resent = resent(kept, self)
        self.runs, self.covered, self.routes = found.runs, found.covered, routes
        self.numbers, self.segments, self.carried = found.numbers.frame, segments, kept
        self.clock_bounds = narrowed(self.clock_bounds, found.clock_bounds)
        self.samples = found.samples
        self.departed = found.departed.frame
        self.arrived = found.arrived.frame
        self.departed_numbers = found.departed_numbers.frame
        self.again = found.again
        self.present = found.present
        self.missed = found.missed
        self.starts, self.met = found.starts, found.met


def _empty(name: str) -> Frame:
    return pd.DataFrame(columns=_FRAMES[name]).astype(np.int64)
