"""What a simulated world leaves behind is destroyed before the next test, not in its middle."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from tests.simulation.loop import silence


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Coroutines of dead processes complain when they are destroyed, and pytest would hold that
    against whichever test runs then.  A test's own frame keeps its world until it is over.

    Pytest calls this for all tests, those of other folders too.  Most leave no world, and to
    collect garbage takes longer than they do.
    """
    result = yield
    if hasattr(getattr(item, "module", None), "Stage"):  # it has worlds
        with silence():
            gc.collect()
    return result
