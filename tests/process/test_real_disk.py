"""A real file system that fails, hangs or has no inodes left under a daemon: ext4 and tmpfs."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.harness import Daemon, Hosts
from tests.process.test_hindrances import refused_start
from tests.process.test_process import IS_ROOT

EXT4_IOC_SHUTDOWN = 0x8004587D  # linux/fs/ext4/ext4.h
NO_LOG_FLUSH = 2  # not even the journal is written, as in a loss of power
IMAGE_BYTES = 64 * 1024 * 1024

pytestmark = pytest.mark.skipif(not IS_ROOT, reason="mounting a file system needs root")


class Ext4:
    """A file system in an image file; it can be mounted repeatedly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "disk"
        self._image = folder / "image"
        self.folder.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)

    def make(self) -> None:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed (package e2fsprogs)")
        subprocess.run(["mkfs.ext4", "-q", self._image], check=True, capture_output=True)
        command = ["mount", "-o", "loop", self._image, self.folder]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("this machine does not let us mount a file system")

    def remount(self) -> None:
        """Mount the file system without its cache: only the content of the image remains."""
        subprocess.run(["umount", self.folder], check=True)
        subprocess.run(["mount", "-o", "loop", self._image, self.folder], check=True)

    def die(self) -> None:
        """Make every access fail from now on; unsynced data is lost."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def turn_read_only(self) -> None:
        """Make the file system read-only, as the kernel does when it finds a fault."""
        subprocess.run(["mount", "-o", "remount,abort", self.folder], check=True)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the file system: writes and syncs wait."""
        subprocess.run(["fsfreeze", "-f", self.folder], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Ext4]:
    disk = Ext4(tmp_path)
    disk.make()
    yield disk
    subprocess.run(["umount", "--lazy", disk.folder], check=True)


@pytest.fixture
def daemon(disk: Ext4, hosts: Hosts) -> Iterator[Daemon]:
    daemon = hosts.daemon(
        queue_manager={"data": str(disk.folder / "data")}, quotas={"disk_reserve": "1MB"}
    )
    daemon.create("orders", transactional=True)
    yield daemon
    daemon.kill()  # before its file system disappears


def ended(daemon: Daemon) -> int:
    """Wait until the daemon stops by itself; return its exit code."""
    assert daemon.process is not None
    code = daemon.process.wait(END_S)
    daemon.process = None
    return code


@contextlib.contextmanager
def sending(daemon: Daemon, confirmed: int) -> Iterator[list[bytes]]:
    """Send messages; yield what is acknowledged when `confirmed` are, and add the others.

    The output is read all the time: a full pipe would stop the sender, and a daemon notices that
    its disk is dead when somebody wants a commit.
    """
    sender = daemon.spawn_cli("send", "orders", "{n}", "--count", "100000", "--json")
    assert sender.stdout is not None
    with sender.stdout as output:
        acknowledged = list(itertools.islice(output, confirmed))
        reader = threading.Thread(target=acknowledged.extend, args=(output,))
        reader.start()
        try:
            yield acknowledged
        finally:
            sender.terminate()  # it waits for the next daemon
            reader.join()
            sender.wait(END_S)


@pytest.mark.parametrize("confirmed", [1, 700, 3000])
def test_a_file_system_that_fails_under_load_loses_no_acknowledged_message(
    daemon: Daemon, disk: Ext4, confirmed: int
):
    with sending(daemon, confirmed) as acknowledged:
        disk.die()
        code = ended(daemon)

    assert code == 1
    # The disk failed; a read that fails first finds pages that are no pages of a database.
    assert any(f'"id":"{each}"' in daemon.tail() for each in ("QM-3015", "QM-3016"))
    disk.remount()
    daemon.start()
    bodies = daemon.bodies("orders")
    assert bodies == [b"%d" % number for number in range(1, len(bodies) + 1)]
    assert len(bodies) >= len(acknowledged) >= confirmed


def test_a_file_system_that_becomes_read_only_under_load_is_named(daemon: Daemon, disk: Ext4):
    with sending(daemon, 500) as acknowledged:
        disk.turn_read_only()
        code = ended(daemon)
    refused, reason = refused_start(daemon)

    assert (code, refused) == (1, 1)
    # The act that fails first decides; SQLite may have no more details, and the next start has.
    assert any(f'"id":"{each}"' in daemon.tail() for each in ("QM-3012", "QM-3016"))
    assert "mount it for writing" in reason
    disk.remount()
    daemon.start()
    bodies = daemon.bodies("orders")
    assert bodies == [b"%d" % number for number in range(1, len(bodies) + 1)]
    assert len(bodies) >= len(acknowledged)


def test_while_the_disk_hangs_nothing_is_acknowledged_and_afterwards_everything(
    daemon: Daemon, disk: Ext4, hosts: Hosts
):
    remote = hosts.remote()
    sequence = remote.new_sequence()
    peer = remote.connect(daemon.port)

    with disk.frozen():
        sender = daemon.spawn_cli("send", "orders", "late")
        peer.send_many([remote.transactional("orders", sequence, n) for n in range(1, 6)])
        with pytest.raises(subprocess.TimeoutExpired):
            sender.wait(1.5)
        assert sequence not in remote.order_acked
        assert daemon.json("status"), "it does not answer while it waits for the disk"

    assert sender.wait(END_S) == 0
    sender.communicate()
    peer.wait_order_ack(sequence, 5)
    assert sorted(daemon.bodies("orders")) == [b"1", b"2", b"3", b"4", b"5", b"late"]


def test_a_daemon_that_is_killed_while_the_disk_hangs_keeps_what_it_acknowledged(
    daemon: Daemon, disk: Ext4
):
    bodies = [b"%d" % number for number in range(100)]
    daemon.send_all("orders", bodies)
    assert daemon.process is not None

    with disk.frozen():
        sender = daemon.spawn_cli("send", "orders", "late")
        with pytest.raises(subprocess.TimeoutExpired):
            sender.wait(1.0)
        daemon.process.kill()  # it ends when its sync is over
    daemon.kill()
    sender.terminate()
    sender.communicate()

    daemon.start()
    found = daemon.bodies("orders")
    assert found[:100] == bodies
    assert found[100:] in ([], [b"late"])


def test_a_file_system_without_a_free_inode_is_reported_as_full(tmp_path: Path, hosts: Hosts):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=40", "qmd-test", folder]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us mount a small file system")
    try:
        daemon = hosts.daemon(
            queue_manager={"data": str(folder / "data")}, quotas={"disk_reserve": "1MB"}
        )
        daemon.create("plain")
        daemon.send_all("plain", [b"1", b"2"])
        daemon.terminate()
        others = 0
        with contextlib.suppress(OSError):
            for others in range(1000):
                (folder / f"other{others}").touch()
        assert 0 < others < 40

        code, reason = refused_start(daemon)

        assert code == 1
        assert "the disk is full: free space on it" in reason
        for number in range(others):
            (folder / f"other{number}").unlink()
        daemon.start()
        assert daemon.bodies("plain") == [b"1", b"2"]
        daemon.kill()
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
