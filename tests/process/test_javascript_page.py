"""docs/clients/javascript.md, followed word for word on two hosts.

Only what comes from elsewhere is different: qmd is that of this environment, and `npm install` runs
outside of the hosts, which have no way to the internet.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.patience import END_S
from tests.process.command_line import ROOT
from tests.process.two_hosts import TwoHosts, why_not

PAGE = ROOT / "docs" / "clients" / "javascript.md"
#: Events that a command logs when it is ready, by its last word.
READY = {"serve": ('"started"',), "--doors": ('"amqp_door_open"', '"door_started"')}

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif(shutil.which("npm") is None, reason="node and npm are needed"),
]


class Step(NamedTuple):
    """A command on a host, or a file in its folder."""

    host: str
    command: str
    file: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield what a reader does, in order; a heading names the host of the following commands."""
    host, file, block = "", "", None
    for line in page.splitlines():
        if block is not None:
            if line != "```":
                block.append(line)
                continue
            yield Step(host, "\n".join(block) + "\n", file)
            block = None
        elif line.startswith("#"):
            host = found[1] if (found := re.search(r"`(host[ab])`", line)) else host
        elif line.startswith("    "):
            yield Step(host, line.strip())
        elif line.startswith("```"):
            block = []
        elif found := re.fullmatch(r"`([\w.]+)`:", line):
            file = found[1]


def install(folder: Path, command: str) -> None:
    done = subprocess.run(
        f"{command} --no-audit --no-fund", shell=True, cwd=folder, capture_output=True, text=True,
        timeout=END_S, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"npm cannot install: {done.stderr[-300:]}")


def wait_for(log: Path, events: tuple[str, ...]) -> None:
    deadline = time.monotonic() + END_S
    while not all(each in log.read_text() for each in events):
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


def follow(hosts: TwoHosts, step: Step) -> str:
    """Do a step; return the output of its command."""
    folder = hosts.folder(step.host)
    if step.file:
        (folder / step.file).write_text(step.command)
        return ""
    if step.command.startswith("npm install"):
        install(folder, step.command)
        return ""
    if (events := READY.get(step.command.split()[-1])) is not None:
        log = folder / "serve.log"
        hosts.start(step.host, step.command, log)
        wait_for(log, events)
        return ""
    exported = re.fullmatch(r"export (\w+)=\$\((.*)\)", step.command)
    done = hosts.run(step.host, exported[2] if exported else step.command)
    assert done.returncode == 0, f"{step}: {done.stdout}{done.stderr}"
    if exported:
        hosts.set(step.host, exported[1], done.stdout.strip())
    return done.stdout


def test_the_page_leads_to_messages_on_both_hosts(tmp_path: Path) -> None:
    outputs: dict[str, str] = {}
    with TwoHosts(tmp_path) as hosts:
        for step in steps(PAGE.read_text()):
            outputs[step.file or step.command] = follow(hosts, step)

    assert outputs["node send.js"] == "on disk; it will arrive once\n"
    (received,) = [each for name, each in outputs.items() if " receive orders " in name]
    assert "ten screws" in received
    assert "order 17" in received
    assert outputs["node receive.js"] == "order 17 ten screws\n"
    assert outputs["node over_http.mjs"] == "[ 'ten screws' ]\n"
    assert "id:" in outputs["node typed.mjs"]
