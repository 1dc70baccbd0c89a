"""Two computers `hosta` and `hostb` with a wire between them, in network namespaces.

Each has its own names and its own empty folder.  Nothing is visible outside of the namespaces.  It
needs root, `ip`, `nsenter` and `unshare`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.patience import END_S

NAMES = ("hosta", "hostb")
TOOLS = ("ip", "nsenter", "unshare")


def why_not() -> str:
    """Return why this machine cannot have such computers; "": it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    try:
        subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], check=True)
    except subprocess.CalledProcessError as error:
        return f"this machine does not let us make namespaces: {error}"
    return ""


class TwoHosts:
    """The two computers; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spaces = {name: f"qmd-page-{os.getpid()}-{name}" for name in NAMES}
        self._programs: list[subprocess.Popen[bytes]] = []
        self._environments: dict[str, dict[str, str]] = {name: {} for name in NAMES}

    def __enter__(self) -> TwoHosts:
        first, second = self._spaces.values()
        for space in (first, second):
            _run("ip", "netns", "add", space)
        _run("ip", "link", "add", "wire", "netns", first, "type", "veth",
             "peer", "name", "wire", "netns", second)  # fmt: skip
        names = ["127.0.0.1 localhost"]
        for number, (name, space) in enumerate(self._spaces.items(), 1):
            inside = ("nsenter", f"--net=/run/netns/{space}", "ip")
            _run(*inside, "address", "add", f"10.78.0.{number}/24", "dev", "wire")
            for device in ("wire", "lo"):
                _run(*inside, "link", "set", "dev", device, "up")
            names.append(f"10.78.0.{number} {name}")
            self.folder(name).mkdir()
        (self._folder / "hosts").write_text("\n".join(names) + "\n")
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self._programs):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        for space in self._spaces.values():
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    def folder(self, name: str) -> Path:
        """Return the working folder of a computer."""
        return self._folder / name

    def set(self, name: str, variable: str, value: str) -> None:
        """Set a variable of the environment of later commands."""
        self._environments[name][variable] = value

    def run(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end."""
        return subprocess.run(
            self._words(name, command), cwd=self.folder(name), env=self._environment(name),
            capture_output=True, text=True, timeout=END_S, check=False,
        )  # fmt: skip

    def start(self, name: str, command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a command line; its output is in `log`."""
        with log.open("wb") as output:
            program = subprocess.Popen(
                self._words(name, command), cwd=self.folder(name), env=self._environment(name),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._programs.append(program)
        return program

    def _environment(self, name: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("QMD_")}
        return {**kept, "PATH": path, **self._environments[name]}

    def _words(self, name: str, command: str) -> list[str]:
        hosts = shlex.quote(str(self._folder / "hosts"))
        own = f"mount --bind {hosts} /etc/hosts && hostname {name} && {command}"
        space = f"--net=/run/netns/{self._spaces[name]}"
        return ["nsenter", space, "unshare", "--mount", "--uts", "sh", "-c", own]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
