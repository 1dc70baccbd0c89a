"""Durations and sizes: reading, writing, and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmd.config.units import (
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0s", 0), ("30s", 30), ("5m", 300), ("12h", 43200), ("4d", 345600)],
)
def test_a_duration_has_one_number_and_one_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0B", 0),
        ("512B", 512),
        ("64kB", 64_000),
        ("64KiB", 65_536),
        ("500MB", 500_000_000),
        ("4MiB", 0x400000),
        ("8GB", 8_000_000_000),
        ("1TB", 10**12),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_count_in_thousands_and_with_an_i_in_1024s(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


def test_the_units_of_sizes_may_be_written_in_any_case() -> None:
    assert parse_size("8gb") == parse_size("8GB")
    assert parse_size("64KB") == parse_size("64kB") != parse_size("64kib")


BROKEN = ["", "30", "s", "30 s", "+1s", "-1s", "1.5s", "1e3s", "30s ", "\u0663s", "9" * 19 + "s"]


@pytest.mark.parametrize("text", [*BROKEN, "30S", "5M", "1h30m", "30sec", "30s\n"])
def test_an_invalid_duration_is_refused_with_the_valid_units(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(ms, s, m, h, d\)"):
        parse_duration(text)


@pytest.mark.parametrize("text", [*BROKEN, "1K", "1PB", "1bytes", "1MB\n", "1\u212aB"])
def test_an_invalid_size_is_refused_with_the_valid_units(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(B, kB, MB, GB, TB, KiB, MiB, GiB, TiB\)"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0B"), (1, "1B"), (65536, "64KiB"), (500_000_000, "500MB"), (1500, "1500B")],
)
def test_a_size_is_written_in_its_largest_whole_unit(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.integers(0, 10**12))
def test_a_written_value_is_read_back(number: int) -> None:
    assert parse_size(format_size(number)) == number
