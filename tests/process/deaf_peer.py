"""A queue manager that takes transactional messages and never acknowledges their order."""

from __future__ import annotations

import contextlib
import threading

from qmd.client import blocking, new_message
from tests.process.connection import Closed
from tests.process.harness import Daemon
from tests.process.remote import RemoteQueueManager

MESSAGES = 20
READ_S = 0.5


class DeafPeer:
    """The peer of a daemon, which sends the same messages again and again."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._remote = RemoteQueueManager()
        self._listener = self._remote.listen()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._hear)

    def begin(self) -> None:
        """Let the daemon send."""
        self._thread.start()
        name = self._listener.destination("deaf")
        with blocking.connect(self._daemon.folder / "qmd.sock") as qm:
            qm.send_many(
                [new_message(name, b"x", delivery="transactional") for _ in range(MESSAGES)]
            )

    def close(self) -> None:
        """End the sessions."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._remote.close()

    def _hear(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Closed, OSError):
                peer = self._listener.accept(READ_S)
                while not self._stop.is_set():
                    peer.read_for(READ_S)
