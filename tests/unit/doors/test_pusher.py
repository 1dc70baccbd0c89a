"""Pauses of pushes after failures, and targets that are left alone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from qmd.core.retry_policy import End, RetryPolicy
from qmd.doors.http.pusher import OPEN_AFTER, OPEN_FIRST_S, Circuit
from qmd.doors.http.pushes import StoredPush
from qmd.doors.http.webhook import DeliveryFailed
from qmd.doors.patience import pause_s

PUSH = StoredPush(
    name="hook", queue="q", url="http://x/", secret="", first_pause_s=2.0, last_pause_s=60.0
)


@pytest.mark.parametrize(
    ("policy", "failures", "retry_after_s", "expected"),
    [
        (RetryPolicy(5, delay_s=1, jitter=0), 3, 0.0, 4.0),
        (RetryPolicy(5, immediate=2, delay_s=1, jitter=0), 2, 0.0, 0.0),
        (RetryPolicy(5, immediate=2, delay_s=1, jitter=0), 3, 0.0, 1.0),
        (RetryPolicy(5, delay_s=0, jitter=0), 2, 0.0, 4.0),  # that of the push
        (RetryPolicy(5, delay_s=1, jitter=0), 5, 9.0, 0.0),  # it has ended
        (RetryPolicy(5, delay_s=1, jitter=0, end=End.STAY), 7, 0.0, 64.0),
        (RetryPolicy(0, delay_s=1, delay_max_s=8, jitter=0), 500, 0.0, 8.0),
        (RetryPolicy(5, delay_s=1, jitter=0), 1, 30.0, 30.0),
        (RetryPolicy(5, delay_s=1, jitter=0), 1, 900.0, 60.0),
    ],
)
def test_a_pause_is_that_of_the_policy(
    policy: RetryPolicy, failures: int, retry_after_s: float, expected: float
) -> None:
    assert pause_s(PUSH, policy, failures, retry_after_s) == expected


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in which waits take no time: its clock jumps to the next timer."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.ahead_s += max(0.0, self._scheduled[0].when() - self.time())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def test_a_target_that_fails_is_left_alone_and_then_tried_by_one_message() -> None:
    async def scenario() -> None:
        circuit, now = Circuit(), asyncio.get_running_loop().time
        began, tries = now(), []

        async def attempt(*, fails: bool) -> None:
            with contextlib.suppress(DeliveryFailed):
                async with circuit.attempt():
                    tries.append(now() - began)
                    await asyncio.sleep(1.0)
                    if fails:
                        raise DeliveryFailed("it answers 500")

        for _ in range(OPEN_AFTER):
            await attempt(fails=True)
        assert circuit.is_open
        assert max(tries) < OPEN_AFTER
        # Five messages wait: one tries at a time, each after a longer pause.
        await asyncio.gather(*(attempt(fails=True) for _ in range(5)))
        later = tries[OPEN_AFTER - 1 :]
        pauses = [after - before - 1.0 for before, after in itertools.pairwise(later)]
        for number, pause in enumerate(pauses):
            assert 0.8 * OPEN_FIRST_S * 2**number <= pause <= 1.3 * OPEN_FIRST_S * 2**number
        # One success closes the circuit: all others try at once, and the pauses begin anew.
        last = len(tries)
        await asyncio.gather(*(attempt(fails=False) for _ in range(3)))
        assert not circuit.is_open
        assert tries[last + 2] - tries[last] < 3.0
        for _ in range(OPEN_AFTER):
            await attempt(fails=True)
        last = len(tries)
        await attempt(fails=False)
        assert tries[last] - tries[last - 1] - 1.0 <= 1.3 * OPEN_FIRST_S

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(scenario())
