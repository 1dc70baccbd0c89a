"""`qmd serve --doors`: the daemon with its doors, which are started again when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands
from tests.process.harness import Daemon
from tests.process.http_door import HttpClient, HttpDoor

pytestmark = pytest.mark.program


def _doors(config: Path) -> list[int]:
    """Return the processes of the HTTP door of a configuration."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(config).encode() in words and b"http" in words:
            found.append(int(path.parent.name))
    return found


def _answers(port: int) -> bool:
    client = HttpClient(port, None)
    try:
        return client.ask("GET", "/readyz").status == 200
    except OSError:
        return False
    finally:
        client.close()


def _wait(condition: object) -> None:
    deadline = time.monotonic() + END_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_door_that_is_killed_is_started_again_and_ends_with_the_daemon(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "qmd", warm=False, settings={"amqp": {"enabled": False}})
    door = HttpDoor(daemon)
    command = [*COMMAND, "--config", str(daemon.config), "serve", "--doors"]
    with daemon.log.open("ab") as log:
        served = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, env=environment_of_commands()
        )
    try:
        _wait(lambda: _answers(door.port))
        (first,) = _doors(daemon.config)
        os.kill(first, signal.SIGKILL)
        _wait(lambda: (found := _doors(daemon.config)) and found != [first])
        _wait(lambda: _answers(door.port))
        assert served.poll() is None
        served.kill()
        served.wait()
        _wait(lambda: not _doors(daemon.config))
    finally:
        served.kill()
        served.wait()
