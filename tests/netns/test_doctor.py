"""`qmd doctor` names the cause of broken networks, disks and processes: real ones, in namespaces.

Two computers, a and b, with a router between them; each has a daemon.  Each case breaks one thing,
and `qmd doctor` on a has to name it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qmd.client import blocking
from tests.netns.network import PORT, ROUTER, Network, why_not
from tests.patience import END_S
from tests.process.command_line import COMMAND
from tests.process.harness import Daemon

pytestmark = [pytest.mark.process, pytest.mark.slow]
EVERYWHERE = {"listen": {"address": "0.0.0.0", "port": PORT}, "peers": {"allow": ["0.0.0.0/0"]}}
AS_ROOT = {"QMD_QUEUE_MANAGER_RUN_AS_ROOT": "true"}
READER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
db.execute("SELECT count(*) FROM queue").fetchone()
print(flush=True)
sys.stdin.read()
"""


class Computer:
    """A computer of the network: its daemon, and commands that run there."""

    def __init__(self, network: Network, name: str, folder: Path) -> None:
        self._network, self._name = network, name
        self.address = network.address(name)
        self.daemon = Daemon(folder, settings=EVERYWHERE, warm=False)
        self.process: subprocess.Popen[bytes] | None = None
        self.shell = ""  # that runs before the program of the daemon

    def run(self, *command: str) -> str:
        return self._network.run(self._name, *command)

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        command = [*COMMAND, "--config", str(self.daemon.config), "serve"]
        shell = ["sh", "-c", f'{self.shell} exec "$@"', "sh"]
        with self.daemon.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._network.prefix(self._name), *shell, *command],
                env=os.environ | AS_ROOT, stdout=log, stderr=log,
            )  # fmt: skip
        self.qmd("status", tries=1000)

    def qmd(self, *words: str, tries: int = 1) -> str:
        """Run a command there until it succeeds, at most so many times; return its output."""
        while True:
            done = self._command(*words)
            if done.returncode == 0:
                return done.stdout
            tries -= 1
            assert tries, done.stderr
            assert self.process is None or self.process.poll() is None, self.daemon.log.read_text()

    def doctor(self, *words: str) -> list[dict[str, str]]:
        done = self._command("doctor", "--json", *words)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "--config", str(self.daemon.config), *words]
        return subprocess.run(
            [*self._network.prefix(self._name), *command],
            env=os.environ | AS_ROOT, capture_output=True, text=True, timeout=END_S, check=False,
        )  # fmt: skip

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None


class Scene:
    """The network and its computers; `after` mends what a case has broken."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.a = Computer(network, "a", folder / "a")
        self.b = Computer(network, "b", folder / "b")
        self.after = contextlib.ExitStack()

    def router(self, rule: str) -> None:
        """Add a rule for packets that the router forwards."""
        chain = ("inet", "q", "refusal")
        self.network.run(ROUTER, "nft", "add", "rule", *chain, *rule.split())
        self.after.callback(self.network.run, ROUTER, "nft", "flush", "chain", *chain)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if why := why_not():
        pytest.skip(why)
    network = Network()
    with contextlib.ExitStack() as ends:
        ends.callback(network.close)
        network.open()
        made = Scene(network, tmp_path_factory.mktemp("doctor"))
        for computer in (made.a, made.b):
            ends.callback(computer.stop)
            computer.start()
        made.b.qmd("queue", "create", "orders")
        yield made


@pytest.fixture(autouse=True)
def _mended(scene: Scene) -> Iterator[None]:
    yield
    scene.after.close()


def named(found: list[dict[str, str]], check: str, text: str) -> bool:
    return any(
        each["check"] == check
        and text in each["text"]
        and each["level"] in ("fault", "warning")
        and each["remedy"]
        for each in found
    )


# The way to another computer.


def packets_are_dropped(scene: Scene) -> tuple[str, str]:
    scene.router(f"tcp dport {PORT} drop")
    return "port", "does not answer within"


def packets_are_rejected(scene: Scene) -> tuple[str, str]:
    scene.router(f"tcp dport {PORT} reject with icmpx admin-prohibited")
    return "port", "is refused on the way"


def connections_are_reset(scene: Scene) -> tuple[str, str]:
    scene.router(f"tcp dport {PORT} reject with tcp reset")
    return "port", "no program listens"


def the_other_computer_is_off(scene: Scene) -> tuple[str, str]:
    """Take its cable away: the router gets no answer to its question for the address."""
    scene.b.run("ip", "link", "set", "dev", "wire", "down")
    scene.after.callback(scene.b.run, "ip", "route", "add", "default", "via", "10.77.2.1")
    scene.after.callback(scene.b.run, "ip", "link", "set", "dev", "wire", "up")
    return "port", "10.77.2.2"


def a_router_has_no_route(scene: Scene) -> tuple[str, str]:
    run = scene.network.run
    run(ROUTER, "ip", "address", "flush", "dev", "b")
    scene.after.callback(run, ROUTER, "ip", "address", "add", "10.77.2.1/24", "dev", "b")
    return "route", "a router on the way has none"


def there_is_no_route(scene: Scene) -> tuple[str, str]:
    scene.a.run("ip", "route", "del", "default")
    scene.after.callback(scene.a.run, "ip", "route", "add", "default", "via", "10.77.1.1")
    return "route", "There is no route"


def large_packets_are_dropped(scene: Scene) -> tuple[str, str]:
    """Drop large packets on the router, which says nothing: a black hole."""
    scene.router("ip daddr 10.77.2.2 ip length > 1300 drop")
    return "size", "drops large packets"


def the_way_back_is_closed(scene: Scene) -> tuple[str, str]:
    """Let b make no connections of its own: acknowledgments of applications do not come back."""
    scene.a.stop()
    scene.a.start()  # else the session that b has made is used
    scene.router("ip saddr 10.77.2.2 tcp flags & (syn|ack) == syn drop")
    return "probe", "did not come back"


WAYS = (packets_are_dropped, packets_are_rejected, connections_are_reset,
        the_other_computer_is_off, a_router_has_no_route, there_is_no_route,
        large_packets_are_dropped, the_way_back_is_closed)  # fmt: skip


@pytest.mark.parametrize("broken", WAYS, ids=lambda each: each.__name__)
def test_the_cause_on_the_way_is_named(
    scene: Scene, broken: Callable[[Scene], tuple[str, str]]
) -> None:
    check, text = broken(scene)
    words = ("--queue", "orders") if broken is the_way_back_is_closed else ()
    found = scene.a.doctor(scene.b.address, "--timeout", "8", *words)
    assert named(found, check, text), found


def test_a_way_without_faults_is_in_order(scene: Scene) -> None:
    found = scene.a.doctor(scene.b.address, "--timeout", "60")
    assert [each["level"] for each in found if each["check"] == "size"] == ["ok"], found
    assert not [each for each in found if each["level"] in ("fault", "warning")], found


# The host itself.


def the_daemon_is_stopped(scene: Scene) -> tuple[str, str]:
    assert scene.a.process is not None
    scene.a.process.send_signal(signal.SIGSTOP)
    scene.after.callback(scene.a.process.send_signal, signal.SIGCONT)
    return "process", "is stopped by a signal"


def another_program_has_the_lock(scene: Scene) -> tuple[str, str]:
    scene.a.stop()
    file = os.open(scene.a.daemon.folder / "data", os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    scene.after.callback(scene.a.start)
    scene.after.callback(os.close, file)
    return "lock", "has locked the data folder"


def few_descriptors(scene: Scene) -> tuple[str, str]:
    scene.a.stop()
    scene.a.shell = "ulimit -n 300;"
    scene.a.start()

    def again() -> None:
        scene.a.stop()
        scene.a.shell = ""
        scene.a.start()

    scene.after.callback(again)
    return "descriptors", "may open 300 files"


def a_reader_keeps_the_log(scene: Scene) -> tuple[str, str]:
    folder = scene.a.daemon.folder
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(folder / "data" / "queues.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    scene.after.enter_context(reader)
    scene.after.callback(reader.kill)
    reader.stdout.readline()
    with blocking.connect(folder / "qmd.sock") as qm:
        qm.create_queue("large")
        while (folder / "data" / "queues.db-wal").stat().st_size < 300_000_000:
            qm.send("large", bytes(4_000_000), delivery="recoverable")
    return "log", f"process {reader.pid} (python"


def the_disk_is_full(scene: Scene) -> tuple[str, str]:
    on_a_disk_of(scene, "size=80m")
    return "disk", "new messages are refused"


def no_inodes_are_left(scene: Scene) -> tuple[str, str]:
    on_a_disk_of(scene, "size=4g,nr_inodes=100")
    return "disk", "inodes left"


def the_disk_is_read_only(scene: Scene) -> tuple[str, str]:
    place = on_a_disk_of(scene, "size=4g")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    return "disk", "mounted read-only"


def on_a_disk_of(scene: Scene, options: str) -> Path:
    """Mount an empty file system for the data of a configuration of its own."""
    daemon = scene.a.daemon
    place = daemon.folder / "disk"
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    scene.after.callback(subprocess.run, ["umount", "-l", str(place)], check=True)
    scene.after.callback(daemon.config.write_text, daemon.config.read_text())
    daemon.configure({"queue_manager": {"data": str(place / "data")}})
    return place


HOST_FAULTS = (the_daemon_is_stopped, another_program_has_the_lock, few_descriptors,
               a_reader_keeps_the_log, the_disk_is_full, no_inodes_are_left,
               the_disk_is_read_only)  # fmt: skip


@pytest.mark.parametrize("broken", HOST_FAULTS, ids=lambda each: each.__name__)
def test_the_cause_on_the_host_is_named(
    scene: Scene, broken: Callable[[Scene], tuple[str, str]]
) -> None:
    check, text = broken(scene)
    found = scene.a.doctor()
    assert named(found, check, text), found
