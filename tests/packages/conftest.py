"""The Debian packages that all tests of a process share: a build takes most of their time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from release import deb


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the packages; those of the short form are larger and slower, and alike else."""
    folder = tmp_path_factory.mktemp("packages")
    if os.environ.get("QMD_PACKAGES") == "1":
        return deb.build(folder)
    return deb.build(folder, compression="none", options="noopt")
