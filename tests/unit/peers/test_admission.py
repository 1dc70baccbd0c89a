"""Places of sessions, and the hosts that keep them: no network takes those of the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qmd.peers import known_hosts as known_hosts_module
from qmd.peers.admission import LOOK_AGAIN_S, SILENT_S, Admission
from qmd.peers.known_hosts import KnownHosts
from storage.tables import known_hosts
from tests.unit.storage.support import memory_database

PLACES = 4


class World:
    """Places and known hosts, on a database in memory, with a clock."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.now = 1_700_000_000.0
        settings = SimpleNamespace(
            peers=SimpleNamespace(
                sessions_max=PLACES,
                sessions_per_peer_max=100,
                handshakes_max=100,
                large_messages=(),
            ),
            routing=SimpleNamespace(relay_for=()),
        )
        self.services: Any = SimpleNamespace(
            settings=settings,
            environment=SimpleNamespace(time=lambda: self.now),
            loop=SimpleNamespace(time=lambda: self.now),
            storage=SimpleNamespace(batch=SimpleNamespace(run=lambda unit: unit(self.db))),
            log_limited=lambda *args, **values: None,
        )
        self.known = KnownHosts(self.services)
        self.admission = Admission(self.services, self.known)
        self.closed: list[str] = []

    def restart(self) -> None:
        self.known = KnownHosts(self.services)
        self.known.restore(known_hosts.list_all(self.db))

    def connect(self, host: str, *, useful: bool) -> Any | None:
        """Return a session from an address, or None if there is no place for it."""
        place = Place(self, host)
        if not self.admission.begin(place):
            return None
        if useful:
            self.admission.proved_useful(place)
        return place


class Place:
    def __init__(self, world: World, host: str) -> None:
        self._world = world
        self.host = host
        self.opened_at = world.now
        self.session: Any = SimpleNamespace(last_active=world.now)

    def close(self, reason: str) -> None:
        self._world.closed.append(self.host)
        self._world.admission.closed(self)


@pytest.fixture
def world() -> Iterator[World]:
    db = memory_database()
    yield World(db)
    db.close()


def test_addresses_of_one_network_do_not_take_all_places_for_ever(world: World) -> None:
    for number in range(PLACES):
        assert world.connect(f"127.0.0.{number + 1}", useful=True)
    assert world.connect("127.0.9.9", useful=False) is None

    world.now += SILENT_S + LOOK_AGAIN_S

    assert world.connect("127.0.9.9", useful=False)
    assert world.closed == ["127.0.0.1"]


def test_a_session_with_messages_keeps_its_place(world: World) -> None:
    places = [world.connect(f"127.0.0.{number + 1}", useful=True) for number in range(PLACES)]
    for _ in range(10):
        world.now += SILENT_S / 2
        for place in places:
            assert place is not None
            place.session.last_active = world.now
        assert world.connect("127.0.9.9", useful=False) is None

    assert world.closed == []


def test_silent_sessions_make_room_once_a_second(world: World) -> None:
    for number in range(PLACES):
        world.connect(f"127.0.0.{number + 1}", useful=True)
    world.now += SILENT_S + LOOK_AGAIN_S

    assert world.connect("127.0.9.1", useful=True)
    assert world.connect("127.0.9.2", useful=True) is None
    world.now += LOOK_AGAIN_S
    assert world.connect("127.0.9.2", useful=True)


def test_many_addresses_of_one_network_replace_one_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_hosts_module, "KNOWN_MAX", 10)
    world.known.add("10.0.0.1")
    world.known.add("2001:db8::1")
    world.restart()

    for number in range(100):
        world.known.add(f"127.0.0.{number + 1}")

    assert world.known.has("10.0.0.1")
    assert world.known.has("2001:db8::2")  # of the same /64
    assert world.known.has("127.0.0.100")
    assert not world.known.has("127.0.0.1")
    stored = known_hosts.list_all(world.db)
    assert len(stored) == 10
    world.restart()
    assert world.known.has("10.0.0.1")


def test_hosts_that_were_dialled_stay_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_hosts_module, "KNOWN_MAX", 10)
    world.known.add("127.0.0.250")
    world.known.add("127.0.0.250", is_dialled=True)

    for number in range(100):
        world.known.add(f"127.0.0.{number + 1}")

    assert world.known.has("127.0.0.250")


def test_another_address_gets_a_place_at_once_from_the_one_with_most(world: World) -> None:
    """Without this it would wait until a session of the other address is old enough to end."""
    for _ in range(PLACES):
        assert world.connect("198.51.100.1", useful=False)

    assert world.connect("198.51.100.1", useful=False) is None
    assert world.connect("203.0.113.9", useful=False)
    assert world.closed == ["198.51.100.1"]
