"""The daemon under attack: it serves others, answers, and limits its memory and its log.

The numbers are small, so that each run of the tests has time for them; `make attack` uses the
full numbers (ATTACK=full), and prints the measurements.  The attackers are separate processes, so
that they do not slow down the clients that measure.

"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.connection import Closed
from tests.process.control_client import ControlClient
from tests.process.data_folder import held_disk
from tests.process.harness import Daemon, Hosts, empty_queues
from tests.process.remote import RemoteQueueManager
from tests.process.watch import MB, SIDE, Watch

FULL = os.environ.get("ATTACK") == "full"
ATTACK_S_MAX = 600 if FULL else 150


def scaled(few: int, many: int) -> int:
    """Return the number for each run of the tests, or the number for `make attack`."""
    return many if FULL else few


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create(SIDE, "plain")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def attack() -> Iterator[Callable[..., None]]:
    """Run a function in a process of its own, to its end; it must not fail."""
    context = multiprocessing.get_context("forkserver")
    started: list[multiprocessing.process.BaseProcess] = []

    def run(act: Callable[..., None], *arguments: object) -> None:
        process = context.Process(target=act, args=arguments)
        process.start()
        started.append(process)
        process.join(ATTACK_S_MAX)
        assert process.exitcode == 0, f"{act.__name__} ended with {process.exitcode}"

    yield run
    for process in started:
        if process.is_alive():
            process.kill()


def open_files(wanted: int) -> int:
    """Raise the limit of open files as far as allowed; return the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(wanted + 200, hard) if hard != resource.RLIM_INFINITY else wanted + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(wanted, limit - 200)


# Connections.


def stay_silent(port: int, count: int) -> None:
    """Open connections, send nothing, and reconnect after each disconnect."""
    sockets = []
    for number in range(open_files(count)):
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((f"127.0.0.{2 + number % 200}", 0))
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    time.sleep(1)
    for sock in sockets:
        sock.close()


def test_silent_connections(daemon: Daemon, attack: Callable[..., None]):
    with Watch(daemon):
        attack(stay_silent, daemon.port, scaled(2_000, 10_000))

    with RemoteQueueManager() as remote:
        remote.connect(daemon.port)


def connect_and_leave(port: int, count: int) -> None:
    """Complete a handshake and close the connection, repeatedly."""
    with RemoteQueueManager() as remote:
        for _ in range(count):
            remote.connect(port).close()


def test_sessions_that_come_and_go(daemon: Daemon, attack: Callable[..., None]):
    with Watch(daemon):
        attack(connect_and_leave, daemon.port, scaled(500, 10_000))


def send_byte_by_byte(port: int, senders: int) -> None:
    """Send a handshake and a message, with one TCP segment per byte."""
    remotes = [RemoteQueueManager() for _ in range(senders)]
    streams = [
        wire.establish(client=remote.guid)
        + wire.parameters()
        + remote.message("plain", b"byte by byte", recoverable=True)
        for remote in remotes
    ]
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in remotes]
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(streams[0])):
        for sock, stream in zip(sockets, streams, strict=True):
            sock.send(stream[at : at + 1])
    for sock in sockets:
        sock.settimeout(END_S)
        answered = 0
        while answered < 572 + 32 + 36:
            data = sock.recv(4096)
            assert data, "hung up"
            answered += len(data)
        sock.close()


def test_senders_of_single_bytes(daemon: Daemon, attack: Callable[..., None]):
    senders = scaled(20, 200)
    with Watch(daemon):
        attack(send_byte_by_byte, daemon.port, senders)

    assert daemon.bodies("plain") == [b"byte by byte"] * senders


def announce_much(port: int, count: int, sent_bytes: int) -> None:
    """Announce 4 MB before and after the handshake, and send some of them."""
    with RemoteQueueManager() as remote:
        packet = remote.message("plain", recoverable=True)
        giant = packet[:8] + struct.pack("<I", wire.PACKET_BYTES_MAX) + packet[12:]
        giant += bytes(sent_bytes - len(giant))
        early = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        late = [remote.connect(port).connection.sock for _ in range(count)]
        for sock in early + late:
            sock.settimeout(END_S)
            with contextlib.suppress(OSError):
                sock.sendall(giant)
        for size in (0, 19, 0x400001, 0x7FFFFFFF, 0xFFFFFFFF):
            peer = remote.connect(port)
            peer.connection.send(packet[:8] + struct.pack("<I", size) + packet[12:])
            peer.expect_closed()
        for sock in early + late:
            sock.close()


def test_giant_packets_that_are_announced(daemon: Daemon, attack: Callable[..., None]):
    count, sent_bytes = scaled(50, 200), 300_000

    # The received part may stay in a buffer that has room for more.
    with Watch(daemon, grown_bytes_max=3 * count * sent_bytes + 64 * MB):
        attack(announce_much, daemon.port, count, sent_bytes)


# Floods over a session.


def flood(port: int, kind: str, count: int) -> None:
    """Send packets as fast as they are read, without regard to the window."""
    drawn = random.Random(kind)
    with RemoteQueueManager() as remote:
        peer = remote.connect(port)
        peer.connection.sock.settimeout(ATTACK_S_MAX)
        for _ in range(count // 100):
            batch = [_flooding(remote, kind, drawn) for _ in range(100)]
            for packet in batch:
                peer.count(packet)
            try:
                peer.connection.sock.sendall(b"".join(batch))
                while peer.connection.has_data():
                    peer.read()
            except (Closed, OSError):
                peer = remote.connect(port)
        peer.wait_acknowledged(timeout_s=ATTACK_S_MAX)


def flood_over_many(port: int, connections: int, kind: str, count: int) -> None:
    """Flood over many sessions at once; each sends as much as its socket accepts."""
    drawn = random.Random(kind)
    with RemoteQueueManager() as remote, selectors.DefaultSelector() as selector:
        packets = [_flooding(remote, kind, drawn) for _ in range(50)]
        ends = list(itertools.accumulate(map(len, packets)))
        block = bytearray().join(packets)
        for number in range(open_files(connections)):
            peer = remote.connect(port, source=f"127.0.1.{1 + number % 4}")
            selector.register(peer.connection.sock, selectors.EVENT_WRITE, b"")
            peer.connection.sock.setblocking(False)
        deadline = time.monotonic() + ATTACK_S_MAX
        while count > 0:
            assert time.monotonic() < deadline
            for key, _ in selector.select(1.0):
                assert isinstance(key.fileobj, socket.socket)
                rest = key.data
                if not rest:
                    for end, packet in zip(ends, packets, strict=True):  # no packet is a duplicate
                        struct.pack_into("<I", block, end - len(packet) + 56, remote.next_id())
                    rest, count = bytes(block), count - len(packets)
                with contextlib.suppress(BlockingIOError):
                    rest = rest[key.fileobj.send(rest) :]
                selector.modify(key.fileobj, selectors.EVENT_WRITE, rest)


def _flooding(remote: RemoteQueueManager, kind: str, drawn: random.Random) -> bytes:
    number = drawn.randrange(1, 1 << 31)
    match kind:
        case "unknown queue":
            return remote.message(f"nowhere{number}")
        case "order acks":
            return wire.order_ack(
                source=remote.guid,
                message_id=remote.next_id(),
                sequence_id=drawn.getrandbits(64),
                number=number,
            )
        case "refused":
            sequence_id = number << 32 | 1
            return remote.transactional(f"nowhere{number % 50}", sequence_id, 1)
        case "gaps":
            return remote.transactional("orders", 1 << 32 | 1, number, number - 1)
    return remote.message("plain", b"", recoverable=True, message_id=7)


@pytest.mark.parametrize("kind", ["unknown queue", "order acks", "refused", "gaps", "duplicates"])
def test_floods_of_tiny_messages(daemon: Daemon, attack: Callable[..., None], kind: str):
    with Watch(daemon):
        attack(flood, daemon.port, kind, scaled(500, 300_000))

    empty_queues(daemon)


@pytest.mark.parametrize("kind", ["unknown queue", "refused"])
def test_floods_over_many_sessions(daemon: Daemon, attack: Callable[..., None], kind: str):
    with Watch(daemon, grown_bytes_max=scaled(100, 256) * MB):
        attack(flood_over_many, daemon.port, scaled(100, 900), kind, scaled(5_000, 300_000))

    empty_queues(daemon)


def test_express_messages_that_are_refused_wait_for_the_disk_too(daemon: Daemon):
    """Refused express messages get no answer, so only the disk can slow their sender down."""
    with RemoteQueueManager() as remote:
        sock = remote.connect(daemon.port).connection.sock
        # Several times the capacity of the sockets; commits must happen.
        flood = memoryview(b"".join(remote.message("nowhere", bytes(3000)) for _ in range(15_000)))
        sent = 0
        sock.setblocking(False)
        with held_disk(daemon.folder):
            while sent < len(flood) and select.select([], [sock], [], 2.0)[1]:
                sent += sock.send(flood[sent : sent + MB])

    assert sent < len(flood)


def send_from_many(port: int, sources: int) -> None:
    """Send the streams of many queue managers, as a router does."""
    with RemoteQueueManager() as remote:
        remote.relayed = True
        peer = remote.connect(port)
        sequence_id = remote.new_sequence()
        peer.send_many(
            remote.transactional("orders", sequence_id, 1)[:16]
            + struct.pack("<QQ", 1, source)
            + remote.transactional("orders", sequence_id, 1)[32:]
            for source in range(1, 1 + sources)
        )
        peer.wait_stored(ATTACK_S_MAX)


def test_streams_of_a_thousand_sources(hosts: Hosts, attack: Callable[..., None]):
    daemon = hosts.daemon(peers={"relays": ["127.0.0.1"]})  # others may not bring them
    daemon.create(SIDE, "plain")
    daemon.create("orders", transactional=True)
    sources = scaled(1_000, 50_000)
    with Watch(daemon):
        attack(send_from_many, daemon.port, sources)

    assert daemon.count("orders") == sources
    empty_queues(daemon)


def test_order_acks_beyond_what_was_sent(daemon: Daemon):
    with RemoteQueueManager() as remote, Watch(daemon):
        listener = remote.listen()
        destination = listener.destination("q")
        daemon.send_all(destination, [b"first", b"second"], "--transactional")
        peer = listener.accept()
        sequence = peer.receive_many(2)[0].transaction
        assert sequence is not None
        for number in range(3, 3 + scaled(300, 100_000)):
            peer.order_ack(sequence.sequence_id, number if number % 2 else 0xFFFFFFFF)
        peer.wait_acknowledged(timeout_s=ATTACK_S_MAX)

        # No false one was accepted; a true one is.
        (queue,) = [row for row in daemon.json("outgoing", "list") if row["messages"]]
        assert queue["messages"] == 2
        peer.order_ack(sequence.sequence_id, 2)
        with ControlClient(daemon.folder / "qmd.sock") as client:
            deadline = time.monotonic() + END_S
            while client.done("show_outgoing", destination)["messages"]:
                assert time.monotonic() < deadline


# Peers that never read.


def never_read(port: int, connections: int, megabytes: int) -> None:
    """Send requests for answers, and do not read the answers."""
    with RemoteQueueManager() as remote:
        packet = remote.message("plain", b"x" * 500, recoverable=True)
        peers = [remote.connect(port) for _ in range(connections)]
        for peer in peers:
            sock = peer.connection.sock
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(2)
            with contextlib.suppress(OSError):
                for _ in range(megabytes * MB // len(packet) // 100):
                    sock.sendall(packet * 100)


def test_peers_that_never_read(daemon: Daemon, attack: Callable[..., None]):
    with Watch(daemon):
        attack(never_read, daemon.port, scaled(4, 20), scaled(2, 50))

    empty_queues(daemon)


def test_receivers_that_never_read(daemon: Daemon):
    count = scaled(3, 20)
    with RemoteQueueManager() as remote, Watch(daemon, grown_bytes_max=(64 + 12 * count) * MB):
        listeners = [remote.listen() for _ in range(count)]
        content = bytes(1_000_000)
        with ControlClient(daemon.folder / "qmd.sock") as client:
            for listener in listeners:
                message = [listener.destination("q"), content, "", 1]
                client.done("send", [message] * scaled(12, 40))
        # They accept the session and its first bytes, and read no more.
        peers = [listener.accept() for listener in listeners]
        time.sleep(scaled(1, 5))
        for peer in peers:
            peer.close()

    with ControlClient(daemon.folder / "qmd.sock") as client:
        for queue in client.done("list_outgoing"):
            client.done("pause_outgoing", queue["destination"])


# The control socket.


def send_garbage(path: Path, connections: int) -> None:
    """Send arbitrary bytes, inside and outside of frames."""
    drawn = random.Random(1)
    for number in range(connections):
        with ControlClient(path) as client, contextlib.suppress(EOFError, OSError):
            noise = drawn.randbytes(drawn.choice((1, 10, 1000, 60_000)))
            if number % 2:
                client.send_frame(noise)
                client.read()
            else:
                client.send_raw(noise)


def test_garbage_on_the_control_socket(daemon: Daemon, attack: Callable[..., None]):
    with Watch(daemon):
        attack(send_garbage, daemon.folder / "qmd.sock", scaled(300, 10_000))


def send_giant_frames(path: Path, clients: int) -> None:
    """Send almost complete frames of the largest allowed size."""
    held = [ControlClient(path) for _ in range(clients)]
    for client in held:
        client.send_raw(struct.pack("<I", 64 * MB))
        for _ in range(8):
            client.send_raw(bytes(2 * MB - 1))
    for client in held:
        client.close()


def test_giant_frames_on_the_control_socket(daemon: Daemon, attack: Callable[..., None]):
    clients = scaled(4, 16)

    # A local client may make the daemon hold its data, twice while the buffer grows.
    with Watch(daemon, grown_bytes_max=(64 + 2 * 16 * clients) * MB):
        attack(send_giant_frames, daemon.folder / "qmd.sock", clients)


def ask_and_never_read(path: Path, requests: int) -> None:
    """Send requests with long answers, without reading the answers."""
    client = ControlClient(path)
    client.sock.settimeout(3)
    question = msgspec.msgpack.encode(["list_queues", 1, True])
    peek = msgspec.msgpack.encode(["peek", 2, "private$\\plain", 0, 4096])
    frames = b"".join(struct.pack("<I", len(it)) + it for it in (question, peek)) * 1000
    with contextlib.suppress(TimeoutError):
        for _ in range(requests // 2000):
            client.send_raw(frames)
    client.close()


def test_clients_that_never_read(daemon: Daemon, attack: Callable[..., None]):
    with ControlClient(daemon.folder / "qmd.sock") as client:
        for number in range(300):
            client.send("create_queue", f"private$\\many{number}")
        message = ["private$\\plain", bytes(10_000)]
        for _ in range(10):
            client.done("send", [message] * 100)
        client.settle()
        with Watch(daemon):
            attack(ask_and_never_read, daemon.folder / "qmd.sock", scaled(20_000, 1_000_000))
        for number in range(300):
            client.done("delete_queue", f"private$\\many{number}")
    empty_queues(daemon)


def test_a_client_with_more_requests_than_are_taken_up_gets_all_answers(daemon: Daemon):
    with ControlClient(daemon.folder / "qmd.sock") as client:
        # The answers, 17 bytes each, fit into the socket buffers: they are not read so far.
        numbers = [client.send("peek", r"private$\plain", 0, 1, 0.0) for _ in range(10_000)]

        assert [client.reply(number)[0] for number in numbers] == ["done"] * len(numbers)
