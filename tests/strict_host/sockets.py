"""A strict host on TCP: a thread that reads, writes and keeps the time for a `StrictHost`."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

from tests.patience import END_S
from tests.strict_host.host import StrictHost
from tests.strict_host.manner import POLITE, Manner
from tests.strict_host.session import Session

IDLE_S = 0.2


class _Wire:
    """The connection of a session; `pieces` are the segments that wait to be written."""

    def __init__(self, sock: socket.socket, session: Session) -> None:
        self.sock, self.session = sock, session
        self.pieces: list[bytes] = []
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)


def cut(packets: list[bytes], manner: str, source: random.Random) -> list[bytes]:
    """Divide packets into TCP segments."""
    if manner == "whole":
        return packets
    data = b"".join(packets)
    if manner == "joined":
        return [data] if data else []
    pieces, at = [], 0
    while at < len(data):
        # A large body is not cut at every byte: that would take minutes.
        size = 1 if manner == "bytes" and at < 3000 else source.randint(1, 40 + len(data) // 4)
        pieces.append(data[at : at + size])
        at += size
    return pieces


class SocketHost:
    """A strict host that listens on loopback, and connects to `target` if it has messages."""

    def __init__(self, *, manner: Manner = POLITE, seed: int = 1) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # A new GUID each time: a daemon remembers the messages of hosts that it has met.
        self.host = StrictHost(
            now=time.monotonic, wall=time.time, seed=seed, manner=manner, guid=os.urandom(16)
        )
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=32)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.target = 0  # the port of the daemon; 0: do not connect
        self.server = bytes(16)  # the ServerGuid of requests
        self.daemon_is_killed = False
        self._retry_at = 0.0
        self._wires: list[_Wire] = []
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._is_stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="strict host", daemon=True)
        self._thread.start()

    # -- for tests --

    def __enter__(self) -> StrictHost:
        """Hold the host still, so that its state can be used."""
        self._lock.acquire()
        return self.host

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
        self.wake()

    def destination(self, queue: str) -> str:
        """Return the name by which the daemon sends to a queue of this host."""
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    def wait(
        self, condition: Callable[[StrictHost], object], what: str, timeout_s: float = END_S
    ) -> None:
        """Wait until `condition` of the host holds."""
        with self._changed:
            deadline = time.monotonic() + timeout_s
            while not condition(self.host):
                if self._error is not None:
                    raise self._error
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"waited for {what}; {self.report()}")
                self._changed.wait(min(left, 1.0))

    def report(self) -> str:
        host = self.host
        lines = [*map(str, host.verdict.breaches), *map(repr, host.sessions)]
        lines += [f"{len(host.sending.pending)} unsettled messages", *host.traces[-40:]]
        return "\n".join(lines)

    def close_sessions(self) -> None:
        """Close all sessions, in the middle of whatever they do."""
        with self as host:
            for session in list(host.sessions):
                session.close("the test closes it")

    def close(self) -> None:
        with self._lock:
            self._is_stopping = True
        self.wake()
        self._thread.join()
        for wire in self._wires:
            wire.sock.close()
        for sock in (self._listener, self._waker, self._woken):
            sock.close()
        self._selector.close()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    # -- the thread --

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._turn()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _turn(self) -> None:
        with self._lock:
            timeout = min(max(self.host.due() - time.monotonic(), 0.0), IDLE_S)
            if any(wire.pieces for wire in self._wires):
                timeout = 0.0
        events = self._selector.select(timeout)
        with self._changed:
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                elif key.data in self._wires:
                    self._read(key.data)
            self.host.tick()
            self._connect_if_wanted()
            for wire in list(self._wires):
                self._write(wire)
            self._changed.notify_all()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            self._add(sock, self.host.accept())

    def _add(self, sock: socket.socket, session: Session) -> None:
        wire = _Wire(sock, session)
        self._wires.append(wire)
        self._selector.register(sock, selectors.EVENT_READ, wire)

    def _connect_if_wanted(self) -> None:
        host, now = self.host, time.monotonic()
        is_wanted = bool(self.target) and any(item.only_on is None for item in host.sending.table)
        has_one = any(session.is_initiator for session in host.sessions)
        if not is_wanted or has_one or now < self._retry_at or host.manner.sleeps:
            return
        self._retry_at = now + host.manner.times.retry_s
        with contextlib.suppress(OSError):
            sock = socket.create_connection(("127.0.0.1", self.target), 5)
            self._add(sock, host.initiate(self.server))

    def _read(self, wire: _Wire) -> None:
        try:
            data = wire.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            wire.session.feed(data)
        else:
            wire.session.ended(by_kill=self.daemon_is_killed)

    def _write(self, wire: _Wire) -> None:
        session = wire.session
        if session.output:
            wire.pieces += cut(session.output, self.host.manner.cut, self.host.random)
            session.output = []
        try:
            # One segment in a turn where they are cut, so that each has a chance to be read alone.
            for piece in wire.pieces[: 1 if self.host.manner.cut in ("random", "bytes") else None]:
                count = wire.sock.send(piece)
                wire.pieces[0] = piece[count:]
                if wire.pieces[0]:
                    break
                del wire.pieces[0]
        except BlockingIOError:
            pass
        except OSError:
            session.ended(by_kill=True)
        if session.is_over:
            self._selector.unregister(wire.sock)
            wire.sock.close()
            self._wires.remove(wire)
