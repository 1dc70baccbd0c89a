"""Origins: which facts are stored about a GUID, and which origin is its primary one."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest

from qmd.core.peer_instance import Instance
from qmd.peers import origins as origins_module
from qmd.peers.origins import PER_ADDRESS_MAX, Bound, Certified, Origins
from qmd.runtime.identity_key import fingerprint
from storage.tables import peer_origins
from tests.unit.storage.support import memory_database

HERE, BOB = b"h" * 16, b"b" * 16
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
FACT, OTHER_FACT = f"key:{fingerprint(KEY)}", f"key:{fingerprint(OTHER_KEY)}"


class World:
    """Origins on a database in memory, with a clock."""

    def __init__(self) -> None:
        self.db: sqlite3.Connection = memory_database()
        self.now_s = 1_700_000_000.0
        self.services: Any = SimpleNamespace(
            id=HERE,
            environment=SimpleNamespace(time=lambda: self.now_s),
            loop=SimpleNamespace(time=lambda: self.now_s),
            storage=SimpleNamespace(batch=SimpleNamespace(run=lambda unit: unit(self.db))),
            log_limited=lambda *args, **values: None,
        )
        self.changed: list[bytes] = []
        self.conflicts: list[tuple[str, str]] = []
        self.origins = self._open()

    def _open(self) -> Origins:
        origins = Origins(self.services)
        origins.on_primary = self.changed.append
        origins.on_conflict = lambda session, known: self.conflicts.append(
            (session.origin, known.origin)
        )
        return origins

    def restart(self) -> None:
        self.origins = self._open()
        self.origins.restore(peer_origins.list_all(self.db))

    def session(
        self,
        host: str,
        *,
        key: bytes | None = None,
        guid: bytes = BOB,
        certified: Certified | None = None,
        is_qmd: bool | None = None,
    ) -> Any:
        """Return a session after its handshake."""
        session = SimpleNamespace(
            host=host,
            origin="",
            fact="",
            certified=certified,
            peer_key=None,
            instance=Instance(3, b"n" * 16) if key else None,
            is_qmd=key is not None if is_qmd is None else is_qmd,
            is_recorded=False,
            is_upgraded=False,
            session=SimpleNamespace(remote_id=guid),
        )
        self.origins.identify(session, guid, key)
        return session

    def stored(self) -> dict[str, Bound]:
        return {row.fact: Bound(row.bound) for row in peer_origins.list_all(self.db)}


@pytest.fixture
def world() -> World:
    return World()


def test_a_handshake_stores_nothing_and_an_accepted_message_binds_the_guid(world: World) -> None:
    session = world.session("10.0.0.2", key=KEY)
    assert world.origins.primary(BOB) is None
    assert world.stored() == {}

    world.origins.accepted(session)

    assert world.origins.primary(BOB) == session.origin == FACT
    assert world.origins.is_primary(session)
    assert world.stored() == {FACT: Bound.FIRST_USE}
    assert world.changed == [BOB]


def test_a_later_origin_changes_nothing_about_the_first(world: World) -> None:
    first = world.session("10.0.0.2", key=KEY)
    world.origins.accepted(first)
    before = world.origins.primary_fact(BOB)

    for other in (world.session("10.0.0.2"), world.session("10.0.0.66", key=OTHER_KEY)):
        world.origins.accepted(other)
        world.origins.dialled(other, is_configured=False)
        assert not world.origins.is_primary(other)

    assert world.origins.primary_fact(BOB) == before
    assert world.conflicts[0] == ("10.0.0.2", FACT)
    assert world.stored()[OTHER_FACT] is Bound.ANOTHER


def test_a_proven_key_does_not_replace_an_address_that_was_first(world: World) -> None:
    """It shows that the program has a key, and not that the GUID is its own."""
    windows = world.session("10.0.0.2")
    world.origins.accepted(windows)

    world.origins.accepted(world.session("10.0.0.66", key=OTHER_KEY))
    world.origins.accepted(world.session("10.0.0.2", key=OTHER_KEY))

    assert world.origins.primary(BOB) == "10.0.0.2"


def test_the_answer_at_a_configured_address_replaces_the_first_use(world: World) -> None:
    world.origins.accepted(world.session("10.0.0.66"))

    world.origins.dialled(genuine := world.session("10.0.0.2", key=KEY), is_configured=True)
    world.origins.dialled(world.session("10.0.0.3"), is_configured=True)

    assert world.origins.is_primary(genuine)
    assert world.stored()["10.0.0.3"] is Bound.ANOTHER


def test_facts_survive_a_restart(world: World) -> None:
    world.origins.accepted(world.session("10.0.0.2", key=KEY))
    world.origins.accepted(world.session("10.0.0.66"))

    world.restart()

    assert world.origins.primary(BOB) == FACT
    assert world.origins.run(BOB, FACT) == Instance(3, b"n" * 16)
    assert not world.origins.is_primary(world.session("10.0.0.66"))


def test_a_host_that_proves_a_key_for_the_first_time_keeps_its_origin(world: World) -> None:
    before = world.session("10.0.0.2", is_qmd=True)
    world.origins.accepted(before)

    after = world.session("10.0.0.2", key=KEY)
    world.origins.accepted(after)
    world.restart()

    assert world.origins.primary(BOB) == after.origin == before.origin
    assert world.session("10.0.0.9", key=KEY).origin == before.origin  # it may move now
    unproven = world.session("10.0.0.2", is_qmd=True)
    assert unproven.origin != before.origin
    assert not world.origins.is_primary(unproven)
    later = world.session("10.0.0.2", key=OTHER_KEY)
    assert later.origin == OTHER_FACT


def test_a_bare_handshake_upgrades_nothing(world: World) -> None:
    world.origins.accepted(world.session("10.0.0.2", is_qmd=True))

    world.session("10.0.0.2", key=OTHER_KEY)
    world.session("10.0.0.3", key=OTHER_KEY)

    assert world.stored() == {"10.0.0.2": Bound.FIRST_USE}


def test_an_operator_decides_and_can_change_the_decision(world: World) -> None:
    world.origins.accepted(world.session("10.0.0.66"))
    genuine = world.session("10.0.0.2", key=KEY)

    world.origins.pin(BOB, FACT)
    assert world.origins.is_primary(genuine)
    world.origins.dialled(world.session("10.0.0.66"), is_configured=True)
    assert world.origins.is_primary(genuine)
    world.restart()
    assert world.origins.is_primary(genuine)

    world.origins.pin(BOB, "10.0.0.66")
    assert world.origins.primary(BOB) == "10.0.0.66"

    world.origins.forget(BOB, "10.0.0.66")
    assert world.origins.primary(BOB) == FACT
    assert world.origins.forget(BOB) == 1
    assert world.origins.primary(BOB) is None
    assert world.stored() == {}


def test_a_new_address_or_key_joins_an_origin(world: World) -> None:
    world.origins.accepted(windows := world.session("10.0.0.2"))

    assert world.origins.join(BOB, "10.0.0.3")

    moved = world.session("10.0.0.3")
    assert moved.origin == windows.origin
    assert world.origins.is_primary(moved)
    assert world.origins.is_primary(world.session("10.0.0.2"))


def test_an_address_never_joins_a_key(world: World) -> None:
    world.origins.accepted(world.session("10.0.0.2", key=KEY))

    assert world.origins.join(BOB, "10.0.0.2") is None
    assert world.origins.join(BOB, OTHER_FACT)

    assert world.session("10.0.0.2", key=OTHER_KEY).origin == FACT
    assert not world.origins.is_primary(world.session("10.0.0.2"))


def test_a_certificate_of_an_authority_outranks_an_address_that_is_configured(
    world: World,
) -> None:
    world.origins.dialled(world.session("10.0.0.66"), is_configured=True)

    certified = world.session("10.0.0.2", certified=Certified(KEY, BOB, "a" * 32))
    world.origins.accepted(certified)
    renewed = world.session("10.0.0.2", certified=Certified(OTHER_KEY, BOB, "a" * 32))

    assert world.origins.is_primary(certified)
    assert renewed.origin == certified.origin  # the key may be renewed
    world.origins.accepted(renewed)
    world.restart()
    assert world.origins.is_primary(world.session("10.0.0.2", key=OTHER_KEY))


def test_only_an_authority_that_names_the_guid_renews_a_key(world: World) -> None:
    world.origins.accepted(world.session("10.0.0.2", certified=Certified(KEY, BOB, "a" * 32)))

    for other in (
        world.session("10.0.0.2", key=OTHER_KEY),
        world.session("10.0.0.2", certified=Certified(OTHER_KEY, BOB)),
        world.session("10.0.0.2", certified=Certified(OTHER_KEY, b"c" * 16, "a" * 32)),
    ):
        assert not world.origins.is_primary(other)
        world.origins.accepted(other)
        assert not world.origins.is_primary(other)

    world.origins.pin(BOB, FACT)
    renewed = world.session("10.0.0.2", certified=Certified(b"n" * 32, BOB, "a" * 32))
    assert not world.origins.is_primary(renewed)


def test_a_pinned_certificate_and_a_proof_of_its_key_are_one_origin(world: World) -> None:
    over_tls = world.session("10.0.0.2", certified=Certified(KEY, BOB))

    assert over_tls.origin == world.session("10.0.0.2", key=KEY).origin


def test_one_address_fills_its_own_places_only(world: World) -> None:
    world.origins.accepted(genuine := world.session("10.0.0.66", key=KEY))
    for number in range(PER_ADDRESS_MAX + 50):
        guid = number.to_bytes(16, "big")
        world.origins.accepted(world.session("10.0.0.66", guid=guid))

    assert len(world.stored()) == 2  # by fact: the address is one of them
    assert len(world.origins.facts()) == PER_ADDRESS_MAX
    assert world.origins.is_primary(genuine)
    world.origins.accepted(other := world.session("10.0.0.7", guid=b"x" * 16))
    assert world.origins.is_primary(other)


def test_the_addresses_of_one_ipv6_network_count_as_one(world: World) -> None:
    for number in range(PER_ADDRESS_MAX + 50):
        guid = number.to_bytes(16, "big")
        world.origins.accepted(world.session(f"2001:db8::{number:x}", guid=guid))

    assert len(world.origins.facts()) == PER_ADDRESS_MAX


def test_a_full_table_takes_no_new_facts_until_old_ones_are_long_unseen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins_module, "KNOWN_MAX", 3)
    for number in range(3):
        guid = number.to_bytes(16, "big")
        world.origins.accepted(world.session(f"10.0.0.{number}", guid=guid))
    world.origins.pin(b"p" * 16, "10.0.0.99")  # an operator is never refused

    world.origins.accepted(world.session("10.0.0.9"))
    assert world.origins.primary(BOB) is None
    assert world.origins.primary(bytes(16)) == "10.0.0.0"

    world.now_s += origins_module.FORGOTTEN_S + 1
    world.origins.accepted(world.session("10.0.0.9"))
    assert world.origins.primary(BOB) == "10.0.0.9"
    assert world.origins.primary(bytes(16)) is None
    assert world.origins.primary(b"p" * 16) == "10.0.0.99"


def test_hosts_that_were_dialled_have_room_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins_module, "FIRST_USES_MAX", 3)
    for number in range(5):
        guid = number.to_bytes(16, "big")
        world.origins.accepted(world.session(f"10.0.{number}.1", guid=guid))
    assert len(world.origins.facts()) == 3

    world.origins.dialled(dialled := world.session("10.1.0.1"), is_configured=False)
    assert world.origins.is_primary(dialled)

    # A fact of a host that is dialled later leaves the room of the others.
    world.origins.dialled(world.session("10.0.0.1", guid=bytes(16)), is_configured=False)
    world.origins.accepted(late := world.session("10.0.9.1", guid=b"x" * 16))
    assert world.origins.is_primary(late)


def test_one_network_does_not_fill_the_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins_module, "PER_NETWORK_MAX", 3)
    for number in range(5):
        guid = number.to_bytes(16, "big")
        world.origins.accepted(world.session(f"127.0.{number}.1", guid=guid))
    assert len(world.origins.facts()) == 3

    world.origins.accepted(other := world.session("10.0.0.1"))
    assert world.origins.is_primary(other)


def test_the_guid_of_this_queue_manager_is_never_bound(world: World) -> None:
    world.origins.accepted(world.session("10.0.0.66", guid=HERE, key=KEY))

    assert world.origins.primary(HERE) is None
