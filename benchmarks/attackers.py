"""Attackers of the benchmark: endless or repeated attacks, each in a process of its own.

They use the independent peer and client of the tests.  The process of an attacker repeats its
function until it is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import ssl
import struct
import time
from collections import deque
from pathlib import Path

import msgspec

from tests.process import wire
from tests.process.control_client import ControlClient
from tests.process.remote import RemoteQueueManager
from tests.process.test_attacks import open_files

MB = 1024 * 1024
GIANT_BYTES = 4 * MB - 4096


def count_on(port: int) -> None:
    """Count in a loop; attack nothing."""
    for _ in range(10_000_000):
        pass


def send_giants(port: int, senders: int, queue: str) -> None:
    """Send messages of 4 MB over many sessions at once, as much as each socket accepts."""
    with RemoteQueueManager() as remote, selectors.DefaultSelector() as selector:
        packet = bytearray(remote.message(queue, bytes(GIANT_BYTES), recoverable=True))
        for number in range(senders):
            peer = remote.connect(port, source=f"127.0.1.{1 + number % 50}")
            peer.connection.sock.setblocking(False)
            selector.register(peer.connection.sock, selectors.EVENT_WRITE, [b"", 0])
        while True:
            for key, _ in selector.select(1.0):
                assert isinstance(key.fileobj, socket.socket)
                state = key.data
                if state[1] >= len(state[0]):
                    struct.pack_into("<I", packet, 56, remote.next_id())
                    state[0], state[1] = bytes(packet), 0
                with contextlib.suppress(BlockingIOError):
                    state[1] += key.fileobj.send(state[0][state[1] : state[1] + MB])
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(65536)  # the acknowledgments


def hold_sessions(port: int, count: int) -> None:
    """Keep all places for sessions, from many addresses; open new ones when some are ended."""
    held = []
    remotes = itertools.cycle([RemoteQueueManager() for _ in range(50)])
    for number in range(open_files(count)):
        with contextlib.suppress(OSError, AssertionError, EOFError, Exception):
            source = f"127.0.2.{1 + number % 250}"
            held.append(next(remotes).connect(port, source=source))
    time.sleep(3600)


def ask_for_acknowledgments(port: int, messages_per_s: int, queues: int) -> None:
    """Send messages that ask for acknowledgments to many administration queues each."""
    with RemoteQueueManager() as remote:
        peer = remote.connect(port)
        names = [f"OS:me\\private$\\acks{number}" for number in range(queues)]
        while True:
            began = time.monotonic()
            for _ in range(messages_per_s // 10):
                peer.send(
                    remote.message(
                        "plain",
                        b"please acknowledge",
                        recoverable=True,
                        ack_bits=wire.PA | wire.NA | wire.PR | wire.NR,
                        admin=wire.direct(names[0]),
                        multi_queue=wire.multi_queue_header(["OS:me\\private$\\plain"], names),
                    ),
                    timeout_s=30,
                )
            while peer.connection.has_data():
                peer.read()
            time.sleep(max(began + 0.1 - time.monotonic(), 0))


def begin_tls(port: int, at_once: int) -> None:
    """Begin handshakes of TLS as fast as possible, and let each be answered."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    first = hello.read()
    begun: deque[socket.socket] = deque()
    for number in itertools.count():
        if len(begun) >= at_once:
            begun.popleft().close()
        sock = socket.socket()
        begun.append(sock)
        with contextlib.suppress(OSError):
            sock.bind((f"127.0.3.{1 + number % 250}", 0))
            sock.settimeout(1.0)
            sock.connect(("127.0.0.1", port))
            sock.send(first)


def ping(port: int, ping_port: int) -> None:
    """Send pings as fast as possible."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", ping_port))
        datagram = struct.pack("<HHI", 1, 0x5548, 7) + bytes(16)
        while True:
            for _ in range(1000):
                with contextlib.suppress(OSError):
                    sock.send(datagram)


# Applications of another account.


def send_much(path: Path, user: int, connections: int, size: int) -> None:
    """Send over many connections as fast as possible, with many requests on the way."""
    _become(user)
    request = msgspec.msgpack.encode(["send", 1, [["private$\\flood", bytes(size)]]])
    frame = struct.pack("<I", len(request)) + request
    block = frame * max(1, min(500, MB // len(frame)))
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            client = ControlClient(path)
            client.sock.setblocking(False)
            selector.register(client.sock, selectors.EVENT_WRITE | selectors.EVENT_READ, [b""])
        while True:
            for key, events in selector.select(1.0):
                assert isinstance(key.fileobj, socket.socket)
                if events & selectors.EVENT_READ:
                    with contextlib.suppress(BlockingIOError):
                        key.fileobj.recv(MB)
                if events & selectors.EVENT_WRITE:
                    rest = key.data[0] or block
                    with contextlib.suppress(BlockingIOError):
                        rest = rest[key.fileobj.send(rest) :]
                    key.data[0] = rest


def wait_for_messages(path: Path, user: int, connections: int) -> None:
    """Keep thousands of receives waiting, and connect again after a refusal."""
    _become(user)
    clients = [ControlClient(path) for _ in range(connections)]
    for client in clients:
        client.sock.settimeout(5)
        for _ in range(4000):
            client.send("take", "private$\\empty", 1, 600.0)
    for client in clients:
        client.close()


def come_and_go(path: Path, user: int, connections: int) -> None:
    """Open connections that send nothing, and close them."""
    _become(user)
    held = [ControlClient(path) for _ in range(open_files(connections))]
    for client in held:
        client.close()


def _become(user: int) -> None:
    import os

    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
