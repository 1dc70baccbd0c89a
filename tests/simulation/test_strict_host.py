"""A queue manager and the strict host in virtual time, with the timers of Windows at their values.

Order acks that are late or absent for minutes, hosts that read and answer nothing, and timers of
hours cost nothing here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from qmd.client import connect
from tests.simulation import vfs
from tests.simulation.scenario import Scenario
from tests.strict_host.manner import Manner, drawn
from tests.strict_host.simulated import ADDRESS, SimulatedHost

ANNA = "10.0.0.1"
DEADXACT = "DIRECT=OS:.\\SYSTEM$;DEADXACT"
WINDOWS = Manner()  # nothing is shortened

try:
    vfs.begin(0, characteristics=0)
except vfs.Unavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)


@pytest.fixture
def scenario() -> Iterator[Scenario]:
    with Scenario("anna") as scenario:
        yield scenario


def windows(scenario: Scenario, manner: Manner = WINDOWS, seed: int = 1) -> SimulatedHost:
    return SimulatedHost(scenario.world, peer=ANNA, manner=manner, seed=seed)


def send(scenario: Scenario, queue: str, *bodies: bytes, **properties: Any) -> None:
    """Send messages from anna to a queue of the strict host; without properties, in order."""
    properties = properties or {"delivery": "transactional"}

    async def act(client: Any) -> None:
        for body in bodies:
            await client.send(f"DIRECT=TCP:{ADDRESS}\\private$\\{queue}", body, **properties)

    scenario.act("anna", act)


def outgoing(scenario: Scenario, queue: str = "q") -> dict[str, Any]:
    rows: list[dict[str, Any]] = scenario.act("anna", lambda client: client.list_outgoing())
    (row,) = [row for row in rows if row["destination"].endswith(queue)]
    return row


def dead_letters(scenario: Scenario) -> list[Any]:
    found: list[Any] = scenario.act("anna", lambda client: client.peek(DEADXACT, limit=100))
    return found


def intervals(host: SimulatedHost) -> list[list[float]]:
    """Return the pauses between the transmissions of each transactional message."""
    received = host.host.receiving
    return [
        [round(later - earlier) for earlier, later in pairwise(times)]
        for key, times in received.times.items()
        if received.first_seen[key].place is not None
    ]


@pytest.mark.slow
def test_messages_without_order_acks_are_resent_by_the_table_of_the_text(
    scenario: Scenario,
) -> None:
    host = windows(scenario, replace(WINDOWS, order_acks_withheld=True))
    send(scenario, "q", b"1", b"2")
    anna = scenario.host("anna")

    async def traffic() -> None:
        """Keep the session alive by other messages: an idle one would end after five minutes."""
        async with connect(anna.control_socket) as client:
            while True:
                await client.send(f"DIRECT=TCP:{ADDRESS}\\private$\\other", delivery="recoverable")
                await asyncio.sleep(250.0)

    anna.run_application("traffic", traffic)
    scenario.wait(29_000.0)

    # QB 3.1.2.6, 3.1.3.1
    assert intervals(host) == [[30] * 3 + [300] * 3 + [1800] * 3 + [21_600]] * 2
    host.host.verdict.assert_clean()
    (stream,) = host.host.receiving.streams.values()
    (session,) = host.host.sessions
    host.act().receiving.send_order_ack("q", stream.sequence, stream.number, session)
    scenario.wait(10.0)
    assert host.host.bodies("q") == [b"1", b"2"]
    assert outgoing(scenario)["messages"] == 0


def test_without_order_acks_for_ten_minutes_nothing_is_lost_and_the_reason_is_shown(
    scenario: Scenario,
) -> None:
    host = windows(scenario, replace(WINDOWS, order_acks_withheld=True))
    bodies = [b"%d" % number for number in range(20)]
    for number in range(10):
        send(scenario, "q", *bodies[2 * number : 2 * number + 2])
        scenario.wait(60.0)
        if number > 1:
            row = outgoing(scenario)
            assert row["messages"] == 2 * number + 2
            assert "no order ack" in row["explanation"], row["explanation"]
    assert host.host.bodies("q") == bodies

    host.act().behave(WINDOWS)
    scenario.wait(700.0)
    assert host.host.bodies("q") == bodies
    assert outgoing(scenario)["messages"] == 0
    assert dead_letters(scenario) == []
    host.host.verdict.assert_clean()


def test_order_acks_that_take_ten_minutes_delay_nothing_else(scenario: Scenario) -> None:
    host = windows(scenario, replace(WINDOWS, order_ack_delay_s=600.0, stale_order_acks=True))
    bodies = [b"%d" % number for number in range(40)]
    for number, body in enumerate(bodies):
        send(scenario, "q", body)
        scenario.wait(60.0)
        assert host.host.bodies("q") == bodies[: number + 1], "it does not wait for order acks"
    scenario.wait(1300.0)
    assert host.host.bodies("q") == bodies
    assert outgoing(scenario)["messages"] == 0
    assert dead_letters(scenario) == []
    host.host.verdict.assert_clean()


def test_a_dead_letter_whose_order_ack_was_late_says_that_it_may_have_arrived(
    scenario: Scenario,
) -> None:
    late = replace(WINDOWS, order_ack_delay_s=600.0, final_ack_delay_s=600.0)
    host = windows(scenario, late)
    send(scenario, "q", b"1", delivery="transactional", time_to_reach_queue_s=300, dead_letter=True)
    scenario.wait(400.0)
    (dead,) = dead_letters(scenario)
    assert "it may have arrived" in dead.reason
    scenario.wait(600.0)

    host.act().behave(WINDOWS)
    send(scenario, "q", b"2")
    scenario.wait(100.0)
    assert host.host.bodies("q") == [b"1", b"2"]
    host.host.verdict.assert_clean()


def test_a_session_without_acknowledgments_ends_after_two_silent_ack_wait_timers(
    scenario: Scenario,
) -> None:
    host = windows(scenario, replace(WINDOWS, sleeps=True))
    send(scenario, "express", b"1", delivery="express")
    send(scenario, "plain", b"2", delivery="recoverable")
    send(scenario, "q", b"3")
    began = scenario.world.now
    scenario.world.run_until(lambda: bool(host.host.ended), seconds_max=300.0)
    # Twice 20 s for direct names; the first timer saw the packets of the handshake: QB 3.1.6.3.
    assert 75 < scenario.world.now - began < 85

    host.act().behave(WINDOWS)
    scenario.wait(100.0)
    for queue, body in (("express", b"1"), ("plain", b"2"), ("q", b"3")):
        assert host.host.bodies(queue) == [body]
        assert outgoing(scenario, queue)["messages"] == 0
    host.host.verdict.assert_clean()


@pytest.mark.parametrize("answers", [0, 1])
def test_a_handshake_without_an_answer_ends_after_a_minute(
    scenario: Scenario, answers: int
) -> None:
    slow = replace(WINDOWS.times, initialization_s=3600.0)
    host = windows(scenario, replace(WINDOWS, answers=answers, times=slow))
    send(scenario, "q", b"1")
    began = scenario.world.now
    scenario.world.run_until(lambda: bool(host.host.ended), seconds_max=300.0)
    assert 55 < scenario.world.now - began < 65  # QB 3.1.2.1, <43>

    host.act().behave(WINDOWS)
    scenario.wait(100.0)
    assert host.host.bodies("q") == [b"1"]
    host.host.verdict.assert_clean()


def test_an_idle_session_ends_and_the_next_message_opens_another(scenario: Scenario) -> None:
    # The strict host never closes an idle session here, so that the queue manager must.
    host = windows(scenario, replace(WINDOWS, times=replace(WINDOWS.times, cleanup_s=1e6)))
    send(scenario, "q", b"1")
    scenario.wait(200.0)
    assert len(host.host.sessions) == 1
    scenario.wait(500.0)
    assert host.host.sessions == []  # QB 3.1.6.2, <44>

    send(scenario, "q", b"2")
    scenario.wait(10.0)
    assert host.host.bodies("q") == [b"1", b"2"]
    host.host.verdict.assert_clean()


def test_a_request_for_another_queue_manager_is_refused_in_a_full_answer(
    scenario: Scenario,
) -> None:
    host = windows(scenario)
    host.server = bytes(range(16))
    host.host.send("news", b"1")
    host.act()
    scenario.wait(12.0)
    # CS is judged by the host: QB 3.1.5.3.1.
    assert {session.end_reason for session in host.host.ended} == {"refused"}

    host.server = bytes(16)
    scenario.wait(30.0)
    assert scenario.bodies("anna", "news") == [b"1"]
    host.host.verdict.assert_clean()


def test_the_messages_of_a_host_with_the_timers_of_windows_arrive(scenario: Scenario) -> None:
    host = windows(scenario, replace(WINDOWS, untidy=True))
    bodies = [b"%d" % number for number in range(300)]
    for body in bodies:
        host.host.send_in_order("orders", body)
        host.host.send("news", body)
    host.act()
    scenario.wait(120.0)
    assert scenario.bodies("anna", "orders") == bodies
    assert scenario.bodies("anna", "news") == bodies
    assert host.host.sending.pending == []
    host.host.verdict.assert_clean()


@pytest.mark.parametrize("seed", range(6))
def test_any_manners_leave_each_message_once_and_in_order(scenario: Scenario, seed: int) -> None:
    source = random.Random(seed)
    host = windows(scenario, drawn(source, WINDOWS), seed)
    own: list[bytes] = []
    theirs: list[bytes] = []
    for step in range(20):
        for number in range(source.choice([0, 1, 5])):
            own.append(b"a%d.%d" % (step, number))
            send(scenario, "q", own[-1])
        for number in range(source.choice([0, 1, 70])):
            theirs.append(b"w%d.%d" % (step, number))
            host.host.send_in_order("orders", theirs[-1])
        host.act().behave(replace(drawn(source, WINDOWS), sleeps=source.random() < 0.2))
        if host.host.sessions and source.random() < 0.3:
            source.choice(host.host.sessions).close("the test closes it")
        scenario.wait(source.choice([0.05, 1.0, 20.0, 400.0]))
    host.act().behave(WINDOWS)
    scenario.wait(4000.0)
    assert host.host.bodies("q") == own
    assert scenario.bodies("anna", "orders") == theirs
    assert host.host.sending.pending == []
    if own:
        assert outgoing(scenario)["messages"] == 0
    host.host.verdict.assert_clean()
