"""Fair shares of the daemon: how much of a flood is processed before others are served.

The waiting packets are prepared while the daemon is stopped (SIGSTOP), so that all are present when
it continues, and no result depends on speed.  Arrival numbers give the order of processing.

"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import struct
from collections.abc import Iterator

import msgspec
import pytest

from tests.process.control_client import ControlClient
from tests.process.data_folder import database
from tests.process.harness import Daemon, Hosts
from tests.process.peer import Peer
from tests.process.processes import open_files
from tests.process.remote import RemoteQueueManager
from tests.process.watch import MB

ARRIVAL_BITS = 44  # of the key of a message
FLOOD_MESSAGES = 2_000
ROUNDS = 5
SILENT, TAKEN_UP_MAX = (
    400,
    60,
)  # connections without requests that are accepted before others are answered


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """Stop the daemon meanwhile."""
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


def arrivals(daemon: Daemon, queue: str) -> list[int]:
    """Return the numbers of the messages in a queue, in the order of their arrival."""
    with contextlib.closing(sqlite3.connect(database(daemon.folder))) as db:
        rows = db.execute(
            "SELECT message.key & ? FROM message JOIN queue ON queue.id = message.key >> 48"
            " WHERE queue.key LIKE ?",
            ((1 << ARRIVAL_BITS) - 1, f"%{queue}"),
        )
        return sorted(number for (number,) in rows)


def flooding(remote: RemoteQueueManager, port: int) -> Peer:
    """Return a session with room for a complete flood."""
    peer = remote.connect(port)
    peer.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MB)
    return peer


def pour(peer: Peer, flood: bytes) -> None:
    """Send as much as the socket accepts; the rest follows when there is room."""
    peer.connection.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        assert peer.connection.sock.send(flood)


@pytest.mark.parametrize(
    ("sessions", "messages", "answers", "before_max"),
    [(4, 2000, 2 * ROUNDS, 150), (80, 50, 2, 550)],
)
def test_others_are_served_while_a_flood_is_processed(
    hosts: Hosts, sessions: int, messages: int, answers: int, before_max: int
):
    """`before_max` limits the flood messages before others got so many answers.  Of each of many
    sessions that keep to their window, a few messages are processed before they can be judged.
    """
    daemon = hosts.daemon(start=True)
    daemon.create("side", "plain")
    with RemoteQueueManager() as attacker, RemoteQueueManager() as remote:
        floods = [flooding(attacker, daemon.port) for _ in range(sessions)]
        delivering = remote.connect(daemon.port)
        with ControlClient(daemon.folder / "qmd.sock") as client:
            with stopped(daemon):
                for peer in floods:
                    pour(peer, b"".join(attacker.message("nowhere") for _ in range(messages)))
                # Requests that follow an answer would depend on the speed of this process.
                for _ in range(ROUNDS):
                    client.send("send", [["private$\\side", b"from here"]])
                    delivering.send(remote.message("side", b"from there", recoverable=True))
            for _ in range(ROUNDS):
                assert client.read()[0] == "done"
            delivering.wait_stored()
            answered = arrivals(daemon, "side")

    assert len(answered) == 2 * ROUNDS
    before = [number for number in arrivals(daemon, "deadletter") if number < answered[answers - 1]]
    assert len(before) < before_max


def test_thousands_of_idle_connections_wait_for_those_with_requests(hosts: Hosts):
    daemon = hosts.daemon(start=True)
    daemon.create("side", "plain")
    with RemoteQueueManager() as remote, contextlib.ExitStack() as silent:
        delivering = remote.connect(daemon.port)
        with ControlClient(daemon.folder / "qmd.sock") as client:
            for _ in range(ROUNDS):  # no connection is untrusted then
                delivering.send(remote.message("side", recoverable=True))
                delivering.send(remote.message("side", recoverable=True))
                delivering.wait_stored()
            files = open_files(daemon.pid)
            with stopped(daemon):
                for number in range(SILENT):
                    address = f"127.0.0.{2 + number % 200}", 0
                    sock = socket.create_connection(("127.0.0.1", daemon.port), 5, address)
                    silent.enter_context(sock)
            client.done("send", [["private$\\side", b"from here"]])
            delivering.send(remote.message("side", b"from there", recoverable=True))
            delivering.wait_stored()
            with stopped(daemon):
                taken_up = open_files(daemon.pid) - files

        assert taken_up < TAKEN_UP_MAX
        RemoteQueueManager().connect(daemon.port).close()  # in the end every connection is accepted


def test_waiting_packets_are_processed_in_order(hosts: Hosts):
    """Send several windows at once, without regard to the daemon's window; then more."""
    daemon = hosts.daemon(start=True)
    daemon.create("orders", transactional=True)
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        sequence_id = remote.new_sequence()
        count = 250
        numbers = range(1, count + 1)
        packets = [remote.transactional("orders", sequence_id, number) for number in numbers]
        for packet in packets:
            peer.count(packet)
        peer.connection.send(b"".join(packets))
        peer.wait_stored()
        peer.send(remote.transactional("orders", sequence_id, count + 1))
        peer.wait_order_ack(sequence_id, count + 1)

    assert [int(body) for body in daemon.bodies("orders")] == [*numbers, count + 1]


def test_complete_packets_before_a_fault_are_processed_although_they_wait(hosts: Hosts):
    daemon = hosts.daemon(start=True)
    daemon.create("plain")
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        count = 150  # all in one read, with the following bytes
        packets = [remote.message("plain", b"%d" % each, recoverable=True) for each in range(count)]
        for packet in packets:
            peer.count(packet)
        with stopped(daemon):
            peer.connection.send(b"".join(packets) + b"no packet" * 10)
        peer.expect_closed()

    assert [int(body) for body in daemon.bodies("plain")] == list(range(count))


def test_clients_are_served_while_another_sends_many_requests(hosts: Hosts):
    daemon = hosts.daemon(start=True)
    daemon.create("many", "side")
    path = daemon.folder / "qmd.sock"
    with ControlClient(path) as greedy, ControlClient(path) as client:
        with stopped(daemon):
            request = msgspec.msgpack.encode(["send", 1, [["private$\\many", b""]]])
            flood = (struct.pack("<I", len(request)) + request) * FLOOD_MESSAGES
            greedy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MB)
            greedy.send_raw(flood)
            number = client.send("send", [["private$\\side", b"mine"]])
        assert client.reply(number)[0] == "done"
        for _ in range(FLOOD_MESSAGES):
            assert greedy.read()[0] == "done"

    last = arrivals(daemon, "side")[-1]
    assert len([number for number in arrivals(daemon, "many") if number < last]) < FLOOD_MESSAGES
