"""Times of life to the second, whatever becomes of a computer's clocks: on a clock of the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.disk import PowerLoss
from tests.simulation.stage import Stage
from tests.simulation.world import Host

DAY_S = 24 * 3600
THERE = "DIRECT=OS:bert\\private$\\orders"
DEAD = "DIRECT=OS:.\\SYSTEM$;DEADXACT"
TIME_S = 30


def wait_until(stage: Stage, seconds: float) -> None:
    stage.wait(seconds - stage.world.now)


def set_clock(stage: Stage, step_s: float) -> None:
    stage.host("anna").wall_offset_s += step_s


def _kill(host: Host) -> None:
    assert host.daemon is not None
    host.daemon.kill()


def _stop(host: Host) -> None:
    assert host.daemon is not None
    callback, arguments = next(iter(host.daemon.loop.signals.values()))
    host.daemon.loop.call_soon(callback, *arguments)


# No test keeps a host in a variable: all of a world has to go with its stage.
DISASTERS: dict[str, Callable[[Host], object]] = {
    "none": lambda host: None,
    "killed": _kill,
    "stopped": _stop,
    "power lost": lambda host: host.lose_power(PowerLoss.NONE, back_after_s=5.0),
}


def start_waiting(stage: Stage, phase_s: float) -> float:
    """Messages that nobody receives and that nobody takes over; since when they live."""
    stage.host("bert").keep_down = True
    _kill(stage.host("bert"))
    wait_until(stage, 2 + phase_s)
    since = stage.world.now
    stage.act("anna", lambda qm: qm.send("orders", b"here", time_to_be_received_s=TIME_S))
    there = {"delivery": "transactional", "time_to_reach_queue_s": TIME_S}
    stage.act("anna", lambda qm: qm.send(THERE, b"there", **there))
    return since


@pytest.mark.parametrize("phase_s", [0.0, 0.3, 0.7, 0.95])
def test_a_message_ends_in_the_second_after_its_time_is_over(phase_s: float) -> None:
    with Stage("anna", "bert") as stage:
        since = start_waiting(stage, phase_s)
        wait_until(stage, since + TIME_S - 0.3)
        assert stage.bodies("anna", DEAD) == []
        assert stage.bodies("anna", "orders") == [b"here"]

        wait_until(stage, since + TIME_S + 1.3)
        assert sorted(stage.bodies("anna", DEAD)) == [b"here", b"there"]
        assert stage.bodies("anna", "orders") == []


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S, TIME_S, -TIME_S])
@pytest.mark.parametrize("disaster", DISASTERS)
def test_a_clock_that_is_set_ends_nothing_and_keeps_nothing(step_s: float, disaster: str) -> None:
    with Stage("anna", "bert") as stage:
        since = start_waiting(stage, 0.5)
        wait_until(stage, since + 10)
        set_clock(stage, step_s)
        stage.wait(2)  # it has seen it
        DISASTERS[disaster](stage.host("anna"))
        wait_until(stage, since + TIME_S - 1)
        assert stage.bodies("anna", "orders") == [b"here"]
        assert stage.bodies("anna", DEAD) == []

        wait_until(stage, since + TIME_S + 1.3)
        assert sorted(stage.bodies("anna", DEAD)) == [b"here", b"there"]


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S])
def test_a_clock_that_is_wrong_after_the_power_was_lost_costs_no_more_than_the_time_without_it(
    step_s: float,
) -> None:
    """And what the disk did not know yet: a minute at most."""
    with Stage("anna", "bert") as stage:
        since = start_waiting(stage, 0.5)
        wait_until(stage, since + 10)
        set_clock(stage, step_s)
        DISASTERS["power lost"](stage.host("anna"))
        wait_until(stage, since + TIME_S)
        assert stage.bodies("anna", "orders") == [b"here"]

        lost_s = 5.0 + (since + 10)  # all of the time since the start
        wait_until(stage, since + TIME_S + lost_s + 1.3)
        assert sorted(stage.bodies("anna", DEAD)) == [b"here", b"there"]


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S])
def test_what_waits_for_its_peer_is_delivered_although_the_clock_was_set(step_s: float) -> None:
    with Stage("anna", "bert") as stage:
        set_clock(stage, -step_s)  # wrong
        start_waiting(stage, 0.5)
        stage.act("anna", lambda qm: qm.send(THERE, b"next", delivery="transactional"))
        stage.wait(5)
        set_clock(stage, step_s)
        stage.host("bert").keep_down = False
        stage.host("bert").start_daemon()
        stage.wait(10)
        assert stage.bodies("bert", "orders") == [b"there", b"next"]
