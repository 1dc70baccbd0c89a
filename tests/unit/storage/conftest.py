import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.storage.support import memory_database


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    database = memory_database()
    yield database
    database.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the path of a folder that does not exist yet."""
    return tmp_path / "data"
