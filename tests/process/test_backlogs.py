"""Operations on many messages: in steps, and consistent after Ctrl-C at any moment."""

from __future__ import annotations

import signal
import subprocess
import time

from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands
from tests.process.harness import Hosts, body

COUNT = 30_000


def test_a_move_that_is_interrupted_continues_in_order(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", "later", transactional=True)
    lines = [b"%d" % number for number in range(COUNT)]
    daemon.send_all("private$\\orders", lines, "--transactional")
    command = subprocess.Popen(
        [*COMMAND, "--config", str(daemon.config), "move", "orders", "later", "--all"],
        cwd=ROOT,
        env=environment_of_commands(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + END_S
    while not daemon.count("later") and command.poll() is None:
        assert time.monotonic() < deadline
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=END_S)

    moved = daemon.count("later")
    assert moved + daemon.count("orders") == COUNT, "each message is in one queue"
    if command.returncode:  # it did not end before the signal
        assert command.returncode == 130, said
        assert b"the same command continues" in said
    daemon.cli("move", "orders", "later", "--all")
    assert daemon.count("orders") == 0
    assert [body(each) for each in daemon.peek("later")] == lines, "in order"
