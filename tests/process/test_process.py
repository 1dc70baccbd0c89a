"""The daemon as a process: start, stop, access rights, and its resources."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.command_line import COMMAND, ROOT, environment_of_commands, run
from tests.process.connection import Closed, Connection
from tests.process.data_folder import database
from tests.process.harness import Daemon, Hosts, body
from tests.process.processes import resident_bytes
from tests.process.remote import RemoteQueueManager

pytestmark = pytest.mark.program

MB = 1024 * 1024
IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    return daemon


# --- stopping -----------------------------------------------------------------------------


def test_an_idle_daemon_stops_with_exit_code_0(hosts: Hosts):
    daemon = hosts.daemon()

    assert daemon.terminate() == 0


def test_ctrl_c_stops_it_as_well(hosts: Hosts):
    daemon = hosts.daemon()
    assert daemon.process is not None

    daemon.process.send_signal(signal.SIGINT)

    assert daemon.process.wait(END_S) == 0
    daemon.process = None


def test_a_busy_daemon_stops_and_keeps_what_it_acknowledged(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    sequence = 1000 << 32 | 1
    listener = remote.listen()
    daemon.send(listener.destination("q"), b"out", "--transactional")
    out = listener.accept(auto_ack=False)
    out.receive()
    waiting = daemon.spawn_cli("receive", "orders", "--timeout", "60s")
    try:
        peer.send_many([remote.transactional("orders", sequence, n) for n in range(1, 301)])
        assert daemon.terminate() == 0
        with contextlib.suppress(Closed, TimeoutError):
            peer.wait_order_ack(sequence, 300, 1)
        assert waiting.wait(END_S) in (0, 5)
    finally:
        waiting.kill()
        waiting.communicate()
    acknowledged = remote.order_acked.get(sequence, 0)
    daemon.start()
    kept = [int(body(message)) for message in daemon.peek("orders")]

    # The waiting receiver may have taken the first message.
    assert kept in (list(range(1, len(kept) + 1)), list(range(2, len(kept) + 2)))
    assert kept[-1] >= acknowledged if kept else acknowledged <= 1


def test_it_stops_although_a_peer_does_not_read(hosts: Hosts):
    daemon = hosts.daemon()
    remote = hosts.remote()
    listener = remote.listen()
    for _ in range(3):
        daemon.cli(
            "send", listener.destination("q"), "--recoverable",
            "--body-base64", base64.b64encode(bytes(60_000)).decode(), "--count", "60",
        )  # fmt: skip
    connection = listener.accept_raw()
    peer = listener.accept(connection=connection)
    peer.receive()

    assert daemon.terminate() == 0


def test_it_can_be_started_and_stopped_repeatedly(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("plain")
    for number in range(3):
        daemon.send("plain", b"%d" % number, "--recoverable")
        assert daemon.terminate() == 0
        daemon.start()

    assert daemon.bodies("plain") == [b"0", b"1", b"2"]


def test_it_notifies_the_service_manager_of_its_life_and_its_stop(hosts: Hosts, tmp_path: Path):
    daemon = hosts.daemon(start=False)
    path = f"/tmp/qmd-notify-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        try:
            notify.settimeout(END_S)
            process = daemon.spawn(NOTIFY_SOCKET=path, WATCHDOG_USEC="400000")
            daemon.process = process
            notified: list[bytes] = []
            while b"READY=1" not in notified:
                notified += notify.recv(4096).split(b"\n")
            deadline = time.monotonic() + END_S
            while notified.count(b"WATCHDOG=1") < 3 and time.monotonic() < deadline:
                notified += notify.recv(4096).split(b"\n")
            assert notified.count(b"WATCHDOG=1") >= 3
            process.terminate()
            while b"STOPPING=1" not in notified:
                notified += notify.recv(4096).split(b"\n")
            assert process.wait(END_S) == 0
            daemon.process = None
        finally:
            os.unlink(path)


# --- starting -----------------------------------------------------------------------------


def refused_start(daemon: Daemon) -> tuple[int, str]:
    """Return the exit code and the output of a `serve` that must fail."""
    done = subprocess.run(
        [*COMMAND, "--config", str(daemon.config), "serve"],
        cwd=ROOT, env=environment_of_commands(), capture_output=True, timeout=END_S, check=False,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).decode()


def test_a_second_daemon_on_the_same_folder_is_refused_and_the_first_continues(daemon: Daemon):
    code, words = refused_start(daemon)

    assert code != 0
    assert "Traceback" not in words
    assert daemon.alive
    daemon.send("plain", b"x", "--recoverable")
    assert daemon.bodies("plain") == [b"x"]


def test_a_second_daemon_on_the_same_folder_is_refused_even_with_another_port(
    hosts: Hosts, daemon: Daemon
):
    other = hosts.daemon(
        start=False,
        queue_manager={"data": str(daemon.folder / "data")},
    )

    code, words = refused_start(other)

    assert code != 0
    assert "Traceback" not in words
    assert daemon.alive
    daemon.send("plain", b"x", "--recoverable")
    assert daemon.bodies("plain") == [b"x"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_second_daemon_is_refused_although_the_lock_file_was_removed(
    hosts: Hosts, daemon: Daemon, replaced: bool
):
    data = daemon.folder / "data"
    (data / "lock").unlink()
    if replaced:
        (data / "lock").touch(mode=0o600)  # it stays for other tests, which use this folder
    other = hosts.daemon(start=False, queue_manager={"data": str(data)})

    code, words = refused_start(other)

    assert code == 1
    assert "is in use by" in words
    assert "QM-3001" in words
    if not replaced:
        assert "the file lock, which would name it, was removed" in words
    assert daemon.alive
    daemon.send("plain", b"x", "--recoverable")
    daemon.restart()
    assert daemon.bodies("plain") == [b"x"]


def test_a_daemon_reports_an_occupied_port(hosts: Hosts, daemon: Daemon):
    other = hosts.daemon(start=False, listen={"port": daemon.port})

    code, words = refused_start(other)

    assert code != 0
    assert str(daemon.port) in words
    assert "Traceback" not in words


def test_the_socket_of_a_killed_daemon_is_no_obstacle(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("plain")

    daemon.restart()

    assert daemon.cli("status").returncode == 0


@pytest.mark.skipif(not IS_ROOT, reason="needs root to be refused as root")
def test_it_does_not_run_as_root_without_the_setting(hosts: Hosts):
    daemon = hosts.daemon(start=False, queue_manager={"run_as_root": False})

    code, words = refused_start(daemon)

    assert code != 0
    assert "root" in words
    assert "Traceback" not in words


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("[peers]\nsessions_maxx = 3\n", ["sessions_max", ":"]),
        ("[peer]\nsessions_max = 3\n", ["peers"]),
        ("[listen]\nport = 99999\n", ["port"]),
        ('[delivery]\nack_timeout = "20"\n', ["ack_timeout"]),
        ("[listen\n", []),
    ],
)
def test_a_wrong_configuration_is_explained_with_its_line(
    hosts: Hosts, change: str, expected: list[str]
):
    daemon = hosts.daemon(start=False)
    daemon.config.write_text(change)

    code, words = refused_start(daemon)

    assert code == 78
    assert len(words.strip().splitlines()) == 1
    assert f"{daemon.config}:" in words
    assert all(word in words for word in expected)


def test_init_never_touches_an_existing_configuration(hosts: Hosts):
    daemon = hosts.daemon(start=False)
    before = daemon.config.read_bytes()

    done = run(["init", str(daemon.folder), "--listen", "127.0.0.1:1"], check=False)

    assert done.returncode not in (0, 1) or b"exist" in done.stderr
    assert done.returncode != 0
    assert daemon.config.read_bytes() == before


# --- closed by default --------------------------------------------------------------------


def test_the_data_folder_and_the_control_socket_are_private(daemon: Daemon):
    sockets = [path for path in daemon.folder.rglob("*") if path.is_socket()]
    data = database(daemon.folder).parent

    assert stat.S_IMODE(daemon.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert len(sockets) == 1
    assert stat.S_IMODE(sockets[0].stat().st_mode) == 0o660
    for path in data.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o007, path


def test_no_core_dump_holds_a_body(daemon: Daemon):
    assert daemon.process is not None
    limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max core file size"))

    # One byte: the kernel makes no core for it, also where it would pipe one to a program.
    assert line.split()[4] in ("0", "1")


def test_it_listens_on_the_loopback_address_only(daemon: Daemon):
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [
        row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{daemon.port:04X}")
    ]

    assert listening == [f"0100007F:{daemon.port:04X}"]


def test_a_connection_of_an_unlisted_peer_is_closed_without_an_answer(hosts: Hosts):
    daemon = hosts.daemon(peers={"allow": ["127.0.0.2", "10.0.0.0/8"]})
    daemon.create("plain")
    remote = hosts.remote()
    unlisted = remote.adopt(Connection.open(daemon.port))
    unlisted.send_all_it_takes(wire.establish(client=remote.guid))
    assert unlisted.expect_closed() == []

    friend = remote.connect(daemon.port, source="127.0.0.2")
    friend.send(remote.message("plain", b"x", recoverable=True))
    friend.wait_stored()

    assert daemon.bodies("plain") == [b"x"]


def test_bodies_are_not_logged(hosts: Hosts):
    daemon = hosts.daemon(log={"level": "debug"})
    daemon.create("plain")
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"TOP-SECRET-BODY", recoverable=True))
    peer.send(remote.message("nowhere", b"TOP-SECRET-BODY", recoverable=True))
    peer.wait_stored()
    peer.connection.send(b"TOP-SECRET-BODY and no packet at all")
    peer.expect_closed()
    daemon.terminate()

    assert "TOP-SECRET" not in daemon.tail(10**6)


# --- resources ----------------------------------------------------------------------------


def test_an_idle_daemon_uses_little_memory_and_no_processor_time(hosts: Hosts):
    daemon = hosts.daemon()
    assert daemon.process is not None
    ticks = Path(f"/proc/{daemon.process.pid}/stat")

    def cpu_s() -> float:
        values = ticks.read_text().rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")

    # The work of the start comes first, however long it takes.
    end = time.monotonic() + END_S
    while True:
        before = cpu_s()
        time.sleep(2.0)
        if (busy_s := cpu_s() - before) <= 0.02 or time.monotonic() > end:
            break

    # structlog imports rich where it is installed, as here: 6 MB.
    assert resident_bytes(daemon.pid) < 57 * MB
    assert busy_s <= 0.02


def test_memory_does_not_grow_with_messages_on_disk(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    sequence = 1000 << 32 | 1
    content = bytes(20_000)
    before = resident_bytes(daemon.pid)

    peer.send_many(
        [remote.transactional("orders", sequence, n, body=content) for n in range(1, 5001)]
    )
    peer.wait_order_ack(sequence, 5000, 60)

    assert resident_bytes(daemon.pid) - before < 60 * MB, "100 MB wait on disk"


def test_sessions_that_came_and_went_cost_nothing(daemon: Daemon):
    def round_trip(count: int) -> None:
        for _ in range(count):
            with RemoteQueueManager() as remote:
                peer = remote.connect(daemon.port)
                peer.send(remote.message("plain", bytes(1000), recoverable=True))
                peer.wait_stored()

    round_trip(200)
    daemon.receive("plain")
    before = resident_bytes(daemon.pid)
    round_trip(600)
    daemon.receive("plain")

    assert resident_bytes(daemon.pid) - before < 8 * MB
