"""The recipe for keepalived of docs/standby.md, with two computers in network namespaces.

    python -m tests.netns.takeover [--messages N]

The configuration and the scripts are those of the manual.  Both computers share one folder in place
of a replicated disk, so the commands for DRBD and mounts are left out; in place of systemd the
script starts the daemon itself.  The daemon is killed, then the computer: keepalived and the daemon
at once.  Each time the other computer must serve all messages at the address that moves.

Exit code 2: this machine lacks keepalived, or lets us make no networks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from qmd.client import blocking, new_message

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ROOT / "docs/standby.md"
HOSTS = ("x", "y")
ADDRESS = "10.0.0.10"
PATIENCE_S = 120.0
BATCH = 500
SKIPPED = 2


def block(heading: str) -> str:
    """Return the indented block of the manual after a text."""
    lines = MANUAL.read_text().partition(heading)[2].splitlines()[1:]
    found: list[str] = []
    for line in lines:
        if line.startswith("    "):
            found.append(line.removeprefix("    "))
        elif found and line.strip():
            break
        elif found:
            found.append("")
    return "\n".join(found).strip() + "\n"


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Computer:
    """One of the two: a network namespace, its files, and keepalived in it."""

    def __init__(self, name: str, folder: Path, disk: Path, priority: int) -> None:
        self.name, self.folder = name, folder / name
        self.namespace = f"qmd-take-{os.getpid()}-{name}"
        self.socket = self.folder / "qmd.sock"
        self.active = self.folder / "is-active"
        self._daemon = self.folder / "daemon.pid"
        self._keepalived: subprocess.Popen[bytes] | None = None
        self.folder.mkdir()
        qmd = shlex.join([sys.executable, "-m", "qmd", "--config", str(disk / "qmd.toml")])
        environment = (
            f"cd {ROOT}; export QMD_CONTROL_SOCKET={self.socket} PYTHONPATH={ROOT}"
            " QMD_QUEUE_MANAGER_RUN_AS_ROOT=true\n"
        )
        # systemd returns when the daemon has reported that it is ready.
        start = (
            f"nohup {qmd} serve >>{self.folder}/log 2>&1 & echo $! >{self._daemon}\n"
            f"until test -S {self.socket}; do sleep 0.1; done"
        )
        stop = (
            f"test -e {self._daemon} && kill -9 $(cat {self._daemon})\n"
            f"rm -f {self._daemon} {self.socket}"
        )
        for script in ("active", "passive", "lives"):
            text = block(f"`/usr/local/sbin/qmd-{script}`")
            text = re.sub(r"^(drbdadm|mount|umount) .*\n", "", text, flags=re.MULTILINE)
            text = text.replace("systemctl start qmd", start).replace("systemctl stop qmd", stop)
            text = text.replace("/usr/local/bin/qmd", qmd)
            text = text.replace("/run/qmd-is-active", str(self.active))
            head, _, rest = text.partition("\n")
            file = self.folder / f"qmd-{script}"
            file.write_text(f"{head}\n{environment}{rest}")
            file.chmod(0o700)
        text = block("`/etc/keepalived/keepalived.conf`")
        text = text.replace("/usr/local/sbin/", f"{self.folder}/").replace("eth0", "cable")
        text = text.replace("priority 100", f"priority {priority}")
        (self.folder / "keepalived.conf").write_text(text)

    def start(self) -> None:
        """Start keepalived."""
        with (self.folder / "keepalived.log").open("ab") as log:
            self._keepalived = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self.namespace, "keepalived"),
                    *("--dont-fork", "--log-console", "--vrrp"),
                    *("--use-file", str(self.folder / "keepalived.conf")),
                    *("--pid", str(self.folder / "pid"), "--vrrp_pid", str(self.folder / "pid2")),
                ],
                stdout=log,
                stderr=log,
            )

    def kill_daemon(self) -> None:
        os.kill(int(self._daemon.read_text()), signal.SIGKILL)

    def kill(self) -> None:
        """Kill everything at once, as a loss of power does; the address goes with the computer."""
        for file in (self.folder / "pid", self.folder / "pid2", self._daemon):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        if self._keepalived is not None:
            self._keepalived.kill()
            self._keepalived.wait()
        with contextlib.suppress(subprocess.CalledProcessError):
            run("ip", "-n", self.namespace, "address", "del", f"{ADDRESS}/32", "dev", "cable")

    @property
    def has_address(self) -> bool:
        return ADDRESS in run("ip", "-n", self.namespace, "-4", "address", "show")

    def messages(self) -> int | None:
        """Return how many messages its daemon has; None: it does not answer."""
        try:
            with blocking.connect(self.socket) as qm:
                return int(qm.show_queue("orders")["messages"])
        except Exception:
            return None

    def tail(self) -> str:
        logs = [self.folder / "keepalived.log", self.folder / "log"]
        return "".join(each.read_text()[-1500:] for each in logs if each.exists())


def until(holds: Callable[[], object], computers: list[Computer], what: str) -> float:
    """Wait for a condition; return after how many seconds it held."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + PATIENCE_S:
            raise AssertionError("\n".join([what, *(each.tail() for each in computers)]))
        time.sleep(0.05)
    return time.monotonic() - began


def take_over(messages: int, folder: Path) -> None:
    """Run the recipe, and kill twice."""
    disk = folder / "disk"
    run(sys.executable, "-m", "qmd", "init", str(disk), "--listen", "0.0.0.0:1801")
    x, y = computers = [
        Computer(name, folder, disk, priority)
        for name, priority in zip(HOSTS, (100, 90), strict=True)
    ]
    try:
        for each in computers:
            run("ip", "netns", "add", each.namespace)
        run("ip", "-n", x.namespace, "link", "add", "cable", "type", "veth", "peer", "name",
            "cable", "netns", y.namespace)  # fmt: skip
        for number, each in enumerate(computers, 1):
            run("ip", "-n", each.namespace, "address", "add", f"10.0.0.{number}/24", "dev", "cable")
            for device in ("cable", "lo"):
                run("ip", "-n", each.namespace, "link", "set", device, "up")
        x.start()
        until(lambda: x.active.exists(), computers, "nothing is active")
        y.start()
        until(lambda: x.socket.exists(), computers, "the daemon does not start")
        with blocking.connect(x.socket) as qm:
            qm.create_queue("orders")
            for _ in range(0, messages, BATCH):
                qm.send_many([new_message("orders", b"x" * 1500)] * min(BATCH, messages))
        count = x.messages()
        time.sleep(5)
        assert x.has_address, "it has not stayed the active one"
        assert not y.active.exists(), "two are active"

        x.kill_daemon()
        seconds = until(lambda: y.messages() == count, computers, "y does not take over")
        assert y.has_address
        assert not x.has_address
        print(f"a killed daemon: the other computer serves {count} messages after {seconds:.1f} s")
        # The failed one is passive now, and can take over in its turn.
        until(lambda: not x.active.exists(), computers, "x is not passive")
        time.sleep(3)
        y.kill()
        seconds = until(lambda: x.messages() == count, computers, "x does not take over")
        print(f"a killed computer: the other one serves {count} messages after {seconds:.1f} s")
    finally:
        for each in computers:
            each.kill()
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", each.namespace)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.netns.takeover")
    parser.add_argument("--messages", type=int, default=10_000)
    given = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "keepalived"))):
        print("keepalived, ip or root is missing")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="qmd-take-") as folder:
        take_over(given.messages, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
