"""The door with the clients of C++ and Ruby."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.amqp.door import door_of, program_missing
from tests.patience import END_S
from tests.process.harness import Hosts

pytest.importorskip("proton")
HERE = Path(__file__).parent


def run(*command: str) -> str:
    """Run a program; return its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the compiled program in C++."""
    if program_missing("g++") or not Path("/usr/include/proton/container.hpp").exists():
        pytest.skip("g++ and libqpid-proton-cpp12-dev are needed for the client in C++")
    output = tmp_path_factory.mktemp("cpp") / "exchange"
    source = HERE / "cpp" / "exchange.cpp"
    run("g++", "-std=c++17", str(source), "-lqpid-proton-cpp", "-o", str(output))
    return str(output)


def test_the_client_of_cpp_sends_and_receives(hosts: Hosts, program: str) -> None:
    with door_of(hosts, "orders") as door:
        assert run(program, door.url, "orders") == "exchanged 11\n"
        assert door.daemon.count("orders") == 0


def test_the_client_of_cpp_logs_in_by_password(hosts: Hosts, program: str) -> None:
    if not list(Path("/usr/lib").glob("*/sasl2/libscram.so")):
        pytest.skip("libsasl2-modules are needed for passwords in C++")
    with door_of(hosts, "orders", amqp={"passwords_on_loopback": True}) as door:
        door.daemon.cli("door", "user", "add", "ann", "--password-file", "-", input=b"secret")
        door.daemon.cli("acl", "grant", "sasl:ann", "full", "orders")
        assert run(program, door.url, "orders", "ann", "secret") == "exchanged 11\n"
        assert "sasl:ann" in door.tail()


def test_the_client_of_ruby_sends_and_receives(hosts: Hosts) -> None:
    found = (
        not program_missing("ruby")
        and not subprocess.run(
            ["ruby", "-e", "require 'qpid_proton'"], capture_output=True, check=False
        ).returncode
    )
    if not found:
        pytest.skip("ruby and ruby-qpid-proton are needed for the client in Ruby")
    with door_of(hosts, "orders") as door:
        program = str(HERE / "ruby" / "exchange.rb")
        assert run("ruby", program, door.url, "orders") == "exchanged 7\n"
        assert door.daemon.count("orders") == 0
