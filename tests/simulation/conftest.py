"""Pytest hook that destroys simulated worlds before the next test, not in its middle."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from tests.simulation.loop import silence


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Collect the garbage of a test that has run a world.

    Coroutines of dead processes report errors when they are destroyed, and pytest would blame the
    test that runs at that time.  The frame of a test keeps its world until the test ends.  Pytest
    calls this hook for all tests, those of other folders too; most run no world, and collecting
    garbage takes longer than they do.
    """
    runs_worlds = hasattr(getattr(item, "module", None), "Scenario")
    if runs_worlds:
        gc.freeze()  # what earlier tests have left: each collection would look at all of it
    result = yield
    if runs_worlds:
        with silence():
            gc.collect()
    return result
