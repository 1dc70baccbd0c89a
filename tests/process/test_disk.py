"""A disk that is full or fails: nothing acknowledged is lost, and a full queue can be drained."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.connection import Closed
from tests.process.data_folder import database
from tests.process.harness import Daemon, Hosts, body
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager

FIRST = 1000 << 32 | 1


def offer(peer: Peer, remote: RemoteQueueManager, count: int, size: int) -> None:
    """Send until all messages are acknowledged or the daemon closes the session."""
    with contextlib.suppress(Closed, TimeoutError):
        for number in range(1, count + 1):
            content = b"%d " % number + bytes(size)
            peer.send(remote.transactional("orders", FIRST, number, body=content), timeout_s=5)
        peer.wait_order_ack(FIRST, count, 5)


def numbers(daemon: Daemon) -> list[int]:
    return [int(body(message).split()[0]) for message in daemon.receive("orders")]


def test_a_failed_write_stops_the_daemon_and_loses_no_acknowledged_message(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    offer(peer, remote, 10, 4000)
    assert daemon.process is not None
    # Files that cannot grow: the next page of the write-ahead log cannot be written.
    log = database(daemon.folder).with_name(database(daemon.folder).name + "-wal")
    limit = log.stat().st_size + 200_000
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (limit, limit))

    second = remote.connect(daemon.port)
    offer(second, remote, 1000, 4000)
    acknowledged = remote.order_acked[FIRST]
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.process.wait(END_S)
    code = daemon.process.poll()

    assert code == 1, f"exit code {code}; {acknowledged} were acknowledged"
    assert "Traceback" not in daemon.tail().replace("\\n", "\n").split("storage_failed")[0]
    daemon.process = None
    daemon.start()
    kept = numbers(daemon)
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) >= acknowledged


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Yield a file system of 128 MB in memory; skip the test where none can be mounted."""
    folder = Path(f"/tmp/qmd-small-{os.getpid()}")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("cannot mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture
def cramped(hosts: Hosts, small_disk: Path) -> Daemon:
    """Yield a daemon with its data on the small disk, which outlives the daemon."""
    return hosts.daemon(start=False, queue_manager={"data": str(small_disk / "data")})


def test_a_full_disk_refuses_and_can_be_drained(cramped: Daemon, hosts: Hosts, small_disk: Path):
    daemon = cramped.start()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()

    # 200 MB are sent to a disk of 128 MB.
    offer(remote.connect(daemon.port), remote, 2000, 100_000)
    acknowledged = remote.order_acked[FIRST]
    assert 0 < acknowledged < 2000
    assert daemon.cli("status").returncode == 0, "it still serves"
    kept = numbers(daemon)
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) >= acknowledged
    # When it is drained, it accepts messages again.
    peer = remote.connect(daemon.port)
    for number in range(len(kept) + 1, len(kept) + 101):
        peer.send(remote.transactional("orders", FIRST, number, 0, body=b"%d" % number))
    peer.wait_order_ack(FIRST, len(kept) + 100)
    assert numbers(daemon) == list(range(len(kept) + 1, len(kept) + 101))
    daemon.kill()


def test_a_full_disk_refuses_a_send_with_a_reason(cramped: Daemon, small_disk: Path):
    daemon = cramped.start()
    daemon.create("plain")
    codes = set()
    for _ in range(60):
        done = daemon.cli(
            "send", "plain", "--recoverable", "--file", "-", input=bytes(4_000_000), check=False
        )
        codes.add(done.returncode)
        if done.returncode:
            break

    assert codes == {0, 4}
    assert b"disk" in done.stderr.lower()
    assert daemon.alive
    kept = len(daemon.receive("plain"))
    assert kept >= 3
    daemon.cli("send", "plain", "x", "--recoverable")
    assert daemon.bodies("plain") == [b"x"]
    daemon.kill()
