"""Every type of AMQP, JMS-style headers and large messages, between each pair of clients.

The clients of Python, JavaScript and C++ each send all values to a queue for each receiver (an
address with several queues), and each receives what all have sent.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amqp.door import AmqpDoor, door_of, program_missing
from tests.patience import END_S
from tests.process.command_line import ROOT
from tests.process.harness import Hosts

pytest.importorskip("proton")
HERE = Path(__file__).parent
TEXT = "Ünïcödé \N{SNOWMAN} \N{GRINNING FACE}".encode().hex()
VALUES = [
    ("null", "null"),
    *(("boolean", text) for text in ("true", "false")),
    *(("ubyte", f"{number}") for number in (0, 255)),
    *(("ushort", f"{number}") for number in (0, 65_535)),
    *(("uint", f"{number}") for number in (0, 200, (1 << 32) - 1)),
    *(("ulong", f"{number}") for number in (0, 200, (1 << 62) + 1, (1 << 64) - 1)),
    *(("byte", f"{number}") for number in (-128, 127)),
    *(("short", f"{number}") for number in (-(1 << 15), (1 << 15) - 1)),
    *(("int", f"{number}") for number in (-(1 << 31), -1, (1 << 31) - 1)),
    *(("long", f"{number}") for number in (-(1 << 63), -1, (1 << 63) - 1)),
    *(("float", bits) for bits in ("00000000", "40490fdb", "7f7fffff", "ff800000")),
    *(("double", bits) for bits in ("400921fb54442d18", "7fefffffffffffff", "8000000000000000")),
    ("decimal32", "40490fdb"),
    ("decimal64", "400921fb54442d18"),
    ("decimal128", "400921fb54442d1840490fdb40490fdb"),
    *(("char", f"{number}") for number in (65, 0x1F600)),
    *(("timestamp", f"{number}") for number in (0, 1_700_000_000_123)),
    ("uuid", "01020304-0506-0708-090a-0b0c0d0e0f10"),
    *(("binary", data) for data in ("00ff", "00" * 300)),
    *(("string", text) for text in ("61", TEXT, "62" * 300)),
    *(("symbol", text) for text in ("a", "com.example." * 30)),
    ("list", "true"),
    ("map", "true"),
    *(("large", f"{size}") for size in (70_000, 1_000_000, 4_000_000)),
    ("jms", ""),
]
LINES = "".join(f"{kind} {text}\n" for kind, text in VALUES)
JMS = "ID:1 c-1 type answers jms text/plain gzip 1700000000000 g 7 r 9 true ann"
ALONE = ("null", "list", "map", "large")  # the others are also a property and an annotation


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the command of each client that can run here; that of Python always can."""
    folder = tmp_path_factory.mktemp("matrix")
    found = {"python": [sys.executable, "-m", "tests.amqp.matrix"]}
    if not (program_missing("node") or program_missing("npm")):
        shutil.copytree(HERE / "javascript", folder / "javascript")
        install = ["npm", "ci", "--silent", "--no-audit", "--no-fund"]
        if not subprocess.run(
            install, cwd=folder / "javascript", capture_output=True, timeout=END_S, check=False
        ).returncode:
            found["javascript"] = ["node", str(folder / "javascript" / "matrix.js")]
    if not program_missing("g++") and Path("/usr/include/proton/container.hpp").exists():
        source, program = HERE / "cpp" / "matrix.cpp", folder / "matrix"
        subprocess.run(
            ["g++", "-std=c++17", str(source), "-lqpid-proton-cpp", "-o", str(program)], check=True
        )
        found["cpp"] = [str(program)]
    return found


def _run(client: list[str], act: str, door: AmqpDoor, address: str, rounds: int) -> list[str]:
    done = subprocess.run(
        [*client, act, str(door.port), address, str(rounds)],
        input=LINES, capture_output=True, text=True, timeout=END_S, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout.splitlines()


def test_each_type_arrives_between_each_pair_of_clients(
    hosts: Hosts, clients: dict[str, list[str]]
) -> None:
    if len(clients) < 2:
        pytest.skip("node and npm, or g++ and libqpid-proton-cpp12-dev, are needed for a pair")
    expected = [
        f"jms {JMS}" if kind == "jms" else " ".join([kind, *[text] * (1 if kind in ALONE else 3)])
        for kind, text in VALUES
    ]
    with door_of(hosts, transactional=tuple(clients)) as door:  # in the order of sending
        for client in clients.values():
            _run(client, "send", door, ",".join(clients), 1)
        for receiver, client in clients.items():
            lines = _run(client, "receive", door, receiver, len(clients))
            for number, sender in enumerate(clients):
                first = number * len(VALUES)
                found = lines[first : first + len(VALUES)]
                wrong = [each for each in zip(found, expected, strict=True) if each[0] != each[1]]
                assert not wrong, f"{sender} to {receiver}: {wrong}"
