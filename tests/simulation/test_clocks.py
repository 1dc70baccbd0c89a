"""Lifetimes of messages, exact to the second whatever happens to a computer's clocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.disk import PowerLoss
from tests.simulation.scenario import Scenario
from tests.simulation.world import Host

DAY_S = 24 * 3600
THERE = "DIRECT=OS:bert\\private$\\orders"
DEAD = "DIRECT=OS:.\\SYSTEM$;DEADXACT"
TIME_S = 30


def wait_until(scenario: Scenario, seconds: float) -> None:
    scenario.wait(seconds - scenario.world.now)


def set_clock(scenario: Scenario, step_s: float) -> None:
    scenario.host("anna").wall_offset_s += step_s


def _kill(host: Host) -> None:
    assert host.daemon is not None
    host.daemon.kill()


def _stop(host: Host) -> None:
    assert host.daemon is not None
    callback, arguments = next(iter(host.daemon.loop.signals.values()))
    host.daemon.loop.call_soon(callback, *arguments)


# No test keeps a host in a variable: the world has to be released with its scenario.
DISASTERS: dict[str, Callable[[Host], object]] = {
    "none": lambda host: None,
    "killed": _kill,
    "stopped": _stop,
    "power lost": lambda host: host.lose_power(PowerLoss.NONE, back_after_s=5.0),
}


def start_waiting(scenario: Scenario, phase_s: float) -> float:
    """Send messages that no reader and no peer receives; return the time of sending."""
    scenario.host("bert").keep_down = True
    _kill(scenario.host("bert"))
    wait_until(scenario, 2 + phase_s)
    since = scenario.world.now
    scenario.act("anna", lambda qm: qm.send("orders", b"here", time_to_be_received_s=TIME_S))
    there = {"delivery": "transactional", "time_to_reach_queue_s": TIME_S}
    scenario.act("anna", lambda qm: qm.send(THERE, b"there", **there))
    return since


@pytest.mark.parametrize("phase_s", [0.0, 0.3, 0.7, 0.95])
def test_a_message_expires_within_a_second(phase_s: float) -> None:
    with Scenario("anna", "bert") as scenario:
        since = start_waiting(scenario, phase_s)
        wait_until(scenario, since + TIME_S - 0.3)
        assert scenario.bodies("anna", DEAD) == []
        assert scenario.bodies("anna", "orders") == [b"here"]

        wait_until(scenario, since + TIME_S + 1.3)
        assert sorted(scenario.bodies("anna", DEAD)) == [b"here", b"there"]
        assert scenario.bodies("anna", "orders") == []


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S, TIME_S, -TIME_S])
@pytest.mark.parametrize("disaster", DISASTERS)
def test_setting_the_clock_does_not_change_lifetimes(step_s: float, disaster: str) -> None:
    with Scenario("anna", "bert") as scenario:
        since = start_waiting(scenario, 0.5)
        wait_until(scenario, since + 10)
        set_clock(scenario, step_s)
        scenario.wait(2)  # the daemon detects the step
        DISASTERS[disaster](scenario.host("anna"))
        wait_until(scenario, since + TIME_S - 1)
        assert scenario.bodies("anna", "orders") == [b"here"]
        assert scenario.bodies("anna", DEAD) == []

        wait_until(scenario, since + TIME_S + 1.3)
        assert sorted(scenario.bodies("anna", DEAD)) == [b"here", b"there"]


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S])
def test_a_wrong_clock_after_a_power_loss_delays_expiry_by_the_lost_time(
    step_s: float,
) -> None:
    """The lost time includes the time that was not on disk yet: a minute at most."""
    with Scenario("anna", "bert") as scenario:
        since = start_waiting(scenario, 0.5)
        wait_until(scenario, since + 10)
        set_clock(scenario, step_s)
        DISASTERS["power lost"](scenario.host("anna"))
        wait_until(scenario, since + TIME_S)
        assert scenario.bodies("anna", "orders") == [b"here"]

        lost_s = 5.0 + (since + 10)  # all of the time since the start
        wait_until(scenario, since + TIME_S + lost_s + 1.3)
        assert sorted(scenario.bodies("anna", DEAD)) == [b"here", b"there"]


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S])
def test_waiting_messages_are_delivered_after_the_clock_was_set(step_s: float) -> None:
    with Scenario("anna", "bert") as scenario:
        set_clock(scenario, -step_s)  # wrong
        start_waiting(scenario, 0.5)
        scenario.act("anna", lambda qm: qm.send(THERE, b"next", delivery="transactional"))
        scenario.wait(5)
        set_clock(scenario, step_s)
        scenario.host("bert").keep_down = False
        scenario.host("bert").start_daemon()
        scenario.wait(10)
        assert scenario.bodies("bert", "orders") == [b"there", b"next"]
