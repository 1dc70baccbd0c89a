"""Files among the reports of jobs, whose writer is another user than that of the console."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from qmd.console.pages import work

SHORT, LONG = 10, 100_000


def test_a_report_that_grows_while_it_is_read_is_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "REPORT_BYTES_MAX", 1000)
    file = tmp_path / "report.html"
    file.write_bytes(b"x" * SHORT)
    has_ended = threading.Event()

    def grow() -> None:
        while not has_ended.is_set():
            os.truncate(file, LONG)
            os.truncate(file, SHORT)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        found = [work.report_content(tmp_path, file) for _ in range(20_000)]
    finally:
        has_ended.set()
        writer.join()

    assert SHORT <= max(len(each) for each in found if each is not None) <= work.REPORT_BYTES_MAX
    assert None in found


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_pipe_and_a_folder_are_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "report.html"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert work.report_content(tmp_path, path) is None
