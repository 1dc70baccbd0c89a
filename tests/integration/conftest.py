"""The queue managers of these tests run in the debug mode of asyncio.

It finds coroutines that are not awaited and calls from other threads, and costs a sixth of the
speed.  Daemons in processes of their own run as users run them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def debug_mode() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONASYNCIODEBUG", "1")
        yield
