"""A short form of the soak of the door: `python -m tests.amqp.soak` has the long one."""

from __future__ import annotations

import random

import pytest

from tests.amqp.door import door_of
from tests.process.harness import Hosts

pytest.importorskip("proton")
from tests.amqp import soak

KILLS, CUTS, CONNECTIONS = 3, 8, 300
CONVERSATION_BYTES = 900  # of each direction, about


def test_a_door_that_is_killed_moves_each_message_once_and_in_order(hosts: Hosts) -> None:
    with door_of(hosts, transactional=("in", "out", "resumed")) as door:
        soak.kill_under_load(door, KILLS)


def test_connections_that_are_cut_anywhere_lose_and_double_nothing(hosts: Hosts) -> None:
    with door_of(hosts, "cut") as door:
        chance = random.Random(3)
        soak.cut_at(
            door,
            [(chance.randrange(1, CONVERSATION_BYTES), bool(turn % 2)) for turn in range(CUTS)],
        )


def test_a_sender_that_is_cut_with_several_requests_under_way_resumes_exactly(hosts: Hosts) -> None:
    with door_of(hosts, transactional=("resumed",)) as door:
        assert soak.cut_while_sending(door, CUTS, seed=5) > 1


def test_many_connections_at_once_are_served(hosts: Hosts) -> None:
    with door_of(hosts, "many") as door:
        soak.connect_many(door, CONNECTIONS)
