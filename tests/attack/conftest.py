"""Fixtures of the attacks: those of the process tests, with the same daemons and peers."""

from __future__ import annotations

import pytest

from tests.process.conftest import (
    bystander,
    clean,
    daemon,
    hosts,
    pytest_runtest_makereport,
    remote,
    shared_hosts,
)

__all__ = [
    "bystander",
    "clean",
    "daemon",
    "hosts",
    "pytest_runtest_makereport",
    "remote",
    "shared_hosts",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/attack" in str(item.path):
            item.add_marker(pytest.mark.process)
