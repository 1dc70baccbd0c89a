"""An active and a passive daemon on one folder: the passive one takes over when the other dies."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from storage.engine import mounts
from tests.patience import END_S, LOOK_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands
from tests.process.harness import Daemon, Hosts, body, free_port
from tests.process.remote_daemon import make_certificates


class Standby:
    """A second daemon on the folder of another one."""

    def __init__(self, active: Daemon) -> None:
        self.active = active
        self._log = active.folder / f"standby-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "--config", str(active.config), "serve", "--standby"],
                cwd=ROOT, stdout=log, stderr=log, env=environment_of_commands(),
            )  # fmt: skip

    def has_logged(self, event: str) -> None:
        """Wait until its log has an event."""
        deadline = time.monotonic() + END_S
        while f'"event":"{event}"' not in self._log.read_text():
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def takes_over(self) -> None:
        """Wait until it serves in place of the active one."""
        deadline = time.monotonic() + END_S
        while self.active.cli("status", check=False).returncode != 0:
            assert time.monotonic() < deadline, "the standby does not serve"
            time.sleep(LOOK_S)
            assert self.process.poll() is None, "the standby has ended"

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=END_S)


def test_a_standby_takes_over_from_a_killed_daemon(hosts: Hosts) -> None:
    active = hosts.daemon()
    peer = hosts.daemon()
    active.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{active.port}\\private$\\orders"
    peer.send_all(destination, [b"%d" % number for number in range(20)], "--transactional")
    active.wait_for("orders", 20)
    standby = Standby(active)
    try:
        assert standby.process.poll() is None
        active.kill()
        standby.takes_over()
        peer.send_all(destination, [b"%d" % number for number in range(20, 40)], "--transactional")
        messages = active.wait_for("orders", 40)
        assert [int(body(each)) for each in messages] == list(range(40))
    finally:
        standby.end()


def test_a_standby_survives_a_reload_and_takes_over_with_the_present_configuration(
    hosts: Hosts,
) -> None:
    active = hosts.daemon()
    standby = Standby(active)
    try:
        standby.has_logged("standby")
        standby.process.send_signal(signal.SIGHUP)
        active.configure({"delivery": {"window_size": 32}})  # it needs a restart
        active.kill()
        standby.takes_over()
        assert active.json("config", "diff") == []
    finally:
        standby.end()


def test_a_standby_takes_over_with_tls_that_was_enabled_while_it_waited(hosts: Hosts) -> None:
    active = hosts.daemon()
    standby = Standby(active)
    port = free_port()
    try:
        standby.has_logged("standby")
        make_certificates(active.folder)
        active.configure({"remote": {"enabled": True, "port": port}})
        (active.folder / "remote-tokens").touch(mode=0o600)
        active.kill()
        standby.takes_over()
        context = ssl.create_default_context(cafile=active.folder / "ca.crt")
        with (
            socket.create_connection(("127.0.0.1", port), END_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secret,
        ):
            assert secret.version() is not None
    finally:
        standby.end()


def test_a_standby_takes_over_in_spite_of_an_error_in_the_configuration(hosts: Hosts) -> None:
    active = hosts.daemon()
    standby = Standby(active)
    text = active.config.read_text()
    try:
        standby.has_logged("standby")
        active.config.write_text(f"{text}\n[delivery]\nwindow_size = 'many'\n")
        active.kill()
        standby.has_logged("configuration_not_reloaded")
        active.config.write_text(text)
        standby.takes_over()
    finally:
        standby.end()


def catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> signal.SIGTERM - 1 & 1)


def test_a_signal_to_reload_does_not_end_a_daemon_that_starts(hosts: Hosts) -> None:
    daemon = hosts.daemon(start=False)
    process = daemon.spawn_cli("serve")
    try:
        deadline = time.monotonic() + END_S
        while daemon.cli("status", check=False).returncode != 0:
            assert time.monotonic() < deadline
            assert process.poll() is None, "it has ended"
            if catches_sigterm(process.pid):
                process.send_signal(signal.SIGHUP)
    finally:
        process.terminate()
        process.communicate(timeout=END_S)


def test_one_of_two_standbys_takes_over_and_the_other_one_waits(hosts: Hosts) -> None:
    active = hosts.daemon()
    first, second = Standby(active), Standby(active)
    try:
        time_until = time.monotonic() + END_S
        while active.json("status")[0]["uptime_s"] < 1.5:  # both have tried several times
            assert time.monotonic() < time_until
            time.sleep(LOOK_S)
        assert first.process.poll() is second.process.poll() is None
        active.kill()
        first.takes_over()
        assert first.process.poll() is second.process.poll() is None, "one serves, one waits"
        holder = int((active.folder / "data" / "lock").read_text())
        assert holder in (first.process.pid, second.process.pid)
    finally:
        for each in (first, second):
            each.process.kill()
            each.process.wait()


def test_a_network_file_system_is_refused_with_its_reason(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real table of mounts, with another type for the file system of the folder."""
    real = mounts.MOUNTS.read_text()
    device = (tmp_path.stat().st_dev >> 8 & 0xFFF, tmp_path.stat().st_dev & 0xFF)
    changed = tmp_path / "mountinfo"
    lines = []
    for line in real.splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == f"{device[0]}:{device[1]}":
            after = "nfs4 " + after.partition(" ")[2]
        lines.append(f"{before} - {after}")
    changed.write_text("\n".join(lines))

    assert mounts.network_file_system(tmp_path, changed) == "nfs4"
    assert mounts.network_file_system(tmp_path) == ""
