"""The limits of every input: 100 ms of processor time, 64 MiB of memory."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
Refusal = TypeVar("Refusal", bound=Exception)

INPUT_BYTES_MAX = 64 * 1024
PROCESSOR_S_MAX = 0.1
TRIES = 3  # a garbage collection or a page fault may slow down any one of them
GROWTH_KIB_MAX = 64 * 1024


class OverLimit(AssertionError):
    """An input exceeds the limit of its size."""


def within_limits(
    act: Callable[..., Result], *arguments: object, seconds_max: float = PROCESSOR_S_MAX
) -> Result:
    """Call `act(*arguments)`, and again if it was slow; return its result or raise its error."""
    started = time.process_time()
    try:
        return act(*arguments)
    finally:
        if time.process_time() - started > seconds_max:
            _confirm(act, arguments, seconds_max)


def outcome(
    refusal: type[Refusal],
    act: Callable[..., Result],
    *arguments: object,
    seconds_max: float = PROCESSOR_S_MAX,
) -> tuple[Result | None, Refusal | None]:
    """Return the result of `act`, or its error, which must be of one type."""
    try:
        return within_limits(act, *arguments, seconds_max=seconds_max), None
    except refusal as refused:
        return None, refused


def _confirm(act: Callable[..., object], arguments: tuple[object, ...], seconds_max: float) -> None:
    fastest_s = min(_time(act, arguments) for _ in range(TRIES))
    if fastest_s > seconds_max:
        name = getattr(act, "__qualname__", act)
        raise OverLimit(f"{name} took {fastest_s * 1000:.0f} ms of processor time")


def _time(act: Callable[..., object], arguments: tuple[object, ...]) -> float:
    started = time.process_time()
    with contextlib.suppress(Exception):
        act(*arguments)
    return time.process_time() - started


class Memory:
    """The largest size that this process ever had."""

    def __init__(self) -> None:
        self._peak_kib = _peak_kib()

    def check(self) -> None:
        """Raise OverLimit if the peak rose by more than the limit since the last call."""
        before, self._peak_kib = self._peak_kib, _peak_kib()
        if self._peak_kib - before > GROWTH_KIB_MAX:
            raise OverLimit(f"one input took {(self._peak_kib - before) / 1024:.0f} MiB")


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
