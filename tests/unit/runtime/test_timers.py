"""Named timers, on the event loop of the daemon (uvloop)."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
import uvloop

from qmd.runtime.timers import Alarm, Timers
from tests.patience import END_S


async def filled(rung: list[Any], count: int) -> None:
    """Wait until `count` timers have fired, then 50 ms longer, in which no other may fire."""
    async with asyncio.timeout(END_S):
        while len(rung) < count:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("delay_s", [-1.0, 0.0, 0.0001, 0.01])
def test_a_timer_that_is_due_at_once_can_be_set_again(delay_s: float) -> None:
    """uvloop makes no timer for a delay below half a millisecond."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers, rung = Timers(loop), []
        timers.at(loop.time() + delay_s, "name", rung.append)
        timers.at(loop.time() + 5000.0, "name", rung.append)
        timers.at(loop.time() + delay_s, "name", rung.append)
        await filled(rung, 1)
        assert rung == ["name"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_the_earliest_requested_time_counts() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        rung: list[float] = []
        alarm = Alarm(loop)

        def ring() -> None:
            rung.append(loop.time())

        began = loop.time()
        alarm.at(began + 5000.0, ring)
        alarm.at(began + 0.02, ring)
        alarm.at(began + 3000.0, ring)
        await filled(rung, 1)
        assert len(rung) == 1
        alarm.at(loop.time() - 1.0, ring)
        alarm.at(loop.time() + 5000.0, ring)
        await filled(rung, 2)
        assert len(rung) == 2
        alarm.at(loop.time(), ring)
        alarm.cancel()
        await asyncio.sleep(0.05)
        assert len(rung) == 2

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_an_owner_that_is_its_own_callback_is_freed_without_the_collector() -> None:
    class Owner:
        def __init__(self) -> None:
            self.alarm = Alarm(asyncio.get_running_loop())

        def ring(self) -> None:
            pass

    async def main() -> None:
        owner = Owner()
        owner.alarm.at(asyncio.get_running_loop().time() + 5.0, owner.ring)
        owner.alarm.cancel()
        freed = weakref.ref(owner)
        await asyncio.sleep(0)
        del owner
        assert freed() is None

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    finally:
        gc.enable()
