"""One life of a machine, with a loss of power at every act, in every way.

A state is what the disk may hold at one act after one kind of loss.  Each state is recovered as a
start would recover it, and compared with the promises at the time of the loss.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.crash.disk import Loss, PowerlessDisk
from tests.crash.promises import Hearing, Promises, State
from tests.crash.shim import Record
from tests.crash.stored import Damaged, read_state
from tests.crash.workload import Lost

MUST_HOLD_BACK = "cwtsdeur"  # acts that change the disk


class Replay:
    """The states of a life; `count` is their number, `broken` has the broken promises."""

    def __init__(
        self,
        records: Sequence[Record],
        folder: Path,
        scratch: Path,
        *,
        nowhere_port: int,
        seed: int = 1,
    ) -> None:
        self._records = records
        self._disk = PowerlessDisk(folder)
        self._hearing = Hearing(Promises())
        self._folder = scratch / "state"
        self._nowhere_port = nowhere_port
        self._rng = random.Random(seed)
        self._synced: tuple[int, State] | None = None
        self.count = 0
        self.broken: list[str] = []

    @property
    def promises(self) -> Promises:
        return self._hearing.promises

    def _skip(self, count: int) -> None:
        """Apply the first records without a loss of power."""
        for record in self._records[:count]:
            self._feed(record)

    def run(self, first: int = 0, *, every_write: int = 1) -> None:
        """Lose the power at every act from the record `first` on.

        Of writes only every n-th is tried, of everything else all.
        """
        for _ in self.steps(first, every_write=every_write):
            pass

    def steps(self, first: int = 0, *, every_write: int = 1) -> Iterator[int]:
        """Do as `run`; yield the number of records that were applied."""
        self._skip(first)
        for index, record in enumerate(self._records[first:], first):
            confirmed = self.promises.confirmed
            self._feed(record)
            if record.kind == "k" and self.promises.confirmed > confirmed:
                self._check(index, Loss.UNSYNCED)
            elif record.kind in "w" and index % every_write:
                continue
            elif record.kind in MUST_HOLD_BACK:
                for loss in Loss:
                    self._check(index, loss)
            yield index

    def feeds(self) -> Iterator[int]:
        """Apply all records; yield the number of each that changes the disk."""
        for index, record in enumerate(self._records):
            self._feed(record)
            yield index

    def state_now(self, loss: Loss = Loss.UNSYNCED) -> State:
        """Return the state after a loss of power at this act.  Raises Damaged."""
        self.write_now(self._folder, loss)
        try:
            return read_state(self._folder, self._nowhere_port)
        finally:
            shutil.rmtree(self._folder)

    def write_now(self, folder: Path, loss: Loss) -> None:
        folder.mkdir()
        self._disk.write(folder, loss, self._rng)

    def _feed(self, record: Record) -> None:
        if record.kind in "km":
            self._hearing.feed(record)
        else:
            self._disk.feed(record)

    def _check(self, index: int, loss: Loss) -> None:
        try:
            broken = self.promises.check(self._state(loss))
        except (Damaged, AssertionError) as error:
            broken = [str(error)]
        self.count += 1
        record = self._records[index]
        where = f"act {index} ({record.kind} {record.name[-20:]}), {loss.value}"
        self.broken += [f"{where}: {each}" for each in broken]

    def _state(self, loss: Loss) -> State:
        if loss is not Loss.UNSYNCED:
            return self.state_now(loss)
        # Promises grow while the disk stays the same.
        if self._synced is None or self._synced[0] != self._disk.syncs:
            self._synced = self._disk.syncs, self.state_now(loss)
        return self._synced[1]


def require_whole(replay: Replay) -> None:
    """Raise Lost if a promise was broken."""
    if replay.broken:
        raise Lost(f"{len(replay.broken)} broken promises: " + "; ".join(replay.broken[:5]))
