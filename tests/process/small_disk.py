"""A small disk of a daemon's own, which a test can fill."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.process.harness import Daemon


class SmallDisk:
    """A file system in memory for the data of a daemon; only root can mount one."""

    def __init__(self, daemon: Daemon, size: str) -> None:
        """Mount it, and configure the daemon; `place` is None if that is not possible."""
        place = daemon.folder / "disk"
        place.mkdir()
        self.place: Path | None = None
        self.data = daemon.folder / "data"
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        if os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0:
            self.place, self.data = place, place / "data"
            daemon.configure({"queue_manager": {"data": str(self.data)}})

    def close(self) -> None:
        """Unmount it, after the end of the daemon."""
        if self.place is not None:
            subprocess.run(["umount", "-l", str(self.place)], check=True)
