"""Fixtures of the tests of the door for AMQP: those of the process tests."""

from __future__ import annotations

import pytest

from tests.process.conftest import hosts

__all__ = ["hosts"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/amqp" in str(item.path):
            item.add_marker(pytest.mark.process)
