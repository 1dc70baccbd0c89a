"""A disk that fills while the daemon runs: the daemon reports it, loses nothing, and recovers."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from storage.tables.keys import message_key
from tests.patience import END_S
from tests.process.connection import Closed
from tests.process.harness import Daemon, Hosts, body
from tests.process.peer import Peer
from tests.process.test_two_daemons import wait_sent
from tests.unit.storage.support import durable, opened

MB = 1_000_000
DISK_MB = 12
RESERVE = {"disk_reserve": "1MB"}


class SmallDisk:
    """A file system of 12 MB with room for a data folder, and for a file that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._other = folder / "other"

    def fill(self, leave_bytes: int = 0) -> None:
        """Write a file that leaves only `leave_bytes` free."""
        with self._other.open("wb", buffering=0) as other:
            while _write_page(other):
                pass
        os.truncate(self._other, max(0, self._other.stat().st_size - leave_bytes))

    def clear(self) -> None:
        self._other.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB * MB}", "qmd-test", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us mount a small file system")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def daemon(hosts: Hosts, disk: SmallDisk) -> Daemon:
    daemon = hosts.daemon(queue_manager={"data": str(disk.folder / "data")}, quotas=RESERVE)
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


def send_until_refused(daemon: Daemon, queue: str, size: int) -> tuple[list[bytes], bytes]:
    """Send until a refusal; return the accepted bodies, and the text of the refusal."""
    taken: list[bytes] = []
    for number in range(1000):
        content = (b"%06d" % number).ljust(size, b".")
        sent = daemon.cli("send", queue, "--file", "-", input=content, check=False)
        if sent.returncode != 0:
            assert sent.returncode == 4
            return taken, sent.stderr
        taken.append(content)
    raise AssertionError("the disk is larger than all messages")


def test_a_send_to_a_full_disk_is_refused_with_the_free_space_and_a_remedy(
    daemon: Daemon, disk: SmallDisk
):
    taken, said = send_until_refused(daemon, "plain", 400_000)

    (line,) = said.decode().splitlines()
    assert "disk" in line
    assert "MB" in line
    assert "[quotas] disk_reserve" in line
    assert "receive" in line.lower()
    assert disk.free_bytes() > 0
    assert daemon.bodies("plain") == taken


def test_a_queue_that_filled_the_disk_can_be_emptied_and_filled_again(daemon: Daemon):
    def fill_and_empty() -> int:
        taken, _ = send_until_refused(daemon, "plain", 400_000)
        assert daemon.bodies("plain") == taken
        wait_for_room(daemon, 400_000)
        return len(taken)

    first = fill_and_empty()
    assert first > 6
    for _ in range(2):
        end = time.monotonic() + END_S  # the database returns pages in portions
        # Messages are on the disk twice until the log is copied, so 11 to 16 of them find room.
        while 3 * fill_and_empty() < 2 * first:
            assert time.monotonic() < end, "not all of the room has come back"


def test_on_a_disk_that_another_program_filled_sends_are_refused_and_receives_succeed(
    hosts: Hosts, daemon: Daemon, disk: SmallDisk
):
    remote = hosts.remote()
    listener = remote.listen()
    bodies = [b"%d" % number for number in range(50)]
    daemon.send_all("orders", bodies)
    daemon.send_all(listener.destination("q"), bodies, "--transactional")
    disk.fill()
    late, _ = send_until_refused(daemon, "orders", 10)  # the daemon checks once a second
    assert daemon.json("status")[0]["disk_full"]

    peer = listener.accept()
    for message in peer.receive_many(50):
        assert message.transaction is not None
    last = message.transaction
    peer.order_ack(last.sequence_id, last.number)
    received = daemon.bodies("orders")

    assert received == bodies + late
    wait_sent(daemon)
    assert daemon.alive


def test_messages_to_a_full_disk_are_not_acknowledged_and_arrive_when_there_is_room(
    hosts: Hosts, daemon: Daemon, disk: SmallDisk
):
    remote = hosts.remote()
    sequence = remote.new_sequence()
    orders = [remote.transactional("orders", sequence, number) for number in range(1, 6)]
    letters = [remote.message("plain", b"%d" % n, recoverable=True) for n in range(1, 6)]
    first = remote.connect(daemon.port)
    first.send_many([*orders[:2], *letters[:2]])
    first.wait_stored()
    first.wait_order_ack(sequence, 2)
    disk.fill()
    daemon.restart()

    for packets in (orders, letters):
        peer = remote.connect(daemon.port)
        assert refuses(peer, packets[2:])
    assert remote.order_acked[sequence] == 2
    assert daemon.bodies("orders") == [b"1", b"2"]
    disk.clear()
    wait_for_room(daemon)
    again = remote.connect(daemon.port)
    again.send_many([*orders[1:], *letters[1:]])
    again.wait_stored()
    again.wait_order_ack(sequence, 5)

    assert daemon.bodies("orders") == [
        b"3",
        b"4",
        b"5",
    ]  # exactly once; the first two are already received
    assert daemon.bodies("plain") == [b"1", b"2", b"3", b"4", b"5"]


def refuses(peer: Peer, packets: list[bytes]) -> bool:
    """Return whether the session ends without an acknowledgment of these messages."""
    before = len(peer.session_acks)
    try:
        peer.send_many(packets)
        peer.wait(lambda: False, 10)
    except Closed:
        return len(peer.session_acks) == before
    except TimeoutError:
        return False
    return False


def wait_for_room(daemon: Daemon, size: int = 10) -> None:
    """Wait for room: the daemon checks once a second, and refuses until then."""
    content = b"room?".ljust(size, b".")
    for _ in range(200):
        sent = daemon.cli("send", "orders", "--file", "-", input=content, check=False)
        if sent.returncode == 0:
            (found,) = daemon.json("receive", "orders", "--all")[-1:]
            assert body(found) == content
            return
    raise AssertionError("there is room, and nothing is taken")


def test_a_daemon_that_is_killed_on_a_full_disk_restarts_and_delivers_its_messages(
    daemon: Daemon, disk: SmallDisk
):
    bodies = [b"%d" % number for number in range(200)]
    daemon.send_all("plain", bodies)
    disk.fill()

    for start in range(0, 200, 50):
        daemon.restart()
        received = daemon.json("receive", "private$\\plain", "--count", "50")
        assert [body(each) for each in received] == bodies[start : start + 50]

    disk.clear()
    wait_for_room(daemon)


def test_a_completely_full_disk_stops_no_daemon(daemon: Daemon, disk: SmallDisk):
    """The daemon gives up its reserve, and another file takes that room too: no write succeeds.

    Meanwhile the daemon's own work continues: expiry, trimming of the event log, deletion of
    old outcomes, and release of pages.
    """
    bodies = [b"%d" % number for number in range(1500)]
    daemon.send_all("orders", bodies)
    daemon.send_all("plain", bodies[:30], "--time-to-be-received", "1s")
    disk.fill()
    status = wait_status(daemon, lambda status: status["disk_full_s"] is not None)
    assert status["disk_full"]
    received: list[bytes] = []
    ended = 0  # commands did not print the messages that they removed in a waiting commit
    while not status["commits_wait"]:
        assert len(received) < len(bodies), "the disk is never full to the last byte"
        try:
            some = daemon.json("receive", "private$\\orders", "--count", "20", timeout_s=5)
        except subprocess.TimeoutExpired:
            ended += 1
        else:
            received += map(body, some)
        disk.fill()  # the room of the reserve, and released pages
        (status,) = daemon.json("status")
    assert "the disk is full" in status["commits_wait"]
    wait_status(daemon, lambda now: now["disk_full_s"] > status["disk_full_s"] + 3)
    assert daemon.alive

    disk.clear()
    wait_status(daemon, lambda status: not status["disk_full"])
    found = list(map(int, received + daemon.bodies("orders")))
    assert found == sorted(set(found)), "in order, and none twice"
    missing = sorted(set(range(len(bodies))) - set(found))
    assert len(missing) in range(0, 20 * ended + 1, 20)
    assert all(missing[at + 19] == missing[at] + 19 for at in range(0, len(missing), 20))
    wait_status(daemon, lambda status: status["disk_full_s"] is None)
    log = daemon.log.read_text()
    assert log.count('"disk_full"') == log.count('"disk_has_room"') == 1
    (begun,) = daemon.json("events", "tail", "--kind", "disk_full")
    (over,) = daemon.json("events", "tail", "--kind", "disk_has_room")
    assert begun["message_id"] == over["message_id"] == ""
    assert "must stay free" in begun["reason"]
    assert "the disk was full for" in over["reason"]


def wait_status(daemon: Daemon, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        (status,) = daemon.json("status")
        if holds(status):
            return status
        time.sleep(0.1)
    raise AssertionError(f"the status stays: {status}\n{daemon.tail()}")


def test_a_relay_on_a_full_disk_passes_acknowledgments_on(hosts: Hosts, disk: SmallDisk):
    """Its messages leave it only when their destination has acknowledged them."""
    network = ["127.0.0.0/8"]
    by_timers = {"acknowledge_at_once": False, "retry_first": "100ms", "retry_max": "1s"}
    destination = hosts.daemon(start=False, peers={"relays": network}, delivery=by_timers)
    relay = hosts.daemon(
        queue_manager={"data": str(disk.folder / "data")},
        quotas=RESERVE,
        delivery={"retry_first": "100ms", "retry_max": "1s"},
        routing={
            "relay_for": network,
            "relay_to": ["*.example"],
            "routes": [f"*.example via 127.0.0.1:{destination.port}"],
        },
    )
    source = hosts.daemon(routing={"routes": [f"*.example via 127.0.0.1:{relay.port}"]})
    for number in range(3):
        source.cli(
            *("send", "DIRECT=OS:b.example\\private$\\missing", "--file", "-"),
            *("--transactional", "--dead-letter"),
            input=b"%d" % number,
        )
    wait_status(relay, lambda status: sum(each["messages"] for each in outgoing(relay)) == 3)
    disk.fill(leave_bytes=750_000)
    wait_status(relay, lambda status: status["disk_full"])

    destination.start()
    wait_status(source, lambda status: status["dead_letters"] == 3)

    found = source.json("receive", "system$;deadxact", "--all")
    assert [body(each) for each in found] == [b"0", b"1", b"2"]
    wait_status(relay, lambda status: not any(each["messages"] for each in outgoing(relay)))
    assert relay.json("status")[0]["disk_full"]


def outgoing(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.json("outgoing", "list")


def _write_page(file: BinaryIO) -> bool:
    """Write a page; return False if there is no room for it."""
    try:
        file.write(bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def test_the_release_of_pages_on_a_full_disk_stops_nothing(disk: SmallDisk):
    async def scenario() -> None:
        async with opened(disk.folder / "data") as storage:
            for arrival in range(200):
                key = message_key(16, 3, arrival)
                storage.batch.insert_message(key, b"x" * 20_000, 1)
            await durable(storage)
            await storage.batch.run(lambda db: db.execute("DELETE FROM message").rowcount)
            disk.fill()

            assert await storage.vacuum(1000) == 0

            disk.clear()
            storage.batch.insert_message(message_key(16, 3, 500), b"after", 1)
            await durable(storage)

    asyncio.run(scenario())
