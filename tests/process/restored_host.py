"""A host that is put back to an old copy of its data folder while others know what came later.

It meets a conflict of identities first; then its sequence is in doubt; and then its disk is so full
that no commit can be written.  All that happens with files and packets.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.patience import END_S
from tests.process.harness import Daemon
from tests.process.small_disk import SmallDisk

NAME = "north"
FILLED_EVERY_S = 0.1


class RestoredHost:
    """A queue manager that sends to `east`, which runs already."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], east: Daemon) -> None:
        self.daemon = Daemon(
            folder / NAME,
            settings={
                **settings,
                "queue_manager": {"name": NAME},
                "quotas": {"disk_reserve": "1MB"},
            },
        )
        self._east = east
        self._disk = SmallDisk(self.daemon, "100m")
        self._data = self._disk.data
        self._backup = folder / "north-backup"
        self._to = f"DIRECT=TCP:127.0.0.1:{east.port}\\private$\\returns"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_full)
        self._send_what_the_backup_lacks()

    @property
    def has_small_disk(self) -> bool:
        """Whether its disk can be filled."""
        return self._disk.place is not None

    def _send_what_the_backup_lacks(self) -> None:
        """Back up messages that then arrive, and send others in the same sequence."""
        daemon = self.daemon
        self._east.create("returns", transactional=True)
        daemon.start()
        daemon.send(self._to, b"1", "--transactional")
        self._wait(lambda: self._outgoing()["messages"] == 0)
        daemon.cli("outgoing", "pause", self._to)
        daemon.send_all(self._to, [b"2", b"3"], "--transactional")
        daemon.terminate()
        shutil.copytree(self._data, self._backup)
        daemon.start()
        daemon.send_all(self._to, [b"4", b"5"], "--transactional")
        daemon.cli("outgoing", "resume", self._to)
        self._wait(lambda: self._outgoing()["messages"] == 0)
        daemon.terminate()

    def put_back(self) -> None:
        """Restore the old data, as a copy of the folder and not as `qmd restore` does it."""
        self.daemon.terminate()
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data)
        self.daemon.start()
        self.daemon.cli("outgoing", "resume", self._to)

    def end_conflict(self) -> None:
        """Let the other host forget the later run, as its status advises."""
        self._wait(lambda: self.daemon.json("status")[0]["two_of_one_identity"])
        (conflict,) = self.daemon.json("status")[0]["two_of_one_identity"]
        self._east.cli("session", "forget", conflict["queue_manager"])
        self.daemon.send(self._to, b"6", "--transactional")

    def fill_disk(self) -> None:
        """Take all space of the disk, also what the daemon gives back; then change something."""
        self._thread.start()

    def close(self) -> None:
        """Free the disk; unmount it after the end of the daemon."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.daemon.kill()
        self._disk.close()

    def _keep_full(self) -> None:
        assert self._disk.place is not None
        with (self._disk.place / "filler").open("wb", buffering=0) as filler:
            while not self._stop.wait(FILLED_EVERY_S):
                found = os.statvfs(self._disk.place)
                with contextlib.suppress(OSError):  # the daemon was faster
                    filler.write(bytes(found.f_bavail * found.f_frsize))
            filler.truncate(0)

    def _outgoing(self) -> dict[str, Any]:
        (facts,) = self.daemon.json("outgoing", "list")
        return facts

    @staticmethod
    def _wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + END_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)
