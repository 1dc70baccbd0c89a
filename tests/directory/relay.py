"""A relay before a server: it cuts, delays, and stops after a number of bytes."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time


class Relay:
    """A listener on a free port of 127.0.0.1 that forwards everything until it is changed.

    `from_server_bytes_max`: the number of the server's bytes that a connection gets.
    """

    def __init__(self, address: str, port: int) -> None:
        self._target = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.address, self.port = self._listener.getsockname()
        self.from_server_bytes_max = math.inf
        self.delay_s = 0.0
        self.connections = 0
        self.refused = False  # connections are accepted and closed at once
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._listener.close()
        self.cut()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                outer, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            if self.refused:
                outer.close()
                continue
            try:
                inner = socket.create_connection(self._target, 5)
            except OSError:
                outer.close()
                continue
            inner.settimeout(None)
            outer.settimeout(None)
            with self._lock:
                self._pairs.append((outer, inner))
            for source, sink, server in ((outer, inner, False), (inner, outer, True)):
                threading.Thread(
                    target=self._pump, args=(source, sink), kwargs={"server": server}, daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, *, server: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if server:
                    passed += len(data)
                    if self.delay_s:
                        time.sleep(self.delay_s)
                    if passed > self.from_server_bytes_max:
                        continue
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        sink.close()
