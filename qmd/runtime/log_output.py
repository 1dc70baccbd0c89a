"""Output of log lines: direct to a file, by a thread to anything that may block.

A pipe or terminal blocks its writer when the reader does not read. The event loop must never block:
one hanging log collector would stop all messages, and the daemon would not react to SIGTERM.
"""

from __future__ import annotations

import atexit
import io
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

PENDING_BYTES_MAX = 1024 * 1024
EXIT_WAIT_S = 1.0  # for the last lines, when the program ends


class DirectOutput:
    """Output that writes each line at once; a line that cannot be written is dropped."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, line: bytes) -> None:
        try:
            self._stream.write(line + b"\n")
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: closed
            pass

    debug = info = warning = error = critical = write


class ThreadedOutput:
    """Output that writes lines in order in a thread, and drops lines while too many are pending.

    `on_dropped(count)` is called in the thread when lines can be written again.
    """

    def __init__(self, descriptor: int, on_dropped: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._on_dropped = on_dropped
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # of the pending lines and the line being written
        self._dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.finish)
            if self._bytes + len(line) > PENDING_BYTES_MAX:
                self._dropped += 1
                return
            self._bytes += len(line)
            self._lines.append(line)
            self._changed.notify_all()

    debug = info = warning = error = critical = write

    def finish(self, timeout_s: float = EXIT_WAIT_S) -> None:
        """Wait until all lines are written, at most `timeout_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines))
                line = self._lines.popleft()
            self._write(line + b"\n")
            with self._changed:
                self._bytes -= len(line)
                dropped, self._dropped = self._dropped, 0
                self._changed.notify_all()
            if dropped:
                self._on_dropped(dropped)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # the reader has ended: drop the line
            pass


def output_to(stream: BinaryIO, on_dropped: Callable[[int], None]) -> DirectOutput | ThreadedOutput:
    """Return an output for `stream` that never blocks its caller."""
    try:
        descriptor = stream.fileno()
        kind = os.fstat(descriptor).st_mode
    except (OSError, ValueError, io.UnsupportedOperation):  # a stream in memory
        return DirectOutput(stream)
    if stat.S_ISREG(kind):
        return DirectOutput(stream)
    return ThreadedOutput(descriptor, on_dropped)
