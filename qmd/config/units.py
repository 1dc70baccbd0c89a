"""Durations and sizes in text form: `30s`, `4d`, `500MB`, `64KiB`.

The form is a whole number directly followed by one unit. A number without a unit is refused because
it is ambiguous.
"""

from __future__ import annotations

import re

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: dict[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_BYTES_BY_SPELLING = {unit.lower(): factor for unit, factor in _BYTES.items()}
_DURATION = re.compile(r"([0-9]{1,18})(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,18})([A-Za-z]+)")

DURATION_RULE = f"a whole number and a unit ({', '.join(_MILLISECONDS)}), for example 30s"
SIZE_RULE = f"a whole number and a unit ({', '.join(_BYTES)}), for example 500MB"


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of `500ms`, `30s`, `5m`, `12h` or `4d`. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(DURATION_RULE)
    return int(match[1]) * _MILLISECONDS[match[2]]


def parse_duration(text: str) -> float:
    """Return the seconds of a duration. Raises ValueError."""
    return parse_duration_ms(text) / 1000


def format_duration(duration_s: float) -> str:
    """Format seconds in the largest unit that leaves a whole number; milliseconds are the least."""
    return _in_largest_unit(round(1000 * duration_s), _MILLISECONDS, zero="0s")


def parse_size(text: str) -> int:
    """Return the bytes of `500MB` or `64KiB`; k, M, G, T are powers of 1000, Ki... of 1024.

    Units are read without regard to case. Raises ValueError.
    """
    match = _SIZE.fullmatch(text)
    factor = _BYTES_BY_SPELLING.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(SIZE_RULE)
    return int(match[1]) * factor


def format_size(size_bytes: int) -> str:
    """Format bytes in the largest unit that leaves a whole number."""
    return _in_largest_unit(size_bytes, _BYTES, zero="0B")


def _in_largest_unit(number: int, units: dict[str, int], *, zero: str) -> str:
    if number == 0:
        return zero
    fitting = [(factor, unit) for unit, factor in units.items() if number % factor == 0]
    factor, unit = max(fitting)
    return f"{number // factor}{unit}"
