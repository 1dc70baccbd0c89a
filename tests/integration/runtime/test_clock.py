"""The queue manager's own clock: restarts, and steps of the computer's clocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from storage.tables import clock as clock_rows
from tests.integration.managers import Host, Hosts, World, hosted

DAY_S = 24 * 3600


def passed_s(host: Host, since: float) -> int:
    """Return the seconds that the queue manager has counted since `since`.

    The test itself takes only a few seconds.
    """
    return round((host.clock.now - since) / 10) * 10


@hosted
async def test_the_clock_begins_as_the_wall_clock_and_advances_with_time(hosts: Hosts) -> None:
    a = await hosts.start()
    began = a.clock.now
    assert abs(began - a.world.time()) < 1

    a.world.ahead_s += 100
    assert passed_s(a, began) == 100


@hosted
async def test_setting_the_wall_clock_does_not_change_the_clock(hosts: Hosts) -> None:
    a = await hosts.start()
    began = a.clock.now

    for step_s in (10 * DAY_S, -20 * DAY_S):
        a.world.wall_step_s += step_s
        assert passed_s(a, began) == 0
        a = await hosts.restart(a)
        assert passed_s(a, began) == 0


@hosted
async def test_the_clock_advances_while_the_queue_manager_is_down(hosts: Hosts) -> None:
    a = await hosts.start()
    began = a.clock.now

    await hosts.stop(a)
    a.world.ahead_s += 100
    a.world.wall_step_s = -5 * DAY_S  # ignored, since the computer was not restarted
    a = await hosts.start("a")
    assert passed_s(a, began) == 100


def _nothing(world: World) -> None:
    pass


def _month(world: World) -> None:
    world.ahead_s += 29 * DAY_S


def _too_long(world: World) -> None:
    world.ahead_s += 31 * DAY_S


def _set_back(world: World) -> None:
    world.wall_step_s -= 3600


def _lost_clock(world: World) -> None:
    world.wall_step_s = -world.time()  # 1970: a computer without a clock battery


@pytest.mark.parametrize(
    ("what_happens", "counted_s"),
    [
        (_nothing, 0),
        (_month, 29 * DAY_S),
        (_too_long, 0),
        (_set_back, 0),
        (_lost_clock, 0),
    ],
)
def test_after_the_computers_restart_the_wall_clock_counts_where_it_can_be_right(
    what_happens: Callable[[World], None], counted_s: int, tmp_path: object
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        began = a.clock.now
        await hosts.stop(a)
        a.world.boots += 1
        what_happens(a.world)

        with capture_logs() as logs:
            a = await hosts.start("a")
        assert passed_s(a, began) == counted_s
        warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
        assert warnings == (
            [] if counted_s or what_happens is _nothing else ["downtime_not_counted"]
        )

    scenario(tmp_path)  # type: ignore[arg-type]


@hosted
async def test_the_longest_downtime_that_is_counted_is_a_setting(hosts: Hosts) -> None:
    settings = {"downtime_max_s": 60.0}
    a = await hosts.start(delivery=settings)
    began = a.clock.now
    await hosts.stop(a)
    a.world.boots, a.world.ahead_s = 1, 61

    a = await hosts.start("a", delivery=settings)
    assert passed_s(a, began) == 0


@hosted
async def test_a_step_of_the_wall_clock_is_logged_once(hosts: Hosts) -> None:
    a = await hosts.start()
    with capture_logs() as logs:
        a.clock.look(is_needed=False)
        a.world.ahead_s += 1000
        a.clock.look(is_needed=False)
        assert logs == []
        a.world.wall_step_s = -30
        a.clock.look(is_needed=False)
        a.clock.look(is_needed=False)

    assert [(line["event"], line["seconds"]) for line in logs] == [("clock_stepped", -30)]


@hosted
async def test_the_saved_clock_is_at_most_a_minute_behind_if_deadlines_exist(
    hosts: Hosts,
) -> None:
    a = await hosts.start()

    async def behind_s() -> float:
        await a.settled()
        row = await a.storage.read(clock_rows.read)
        assert row is not None
        return a.clock.now - row.at_ms / 1000

    a.world.ahead_s += DAY_S
    a.clock.look(is_needed=False)
    assert await behind_s() >= DAY_S  # an idle queue manager does not save its clock
    a.clock.deadline_s(None)
    assert await behind_s() >= DAY_S
    a.clock.deadline_s(10)
    assert await behind_s() < 5
    for _ in range(5):
        a.world.ahead_s += 40
        a.clock.look(is_needed=True)
        assert await behind_s() < 60


@hosted
async def test_a_folder_of_an_older_version_starts_with_the_wall_clock(hosts: Hosts) -> None:
    """Such a folder has deadlines in seconds of the wall clock."""
    a = await hosts.start()
    a.world.wall_step_s = -DAY_S
    await a.storage.batch.run(
        lambda db: db.execute("DELETE FROM counter WHERE name LIKE 'clock%'").rowcount
    )
    a.clock.save = lambda: None  # type: ignore[method-assign]
    a = await hosts.restart(a)

    assert abs(a.clock.now - a.world.time()) < 1
