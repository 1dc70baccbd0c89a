"""Proxies that cut connections for a test: between two daemons, and at a control socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path


class Proxy:
    """A TCP proxy between two daemons, for tests that cut the connection."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port: int = listener.getsockname()[1]
        self._begin(listener)

    def _begin(self, listener: socket.socket) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.connections = 0
        self.bytes_passed = 0
        self._cut_at: int | None = None  # of the bytes passed
        self._passed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._start(self._accept)

    def destination(self, queue: str) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    def cut(self) -> None:
        """Close every connection through the proxy; new ones are accepted."""
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def cut_after(self, count: int) -> None:
        """Close every connection as soon as `count` more bytes have arrived, in their middle.

        Nothing of the read that reaches that number is passed on.
        """
        with self._passed:
            self._cut_at = self.bytes_passed + count

    def wait_cut(self, timeout_s: float = 2.0) -> None:
        """Wait until `cut_after` has closed the connections, for at most `timeout_s`."""
        with self._passed:
            self._passed.wait_for(lambda: self._cut_at is None, timeout_s)

    def wait_passed(self, count: int, timeout_s: float = 2.0) -> None:
        """Wait until `count` more bytes have passed, for at most `timeout_s`."""
        goal = self.bytes_passed + count
        with self._passed:
            self._passed.wait_for(lambda: self.bytes_passed >= goal, timeout_s)

    def retarget(self, port: int) -> None:
        """Connect to another port from now on."""
        self._target_port = port
        self.cut()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = self._reach()
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            self._start(lambda near=near, far=far: self._pair(near, far))

    def _reach(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target_port), 5)

    def _pair(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
        back.start()
        self._pump(near, far)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _is_cut_by(self, count: int) -> bool:
        with self._passed:
            if self._cut_at is None or self.bytes_passed + count < self._cut_at:
                return False
            self._cut_at = None
            self._passed.notify_all()
        self.cut()
        return True

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._is_cut_by(len(data)):
                    break
                target.sendall(data)
                with self._passed:
                    self.bytes_passed += len(data)
                    self._passed.notify_all()
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class ControlProxy(Proxy):
    """A proxy between an application and its daemon: `path` is a control socket as well."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cut.sock"
        self._target = folder / "qmd.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(16)
        self._begin(listener)

    def _reach(self) -> socket.socket:
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(str(self._target))
        except OSError:
            far.close()
            raise
        return far
