import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.vault import Vault
from tests.unit.storage.support import KEY, memory_database


@pytest.fixture(params=["plain", "encrypted"])
def db(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    """Return a database in memory; each test runs with plain and with encrypted packets."""
    database = memory_database(None if request.param == "plain" else Vault([KEY]))
    yield database
    database.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the path of a folder that does not exist yet."""
    return tmp_path / "data"
