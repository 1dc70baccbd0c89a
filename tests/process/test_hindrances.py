"""Obstacles between a daemon and its data: it reports cause and remedy, and loses nothing."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands
from tests.process.data_folder import database, held_disk
from tests.process.harness import Daemon, Hosts
from tests.process.test_process import IS_ROOT

BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    """Yield a daemon with messages."""
    daemon = hosts.daemon()
    daemon.create("plain")
    daemon.send_all("plain", BODIES)
    return daemon


def data(daemon: Daemon) -> Path:
    return daemon.folder / "data"


def refused_start(daemon: Daemon, *wrapper: str) -> tuple[int, str]:
    """Return the exit code and the logged reason of a `serve` that must fail."""
    done = subprocess.run(
        [*wrapper, *COMMAND, "--config", str(daemon.config), "serve"],
        cwd=ROOT, env=environment_of_commands(), capture_output=True, timeout=END_S, check=False,
    )  # fmt: skip
    (line,) = done.stderr.decode().splitlines()
    event: dict[str, Any] = json.loads(line)
    assert event["level"] == "critical"
    return done.returncode, event["reason"]


def starts_with_all(daemon: Daemon) -> bool:
    daemon.start()
    return daemon.bodies("plain") == BODIES


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    for command in (
        ["mount", "--bind", folder, folder],
        ["mount", "-o", "remount,ro,bind", folder],
    ):
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("this machine does not let us mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not IS_ROOT, reason="mounting a file system needs root")
@pytest.mark.parametrize("clean", [True, False])
def test_a_read_only_file_system_is_named(daemon: Daemon, clean: bool):
    if clean:
        daemon.terminate()
    daemon.kill()

    with read_only(data(daemon)):
        code, reason = refused_start(daemon)

    assert code == 1
    assert "read-only" in reason
    assert "mount it for writing" in reason
    assert starts_with_all(daemon)


# Root has all permissions, unless it drops this capability.
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.skipif(not IS_ROOT, reason="taking away the right needs to be root first")
@pytest.mark.parametrize("name", ["data", "data/queues.db", "data/queues.db-wal", "data/lock"])
def test_withdrawn_permissions_are_named(daemon: Daemon, name: str):
    daemon.kill()
    path = daemon.folder / name
    mode = path.stat().st_mode
    path.chmod(0)

    code, reason = refused_start(daemon, *UNPRIVILEGED)

    path.chmod(mode)
    assert code == 1
    assert "user 0 may read and write the folder" in reason
    assert starts_with_all(daemon)


def test_a_running_daemon_continues_when_its_folder_is_renamed(daemon: Daemon):
    data(daemon).chmod(0)
    try:
        daemon.send("plain", b"more")
        assert daemon.bodies("plain") == [*BODIES, b"more"]
    finally:
        data(daemon).chmod(0o700)


def test_while_another_program_locks_the_database_senders_wait(daemon: Daemon):
    with held_disk(daemon.folder):
        sender = daemon.spawn_cli("send", "private$\\plain", "late")
        with pytest.raises(subprocess.TimeoutExpired):
            sender.wait(1.5)
    assert sender.wait(END_S) == 0
    sender.communicate()

    assert daemon.bodies("plain") == [*BODIES, b"late"]


def test_a_file_that_is_no_database_is_not_changed(daemon: Daemon):
    daemon.terminate()
    kept = database(daemon.folder).rename(daemon.folder / "kept")
    (data(daemon) / "queues.db").write_bytes(b"something else" * 1000)

    code, reason = refused_start(daemon)

    assert code == 1
    assert "qmd check" in reason
    assert (data(daemon) / "queues.db").read_bytes() == b"something else" * 1000
    kept.rename(data(daemon) / "queues.db")
    assert starts_with_all(daemon)


@pytest.mark.parametrize(
    ("pragma", "words"),
    [
        ("user_version = 9999", "install the newer version again"),
        ("application_id = 7", "the database of another program"),
    ],
)
def test_a_database_of_a_newer_version_or_another_program_is_not_changed(
    daemon: Daemon, pragma: str, words: str
):
    daemon.terminate()
    name = pragma.partition(" ")[0]
    with closing(sqlite3.connect(database(daemon.folder))) as db:
        (before,) = db.execute(f"PRAGMA {name}").fetchone()
        db.execute(f"PRAGMA {pragma}")

    code, reason = refused_start(daemon)

    assert code == 78
    assert words in reason
    with closing(sqlite3.connect(database(daemon.folder))) as db:
        db.execute(f"PRAGMA {name} = {before}")
    assert starts_with_all(daemon)


def start_failed(daemon: Daemon, exit_code: int) -> dict[str, Any]:
    """Return the line of the log with the reason of the failed start."""
    done = subprocess.run(
        [*COMMAND, "--config", str(daemon.config), "serve"],
        cwd=ROOT, env=environment_of_commands(), capture_output=True, timeout=END_S, check=False,
    )  # fmt: skip
    assert done.returncode == exit_code
    (line,) = [line for line in done.stderr.decode().splitlines() if "start_failed" in line]
    event: dict[str, Any] = json.loads(line)
    return event


@pytest.mark.parametrize(
    ("settings", "code", "id", "exit_code"),
    [
        ({"listen": {"address": "192.0.2.1"}}, "address_not_here", "QM-3103", 1),
        ({"control": {"group": "no such group"}}, "control_group_unknown", "QM-3107", 78),
        ({"control": {"socket": "/nowhere/qmd.sock"}}, "control_socket_failed", "QM-3106", 78),
        (
            {"listen": {"ping": True, "ping_port": "TAKEN"}},
            "ping_port_failed",
            "QM-3108",
            1,
        ),
        ({"listen": {"port": "TAKEN"}}, "port_in_use", "QM-3102", 1),
        (
            {"remote": {"enabled": True, "plain_on_loopback": True, "port": "TAKEN"}},
            "remote_control_failed",
            "QM-3303",
            1,
        ),
        (
            {"remote": {"enabled": True, "certificate": "/nowhere.pem", "key": "/nowhere.key"}},
            "remote_control_failed",
            "QM-3303",
            78,
        ),
        (
            {"remote": {"enabled": True, "plain_on_loopback": True, "address": "0.0.0.0"}},
            "remote_not_secret",
            "QM-3304",
            78,
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_reason_not_to_start_has_an_id_of_its_own(
    hosts: Hosts, settings: dict[str, dict[str, Any]], code: str, id: str, exit_code: int
):
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("127.0.0.1", 0))
        taken = {"port": tcp.getsockname()[1], "ping_port": udp.getsockname()[1]}
        chosen = {
            section: {
                key: taken[key] if value == "TAKEN" else value for key, value in values.items()
            }
            for section, values in settings.items()
        }
        daemon = hosts.daemon(start=False, **chosen)

        event = start_failed(daemon, exit_code)

    assert (event["code"], event["id"]) == (code, id)
    assert event["reason"]
