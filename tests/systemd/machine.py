"""A computer with systemd, in namespaces of this one, on which qmd is installed as a service.

Its root folder is this computer's, below an overlay in memory: what it writes is gone when it
ends.  `deploy/install.py` installs the service, with the Python of the system; the source and the
libraries of the tests are at SOURCE and LIBRARIES, where the sandboxes of the units let services
read them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path("/usr/bin/python3")
SYSTEMD = Path("/lib/systemd/systemd")
SOURCE = "/opt/qmd-source"
LIBRARIES = "/opt/qmd-libraries"
#: The command of an environment with all extras.
SPARK_COMMAND = "/usr/local/bin/qmd-spark"
CONFIG = "/etc/qmd/qmd.toml"

#: $0: a folder for the mounts; $1: the installed files; $2: the source; $3: the libraries.
_BOOT = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$0"
cd "$0"
mkdir upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=upper,workdir=work" root
cp -a "$1/." root/
mkdir -p root{SOURCE} root{LIBRARIES}
mount --bind "$2" root{SOURCE}
mount --bind "$3" root{LIBRARIES}
tr -d - </proc/sys/kernel/random/uuid >root/etc/machine-id
ln -sf /dev/null root/etc/systemd/system/systemd-networkd-wait-online.service
mount -t proc proc root/proc
mount -t sysfs sysfs root/sys
mount -t cgroup2 cgroup2 root/sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs root/run
mount -t tmpfs tmpfs root/tmp
mount --rbind /dev root/dev
mount --make-rshared root
ip link set lo up
exec chroot root /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    {SYSTEMD} --system --unit=basic.target --log-target=journal --show-status=0
"""


class Machine:
    """A running computer: its commands and its files."""

    def __init__(self, first: int) -> None:
        #: The process here that is the first one there.
        self.first = first

    def run(self, *words: str, input: str = "", fails: bool = False) -> str:
        """Run a command as root; return what it prints, errors too."""
        done = subprocess.run(
            ["nsenter", "--target", str(self.first), "--mount", "--pid", "--net", "--uts", "--ipc",
             "--root", "--wdns=/", "--", *words],
            env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, input=input,
            text=True, check=False, timeout=END_S,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, (words, done.stdout[-3000:])
        return done.stdout

    def qmd(self, *words: str, input: str = "") -> str:
        """Run a command of qmd as root."""
        return self.run("qmd", "--config", CONFIG, *words, input=input)

    def start(self, unit: str) -> None:
        """Start a unit, and wait until it has started, or has run if it runs once."""
        done = self.run("sh", "-c", 'systemctl start "$0" || echo failed', unit)
        assert "failed" not in done, self.log(unit)[-3000:]

    def systemctl(self, *words: str) -> str:
        return self.run("systemctl", "--no-pager", *words).strip()

    def state(self, unit: str, name: str = "ActiveState") -> str:
        """Return a property of a unit, such as MainPID."""
        return self.systemctl("show", "--property", name, "--value", unit)

    def log(self, unit: str) -> str:
        """Return the lines that a unit has logged."""
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")

    def write(self, place: str, text: str) -> None:
        """Write a file, readable for all users, and its folders."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', place, input=text)

    def edit(self, unit: str, text: str) -> None:
        """Do as `systemctl edit`."""
        self.write(f"/etc/systemd/system/{unit}.d/override.conf", text)
        self.systemctl("daemon-reload")

    def wait(self, unit: str, wanted: str, name: str = "ActiveState") -> None:
        """Wait until a property of a unit has a value."""
        deadline = time.monotonic() + END_S
        while (found := self.state(unit, name)) != wanted:
            assert time.monotonic() < deadline, (unit, name, found, self.log(unit)[-3000:])
            time.sleep(0.1)


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[Machine]:
    """Boot a computer; end it with all of its processes.

    Skips the test where that is impossible.
    """
    _skip_without_tools()
    installed, mounts = folder / "installed", folder / "mounts"
    mounts.mkdir()
    _install(installed)
    libraries = sysconfig.get_path("purelib")
    log = folder / "boot.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--kill-child",
             "--fork", "/bin/sh", "-c", _BOOT, mounts, installed, ROOT, libraries],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        machine = Machine(_first_process(process, log))
        _wait_for_boot(machine)
        machine.systemctl("daemon-reload")
        yield machine
    finally:
        process.kill()
        process.wait()


def _skip_without_tools() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can boot a computer in namespaces")
    tools = ("unshare", "nsenter", "mount", "chroot", "ip", "systemctl", "journalctl")
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    lacking += [str(path) for path in (SYSTEMD, PYTHON) if not path.exists()]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    words = [PYTHON, "-c", "import sys; print(sys.version_info[:2])"]
    if subprocess.check_output(words, text=True).strip() != str(sys.version_info[:2]):
        pytest.skip(f"{PYTHON} is another Python than that of the tests: it cannot load libraries")


def _install(folder: Path) -> None:
    """Install the service below a folder, with the libraries of this environment."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("purelib")}
    subprocess.run(
        [PYTHON, ROOT / "deploy/install.py", "--prefix", "/usr/local", "--destdir", folder],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    command = folder / SPARK_COMMAND.lstrip("/")
    command.write_text(
        f"#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={SOURCE}:{LIBRARIES} exec {PYTHON} -m qmd"
        ' "$@"\n'
    )
    command.chmod(0o755)


def _first_process(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the process that is the first one of the new computer, once it is systemd."""
    deadline = time.monotonic() + END_S
    while True:
        if process.poll() is not None:
            pytest.skip(f"this computer lets us boot no other one: {log.read_text()[-500:]}")
        with contextlib.suppress(OSError, IndexError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            first = int(children.split()[0])
            if Path(f"/proc/{first}/comm").read_text().strip() == "systemd":
                return first
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def _wait_for_boot(machine: Machine) -> None:
    deadline = time.monotonic() + END_S
    while True:
        with contextlib.suppress(AssertionError):
            machine.systemctl("is-active", "basic.target")
            break
        assert time.monotonic() < deadline, "systemd did not reach basic.target"
        time.sleep(0.1)
    for maker in ("systemd-sysusers", "systemd-tmpfiles"):
        words = ["--create"] if maker == "systemd-tmpfiles" else []
        machine.run(maker, *words, f"/usr/local/lib/{maker.removeprefix('systemd-')}.d/qmd.conf")
