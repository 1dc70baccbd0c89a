"""The file of triggers in the folder of a service: root changes it, and does not run it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qmd.triggers.definition import Trigger, TriggerError
from qmd.triggers.store import TriggerFile
from tests.users import needs_root

SERVICE, OTHER = 64_001, 64_002
GUID = "d81a5347-0b69-5e57-a045-f62cf06ae979"


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


@pytest.mark.parametrize("queue", ["a;b+c", "private$\\a\tb", "DIRECT=OS:hosta"])
def test_a_trigger_needs_the_name_of_a_queue(tmp_path: Path, queue: str) -> None:
    file = TriggerFile(tmp_path / "triggers")

    with pytest.raises(TriggerError, match="is not the name of a queue"):
        file.create(Trigger(name="first", queue=queue))

    assert file.read() == {}


@pytest.mark.parametrize(
    "queue", ["orders", "orders;retry", ".\\private$\\orders", "dead-letter", f"PUBLIC={GUID}"]
)
def test_a_trigger_may_name_its_queue_in_any_spelling(tmp_path: Path, queue: str) -> None:
    file = TriggerFile(tmp_path / "triggers")

    file.create(Trigger(name="first", queue=queue))

    assert file.read()["first"].queue == queue
