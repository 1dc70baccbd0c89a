"""What no input may cost: 100 ms of the processor, 64 MiB of memory."""

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
TRIES = 3  # a collection of garbage, or a page fault, may hit any one of them
GROWTH_KIB_MAX = 64 * 1024


class OverLimit(AssertionError):
    """An input costs more than any input of its size may."""


def within_limits(
    act: Callable[..., Result], *arguments: object, seconds_max: float = PROCESSOR_S_MAX
) -> Result:
    """What `act(*arguments)` returns or raises.  If it is slow it is called again, to make sure."""
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
    """What `act` returns, or how it refuses: by this one kind of exception."""
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
    """Watches the largest size that this process ever had."""

    def __init__(self) -> None:
        self._peak_kib = _peak_kib()

    def check(self) -> None:
        """Raise OverLimit if the peak rose by more than the limit since the last call."""
        before, self._peak_kib = self._peak_kib, _peak_kib()
        if self._peak_kib - before > GROWTH_KIB_MAX:
            raise OverLimit(f"one input took {(self._peak_kib - before) / 1024:.0f} MiB")


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
