"""Writes of several buffers: small ones are joined, large ones are not copied."""

from __future__ import annotations

import pytest

from qmd.runtime.writes import LARGE_BYTES, in_few_buffers

SMALL, LARGE = b"s" * 100, b"l" * LARGE_BYTES


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ([], 0),
        ([SMALL], 1),
        ([SMALL] * 3, 1),
        ([LARGE], 1),
        ([SMALL, SMALL, LARGE, SMALL, LARGE, LARGE, bytearray(SMALL), SMALL], 6),
    ],
)
def test_the_buffers_have_the_same_bytes(given: list[bytes], count: int) -> None:
    found = in_few_buffers(given)

    assert b"".join(found) == b"".join(given)
    assert len(found) == count


def test_large_buffers_are_not_copied() -> None:
    assert in_few_buffers([SMALL, LARGE, SMALL])[1] is LARGE
    assert in_few_buffers([LARGE])[0] is LARGE
