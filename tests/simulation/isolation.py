"""Isolation of a seed from its process: neither influences the other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from random import Random
from typing import Any

import structlog

from tests.simulation.loop import silence

_DEBUG = 10
_OURS = ("qmd", "storage", "protocol")


class NotDeterministic(AssertionError):
    """The code under test used a value that differs from run to run."""


@contextlib.contextmanager
def isolated(
    trace: list[str] | None, seen: Counter[str] | None = None, *, is_last: bool = False
) -> Iterator[None]:
    """Isolate the run of one seed.

    The log events of daemons go to `trace`, if given; `seen` counts them.  `is_last`: the process
    ends after this seed, so that the world need not be destroyed.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # destructors would run at times that depend on earlier seeds
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(_DEBUG),
        processors=[_Tracer(trace, Counter() if seen is None else seen)],
        logger_factory=_no_logger,
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        if not is_last:
            with silence():
                gc.collect()
        structlog.configure(**before)
        if was_enabled and not is_last:
            gc.enable()


@contextlib.contextmanager
def one_source(source: Random) -> Iterator[None]:
    """Replace the random bytes of the process by those of the seed, and forbid its clocks."""
    genuine = os.urandom, time.time, time.monotonic
    os.urandom = source.randbytes
    time.time = _refuse_ours(time.time)
    time.monotonic = _refuse_ours(time.monotonic)
    try:
        yield
    finally:
        os.urandom, time.time, time.monotonic = genuine


@contextlib.contextmanager
def limits_set(limits: dict[str, float]) -> Iterator[None]:
    """Set limits of the code under test that worlds would not reach: `{"module.NAME": value}`."""
    before = []
    for path, value in limits.items():
        module_name, _, name = path.rpartition(".")
        module = import_module(module_name)
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _refuse_ours(genuine: Callable[[], float]) -> Callable[[], float]:
    def clock() -> float:
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith(_OURS):
            raise NotDeterministic(f"{caller} read the clock of the process")
        return genuine()

    return clock


def _no_logger(*arguments: object) -> object:
    return None


class _Tracer:
    """A structlog processor that turns log events into lines of the trace."""

    def __init__(self, trace: list[str] | None, seen: Counter[str]) -> None:
        self._trace = trace
        self._seen = seen

    def __call__(self, logger: object, level: str, event: dict[str, Any]) -> Any:
        self._seen[f"log: {event['event']}"] += 1
        # No other program changes a simulated database.
        assert event["event"] != "rows_vanished", event
        if self._trace is None:
            raise structlog.DropEvent
        loop: Any = asyncio._get_running_loop()
        values = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        self._trace.append(f"{loop.scheduler.now:.9f} log {loop.name} {event['event']} {values}")
        raise structlog.DropEvent
