"""Transactions of real applications during kills and cuts of the application and its daemon."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import END_S, LOOK_S
from tests.process.command_line import ROOT
from tests.process.harness import Daemon, Hosts, body
from tests.process.proxy import ControlProxy
from tests.process.test_two_daemons import QUICK, direct, texts, wait_count

COUNT = 300


def start_worker(socket: Path, *destinations: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.process.transaction_worker", str(socket), *destinations],
        cwd=ROOT,
    )


def bodies(daemon: Daemon, queue: str) -> list[bytes]:
    return [body(message) for message in daemon.peek(queue)]


@pytest.mark.parametrize(
    "victim", ["the application", "the daemon", "the receiving daemon", "the socket"]
)
def test_every_message_is_in_every_queue_once_and_in_order_with_any_kill(hosts: Hosts, victim: str):
    near, far = hosts.daemon(delivery=QUICK), hosts.daemon(delivery=QUICK)
    near.create("in", "out", transactional=True)
    far.create("one", "two", transactional=True)
    near.send_all("in", texts(1, COUNT))
    destinations = direct(far, "one"), direct(far, "two")
    dice = random.Random(victim)
    cable = ControlProxy(near.folder)
    socket = cable.path if victim == "the socket" else near.folder / "qmd.sock"

    worker = start_worker(socket, *destinations)
    for _ in range(6):
        time.sleep(dice.uniform(0.2, 0.5))
        if victim == "the application":
            worker.kill()
            worker.wait()
            worker = start_worker(socket, *destinations)
        elif victim == "the daemon":
            near.kill()
            near.start()
        elif victim == "the receiving daemon":
            far.kill()
            far.start()
        else:
            cable.wait_passed(dice.randrange(2000))
            cable.cut()
    assert worker.wait(END_S) == 0
    cable.close()

    assert near.count("in") == 0, "no receive was lost or undone"
    assert bodies(near, "out") == texts(1, COUNT)
    for queue in ("one", "two"):
        wait_count(far, queue, COUNT)
        assert bodies(far, queue) == texts(1, COUNT)


def test_a_program_decides_whether_a_message_has_been_received(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    daemon.send("orders", b"a body", "--label", "order 17")

    failed = daemon.cli("receive", "orders", "--transaction", "--exec", "exit 3", check=False)
    assert failed.returncode == 1
    assert b"exit code 3" in failed.stderr
    (message,) = daemon.peek("orders")
    assert message["abort_count"] == 1

    kept = daemon.folder / "kept"
    daemon.cli(
        "receive",
        "orders",
        "--transaction",
        "--exec",
        f'cat > {kept} && echo " $QMD_LABEL $QMD_ABORT_COUNT" >> {kept}',
    )
    assert kept.read_text() == "a body order 17 1\n"
    assert daemon.count("orders") == 0


def test_a_program_that_is_interrupted_finishes_its_message(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    daemon.send_all("orders", [b"1", b"2"])
    began, kept = daemon.folder / "began", daemon.folder / "kept"
    receiving = daemon.spawn_cli(
        "receive",
        "orders",
        "--follow",
        "--transaction",
        "--exec",
        f"touch {began}; sleep 0.5; cat >> {kept}",
    )
    while not began.exists():
        time.sleep(0.01)
    receiving.send_signal(signal.SIGINT)
    assert receiving.wait(END_S) == 130
    receiving.stdout.close()  # type: ignore[union-attr]
    assert kept.read_bytes() == b"1"
    assert daemon.bodies("orders") == [b"2"]


def test_open_transactions_are_listed(hosts: Hosts):
    daemon = hosts.daemon(transactions={"idle": "1s"})
    daemon.create("orders", transactional=True)
    daemon.send("orders", b"x")
    receiving = daemon.spawn_cli("receive", "orders", "--transaction", "--exec", "sleep 30")
    deadline = time.monotonic() + END_S
    while not (found := daemon.json("transaction", "list")) or not found[0]["received"]:
        assert time.monotonic() < deadline
    assert found[0]["state"] == "active"
    (shown,) = daemon.json("transaction", "show", found[0]["transaction"])
    assert shown["queues"] == ["private$\\orders"]
    while daemon.json("transaction", "list"):
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
    assert daemon.peek("orders")[0]["abort_count"] == 1, "it was idle for too long"
    receiving.kill()
    receiving.wait()
    receiving.stdout.close()  # type: ignore[union-attr]
