"""The programs on the pages for Python and C++ do what the pages say: one message each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.amqp.door import AmqpDoor, door_of, program_missing
from tests.patience import END_S
from tests.process.command_line import ROOT
from tests.process.harness import Hosts

pytest.importorskip("proton")


def program_of(page: str, language: str, door: AmqpDoor) -> str:
    """Return the program of a page, for a door on another port and a queue of its computer."""
    text = (ROOT / "docs" / "clients" / page).read_text()
    _, _, rest = text.partition(f"```{language}\n")
    program = rest.partition("```")[0].replace("5672", str(door.port))
    return program.replace("orders@hostb", "orders")


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_program_in_python_sends_and_receives_a_message(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        assert run([sys.executable, "-c", program_of("python.md", "python", door)]) == (
            "order 17 ten screws\n"
        )
        assert not door.daemon.receive("orders")


def test_the_program_in_cpp_sends_one_message(hosts: Hosts, tmp_path: Path) -> None:
    if program_missing("g++") or not Path("/usr/include/proton/container.hpp").exists():
        pytest.skip("g++ and libqpid-proton-cpp12-dev are needed")
    with door_of(hosts, "orders") as door:
        (tmp_path / "send.cpp").write_text(program_of("cpp.md", "cpp", door))
        program = str(tmp_path / "send")
        run(["g++", "-std=c++17", f"{program}.cpp", "-lqpid-proton-cpp", "-o", program])
        run([program])
        assert [each["label"] for each in door.daemon.receive("orders")] == ["order 17"]
