"""Log lines for the journal of systemd have the priority of their level."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import structlog

from qmd.runtime.log import set_up_logging


@pytest.mark.parametrize("leads_there", [True, False])
def test_a_line_for_the_journal_begins_with_its_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads_there: bool
) -> None:
    before = structlog.get_config()
    with (tmp_path / "log").open("wb") as stream:
        found = os.fstat(stream.fileno())
        number = found.st_ino if leads_there else found.st_ino + 1
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{number}")
        set_up_logging("debug", "auto", stream)
        try:
            log = structlog.get_logger()
            log.info("one")
            log.warning("two")
            log.critical("three")
        finally:
            structlog.configure(**before)

    lines = (tmp_path / "log").read_text().splitlines()
    heads = ["<6>", "<4>", "<2>"] if leads_there else ["", "", ""]
    assert [line.partition("{")[0] for line in lines] == heads
    events = [json.loads(line.removeprefix(head)) for line, head in zip(lines, heads, strict=True)]
    assert [each["event"] for each in events] == ["one", "two", "three"]
