"""A process of `qmd bridge run`, with its file and its state."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forks import Process
from tests.patience import END_S
from tests.process.command_line import environment_of_commands, warm_process
from tests.process.harness import Daemon


class Bridges:
    """The bridges of a file, for a daemon."""

    def __init__(self, daemon: Daemon, folder: Path, **definitions: dict[str, Any]) -> None:
        self.daemon, self.folder = daemon, folder
        self.file, self.state_file = folder / "bridges.toml", folder / "bridges.json"
        self.log = folder / "bridge.log"
        self.process: subprocess.Popen[bytes] | Process | None = None
        self.define(**definitions)

    def define(self, **definitions: dict[str, Any]) -> None:
        lines: list[str] = []
        for name, keys in definitions.items():
            lines.append(f"[bridge.{name}]")
            lines += [f"{key} = {_toml(value)}" for key, value in keys.items()]
        self.file.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        assert self.process is None
        arguments = ["--config", str(self.daemon.config), "bridge", "run", "--file", str(self.file)]
        with self.log.open("ab") as log, open("/dev/null", "rb") as nothing:
            self.process = warm_process().spawn(
                [*arguments, "--state", str(self.state_file)],
                environment_of_commands(),
                nothing,
                log,
                log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_S)
        self.process = None
        return code

    def cli(self, *arguments: str, check: bool = True) -> list[dict[str, Any]]:
        done = self.daemon.cli(
            "bridge", *arguments, "--file", str(self.file), "--json", check=check
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def state(self) -> dict[str, dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):
            return {row["name"]: row for row in json.loads(self.state_file.read_text())["bridges"]}
        return {}

    def wait(self, condition: Callable[[], Any], what: str = "it") -> Any:
        """Poll until a condition holds; return its value."""
        deadline = time.monotonic() + END_S
        while not (found := condition()):
            if time.monotonic() > deadline:
                log = self.log.read_text(errors="replace") if self.log.exists() else ""
                raise AssertionError(f"waited for {what}; {self.state()}\n{log[-3000:]}")
            time.sleep(0.05)
        return found


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}" = {json.dumps(v)}' for k, v in value.items()) + "}"
    return json.dumps(value)
