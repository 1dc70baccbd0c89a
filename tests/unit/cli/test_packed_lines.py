"""Lines of exported messages, compressed or not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from qmd.cli.packed_lines import rows

LINE = b'{"a": 1}\n'


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_line_that_is_too_long_is_never_held_as_a_whole(tmp_path: Path, is_packed: bool) -> None:
    file = tmp_path / "messages"
    content = LINE + bytes(1 << 20) + b"\n" + LINE
    file.write_bytes(gzip.compress(content) if is_packed else content)
    found = list(rows(file, 1000))
    assert b"".join(found) == content
    assert found[0] == found[-1] == LINE
    assert max(map(len, found)) == 1001
