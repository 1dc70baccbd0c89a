"""The file of triggers in the folder of a service: root changes it, and does not run it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qmd.triggers.definition import Trigger, TriggerError
from qmd.triggers.store import TriggerFile
from tests.users import needs_root

SERVICE, OTHER = 64_001, 64_002


@needs_root
def test_root_changes_the_definitions_of_the_user_of_a_service_and_runs_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "triggers"
    os.chown(tmp_path, SERVICE, SERVICE)

    for name in ("first", "second"):
        TriggerFile(path).create(Trigger(name=name, queue=name))

    assert path.stat().st_uid == SERVICE
    assert set(TriggerFile(path).read()) == {"first", "second"}
    with pytest.raises(TriggerError, match=f"belongs to user {SERVICE}"):
        TriggerFile(path, runs=True).read()


@needs_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "triggers"
    TriggerFile(path).create(Trigger(name="first", queue="orders"))
    os.chown(path, OTHER, OTHER)

    for runs in (False, True):
        with pytest.raises(TriggerError, match=f"belongs to user {OTHER}"):
            TriggerFile(path, runs=runs).read()
