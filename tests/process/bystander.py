"""A second queue manager that delivers to the daemon while a test disturbs it."""

from __future__ import annotations

import threading

from tests.patience import END_S
from tests.process.harness import Daemon
from tests.process.remote import RemoteQueueManager

PAUSE_S = 0.01  # between two messages: the processor is for the disturbance


class Bystander:
    """A queue manager that delivers one message after the other, in a thread of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self.remote = RemoteQueueManager()
        self.peer = self.remote.connect(daemon.port)
        self.delivered = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._deliver)
        self._thread.start()

    def _deliver(self) -> None:
        try:
            while not self._stop.is_set():
                text = b"%d" % self.delivered
                self.peer.send(self.remote.message("side", text, recoverable=True))
                self.peer.wait_stored()
                self.delivered += 1
                self._stop.wait(PAUSE_S)
        except BaseException as error:
            self.error = error

    def finish(self) -> int:
        self._stop.set()
        self._thread.join(END_S)
        self.remote.close()
        if self.error is not None:
            raise self.error
        return self.delivered
