"""Limits of memory and disk against hostile clients; honest clients are still served."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.control_client import ControlClient
from tests.process.harness import Daemon, Hosts
from tests.process.processes import resident_bytes
from tests.process.remote import RemoteQueueManager

pytestmark = pytest.mark.program

MB = 1_000_000


def test_a_message_with_a_hundred_acknowledgments_returns_its_body_once(hosts: Hosts):
    daemon = hosts.daemon(peers={"acknowledge_to": ["127.0.0.9"]})
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    admins = [f"TCP:127.0.0.9\\private$\\a{number}" for number in range(100)]
    peer = remote.connect(daemon.port)
    peer.send(
        remote.message(
            "orders",  # the queue accepts only transactional messages
            b"x" * (3_900_000),
            recoverable=True,
            ack_bits=wire.NA,
            admin=wire.direct(admins[0]),
            multi_queue=wire.multi_queue_header(["OS:.\\private$\\orders"], admins),
        )
    )
    peer.wait_stored()

    (status,) = daemon.json("status")
    shown = daemon.json("outgoing", "list")
    assert status["outgoing_messages"] == len(shown) == 100
    sizes = sorted(queue["bytes"] for queue in shown)
    assert sizes[-1] > 3_900_000
    assert sizes[-2] < 10_000
    assert status["bytes"] < 9 * MB  # including the dead letter
    stored = sum(path.stat().st_size for path in daemon.folder.rglob("queues.db*"))
    assert stored < 20 * MB


def test_acknowledgments_return_bodies_that_are_not_large(hosts: Hosts):
    daemon = hosts.daemon(peers={"acknowledge_to": ["127.0.0.9"]})
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    admins = [f"TCP:127.0.0.9\\private$\\a{number}" for number in range(100)]
    peer = remote.connect(daemon.port)
    header = wire.multi_queue_header(["OS:.\\private$\\orders"], admins)
    message = remote.message(
        "orders",
        b"x" * 40_000,
        recoverable=True,
        ack_bits=wire.NA,
        admin=wire.direct(admins[0]),
        multi_queue=header,
    )
    peer.send(message)
    peer.wait_stored()

    shown = daemon.json("outgoing", "list")
    assert len(shown) == 100
    assert min(queue["bytes"] for queue in shown) > 40_000


def unfinished(size: int) -> bytes:
    """Return a packet of 4 MB without its last byte."""
    remote = RemoteQueueManager()
    return remote.message("plain", b"x" * size, recoverable=True)[:-1]


def press_on(socks: list[socket.socket], data: bytes) -> None:
    """Send on all sessions at once, until the daemon stops reading."""
    left = dict.fromkeys(socks, memoryview(data))
    for sock in socks:
        sock.setblocking(False)
    quiet = 0
    while left and quiet < 20:
        moved = 0
        for sock in list(left):
            try:
                count = sock.send(left[sock][: 1 << 18])
            except BlockingIOError:
                continue
            except OSError:
                del left[sock]  # the daemon has closed it
                continue
            left[sock] = left[sock][count:]
            moved += count
            if not left[sock]:
                del left[sock]
        quiet = 0 if moved else quiet + 1
        time.sleep(0 if moved else 0.05)


def log_has(daemon: Daemon, event: str) -> bool:
    return f'"{event}"' in daemon.log.read_text()


def wait_log(daemon: Daemon, event: str) -> None:
    end = time.monotonic() + 60
    while not log_has(daemon, event):
        assert time.monotonic() < end, f"no {event} in the log: {daemon.tail()}"
        time.sleep(0.1)


@contextlib.contextmanager
def sessions(daemon: Daemon, count: int, sources: int) -> Iterator[list[socket.socket]]:
    """Open sessions of many queue managers, from `sources` addresses."""
    remotes = [RemoteQueueManager() for _ in range(count)]
    try:
        peers = [
            remote.connect(daemon.port, source=f"127.0.1.{number % sources + 1}")
            for number, remote in enumerate(remotes)
        ]
        yield [peer.connection.sock for peer in peers]
    finally:
        for remote in remotes:
            remote.close()


def test_unfinished_packets_take_no_more_than_their_budget(hosts: Hosts):
    daemon = hosts.daemon(memory={"packets": "32MB"})
    daemon.create("plain")
    before = resident_bytes(daemon.pid)
    with sessions(daemon, 100, sources=1) as socks:
        press_on(socks, unfinished(3_900_000))

        held = daemon.json("status")[0]["memory"]["packets"]
        assert (
            8 * MB < held["bytes"] <= 21 * MB
        )  # one address may use half of the budget, and one packet
        assert held["waiting"] > 50
        assert resident_bytes(daemon.pid) - before < 80 * MB  # with 64 KiB for each session

        honest = hosts.remote().connect(daemon.port)
        honest.send(honest.owner.message("plain", b"y" * 3_900_000, recoverable=True))
        honest.wait_stored()
    assert len(daemon.bodies("plain")) == 1


def test_slow_sessions_end_when_others_wait_for_memory(hosts: Hosts):
    daemon = hosts.daemon(memory={"packets": "16MB"})
    daemon.create("plain")
    with sessions(daemon, 40, sources=4) as socks:
        press_on(socks, unfinished(3_900_000))
        wait_log(daemon, "slow_packet_ended")
        honest = hosts.remote().connect(daemon.port)
        honest.send(honest.owner.message("plain", b"y" * 3_900_000, recoverable=True))
        honest.wait_stored(60)
    assert len(daemon.bodies("plain")) == 1


def test_a_packet_that_is_larger_than_the_budget_is_received(hosts: Hosts):
    daemon = hosts.daemon(memory={"packets": "1MB", "requests": "1MB", "transactions": "1MB"})
    daemon.create("plain")
    peer = hosts.remote().connect(daemon.port)
    for _ in range(5):
        peer.send(peer.owner.message("plain", b"y" * 3_900_000, recoverable=True))
    peer.wait_stored()
    daemon.cli("send", "plain", "--file", "-", input=b"z" * 3_900_000)

    assert [len(each) for each in daemon.bodies("plain")] == [3_900_000] * 6
    assert daemon.json("status")[0]["memory"]["packets"]["bytes"] == 0


def test_unfinished_requests_take_no_more_than_their_budget(hosts: Hosts):
    daemon = hosts.daemon(memory={"requests": "32MB"})
    daemon.create("plain")
    before = resident_bytes(daemon.pid)
    # The last request waits for the end of each of these: twice CHECKED_S of qmd/runtime/budget.py.
    clients = [ControlClient(daemon.folder / "qmd.sock") for _ in range(3)]
    try:
        press_on([each.sock for each in clients], struct.pack("<I", 60 * MB) + bytes(59 * MB))

        held = daemon.json("status")[0]["memory"]["requests"]
        assert 8 * MB < held["bytes"] < 90 * MB  # the oldest connection continues
        assert resident_bytes(daemon.pid) - before < 120 * MB
        daemon.cli("send", "plain", "--file", "-", input=b"z" * 3_900_000)
    finally:
        for each in clients:
            each.close()
    assert [len(each) for each in daemon.bodies("plain")] == [3_900_000]


def virtual_bytes(daemon: Daemon) -> int:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmSize:"))
    return int(line.split()[1]) * 1024


def allow_more(daemon: Daemon, more_bytes: int) -> None:
    """Limit the memory of the daemon to its present use and a little more."""
    assert daemon.process is not None
    limit = virtual_bytes(daemon) + more_bytes
    resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def test_a_daemon_without_memory_refuses_requests_and_survives(hosts: Hosts):
    """The budgets exceed the memory, so they do not help in this case."""
    daemon = hosts.daemon(memory={"packets": "1GB", "requests": "1GB", "transactions": "1GB"})
    daemon.create("plain", "orders")
    daemon.send("orders", b"before")
    allow_more(daemon, 60 * MB)
    clients = [ControlClient(daemon.folder / "qmd.sock") for _ in range(10)]
    try:
        press_on([each.sock for each in clients], struct.pack("<I", 60 * MB) + bytes(59 * MB))
        wait_log(daemon, "no_memory_for_request")
    finally:
        for each in clients:
            each.close()
    allow_more(daemon, 1000 * MB)
    with sessions(daemon, 30, sources=1) as socks:
        allow_more(daemon, 40 * MB)
        press_on(socks, unfinished(3_900_000))
        wait_log(daemon, "no_memory_for_packet")
    assert daemon.alive

    with ControlClient(daemon.folder / "qmd.sock") as client:
        # The daemon returns memory of the ended sessions to the system, and looks at its memory
        # at intervals: it may answer the first requests.
        end = time.monotonic() + END_S
        allow_more(daemon, 2 * MB)
        while (reply := client.ask("status"))[0] == "done":
            assert time.monotonic() < end
            allow_more(daemon, 2 * MB)
        assert (reply[0], reply[2]) == ("refused", "no_memory")
    allow_more(daemon, 1000 * MB)
    daemon.cli("send", "plain", "--file", "-", input=b"z" * 3_900_000)
    assert [len(each) for each in daemon.bodies("plain")] == [3_900_000]
    assert daemon.bodies("orders") == [b"before"]


def test_a_large_message_of_an_application_is_held_twice_at_most(hosts: Hosts):
    """As the body of a request and as a packet; the bytes that were read are dropped before."""
    daemon = hosts.daemon()
    daemon.create("orders")
    body, process = b"z" * 3_900_000, Path(f"/proc/{daemon.pid}")

    def send() -> int:
        """Return the growth of memory in bytes, at its peak."""
        before = kib(process, "VmRSS")
        (process / "clear_refs").write_text("5")  # of the peak
        daemon.cli("send", "orders", "--file", "-", input=body)
        peak = kib(process, "VmHWM")
        daemon.cli("receive", "orders", "--body-only")
        return (peak - before) * 1024

    for _ in range(4):  # the caches of the database grow first
        send()
    assert min(send() for _ in range(3)) < 2.5 * len(body)


def kib(process: Path, name: str) -> int:
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def test_a_daemon_loads_no_library_without_a_use(hosts: Hosts):
    """OpenSSL, and those that its libraries load for rare cases: qmd/runtime/lean_imports.py."""
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.cli("send", "orders", input=b"a")
    daemon.cli("receive", "orders")  # fails if there is none
    loaded = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "libsqlite3" in loaded or "_sqlite3" in loaded
    unused = ("libcrypto", "libssl", "unicodedata", "_decimal", "_json", "_pickle", "_random")
    assert [name for name in unused if f"/{name}." in loaded] == []
