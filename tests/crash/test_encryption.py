"""A daemon with encrypted packets keeps every promise when it is killed, and shows no body."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.forge import Forge
from tests.crash.machine import CONFIGURATION, Machine
from tests.crash.matrix import TURNS, Bench, kills
from tests.stored_packets import STORAGE_KEY

CYCLES = 10
BODY = re.compile(rb"<\d{6}>")  # what all bodies of the workload have in common


@pytest.fixture
def bench(forge: Forge, folder: Path) -> Iterator[Bench]:
    key = folder / "storage.key"
    key.write_text(STORAGE_KEY.secret.hex())
    key.chmod(0o600)
    configuration = CONFIGURATION.replace("[storage]", f'[storage]\nkey_files = ["{key}"]')
    machine = Machine(forge, folder / "machine", configuration=configuration)
    yield Bench(machine)
    machine.close()


def test_promises_survive_a_kill_at_any_act(bench: Bench) -> None:
    acts = bench.acts(0, TURNS)
    every = 16
    died = [bench.run(cycle) for cycle in itertools.islice(kills(0, acts, TURNS), 0, None, every)]

    assert len(died) >= CYCLES - 3
    assert died.count(True) >= len(died) * 0.9
    with closing(sqlite3.connect(bench.machine.data / "queues.db")) as db:
        assert db.execute("SELECT count(*) FROM sealing_key").fetchone() == (1,)
        plain = db.execute("SELECT count(*) FROM message WHERE seal IS NULL").fetchone()
    assert plain == (0,)
    files = [file for file in bench.machine.data.iterdir() if file.is_file()]
    assert any(file.name == "queues.db" for file in files)
    assert [file.name for file in files if BODY.search(file.read_bytes())] == []
