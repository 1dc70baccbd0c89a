"""The door with rhea, the AMQP client of JavaScript."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.amqp.door import door_of, program_missing
from tests.patience import END_S
from tests.process.harness import Hosts

pytest.importorskip("proton")
PROGRAMS = Path(__file__).parent / "javascript"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs and the packages that they need."""
    if program_missing("node") or program_missing("npm"):
        pytest.skip("node and npm are needed for the clients in JavaScript")
    folder = tmp_path_factory.mktemp("javascript") / "programs"
    shutil.copytree(PROGRAMS, folder)
    done = subprocess.run(
        ["npm", "ci", "--silent", "--no-audit", "--no-fund"],
        cwd=folder, capture_output=True, text=True, timeout=END_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"npm cannot install rhea: {done.stderr[-300:]}")
    return folder


def node(folder: Path, *arguments: str) -> str:
    """Run a program; return its output."""
    done = subprocess.run(
        ["node", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=END_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rhea_sends_receives_and_settles(hosts: Hosts, programs: Path) -> None:
    with door_of(hosts, "orders") as door:
        assert node(programs, "exchange.js", str(door.port), "orders") == "exchanged 11\n"
        assert door.daemon.count("orders") == 0
