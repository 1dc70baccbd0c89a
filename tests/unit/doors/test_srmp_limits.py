"""Limits of the streams of which the door for SRMP keeps the URL for receipts."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.doors.srmp import source
from qmd.doors.srmp.source import Starts


def test_streams_of_one_address_displace_each_other_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "STREAMS_OF_ADDRESS_MAX", 5)
    monkeypatch.setattr(source, "STREAMS_MAX", 8)
    starts = Starts(tmp_path / "streams")
    starts.keep("genuine\\1", "http://host/1", "10.0.0.1")
    for number in range(20):  # each of another source
        starts.keep(f"source{number}\\1", "http://host/2", "10.0.0.2")
    for number in range(20):
        starts.keep(f"other{number}\\1", "http://host/3", "10.0.0.3")

    assert starts.receipts_to("genuine\\1") == "http://host/1"
    assert starts.receipts_to("other19\\1") == "http://host/3"
    assert not starts.receipts_to("other0\\1")
