"""Fixtures of the crash tests: daemons under the shim, in a temporary folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import shim
from tests.crash.forge import Forge
from tests.crash.machine import Machine
from tests.crash.matrix import Bench, scratch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/crash" in str(item.path):
            item.add_marker(pytest.mark.process)


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    if why := shim.missing():
        pytest.skip(why)
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder in memory: syncs cost nothing there, and the log is durable enough."""
    folder = scratch()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def machine(forge: Forge, folder: Path) -> Iterator[Machine]:
    machine = Machine(forge, folder / "machine")
    yield machine
    machine.close()


@pytest.fixture
def bench(machine: Machine) -> Bench:
    return Bench(machine)
